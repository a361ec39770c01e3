"""Machines of a running job are replaced in every way an operator can ask for: the result is the same to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.stage import Stage, same_bits

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]


async def player(stage: Stage, role: int) -> str:
    roster: list[dict[str, Any]] = await stage.call("GET", "/roster")
    return str(roster[role]["machine"])


async def add(stage: Stage, count: int) -> None:
    await stage.call("POST", "/standbys", {"type": "add-standby", "count": count})
    await stage.standbys(count)


async def requests_that_cannot_be(stage: Stage) -> None:
    unknown = await stage.replace("m9")
    assert not unknown["ok"]
    assert "there is no machine m9" in unknown["text"]
    missing = await stage.replace("m1")
    assert not missing["ok"]
    assert "understudy standby add" in missing["text"]


async def one_that_is_asked_for_twice(stage: Stage) -> None:
    await add(stage, 1)
    first, second = await stage.ask("m1"), await stage.ask("m1")
    twice = await stage.answer(second)
    assert not twice["ok"]
    assert "m1 is being replaced already" in twice["text"]
    answer = await stage.answer(first)
    assert answer["ok"], answer
    assert not answer["again"]
    gone = await stage.replace("m1")
    assert not gone["ok"]
    assert "m1 is gone already" in gone["text"]


async def role_zero_then_the_other_back_to_back(stage: Stage) -> None:
    """The other one with every link opened anew."""
    await add(stage, 2)
    ids = [await stage.ask(await player(stage, role), all_links=role == 1) for role in (0, 1)]
    for id in ids:
        answer = await stage.answer(id)
        assert answer["ok"], answer


async def both_at_once(stage: Stage) -> None:
    await add(stage, 2)
    answer = await stage.replace(await player(stage, 0), await player(stage, 1))
    assert answer["ok"], answer


async def with_the_world_stopped(stage: Stage) -> None:
    await add(stage, 1)
    answer = await stage.replace(await player(stage, 0), stop_the_world=True)
    assert answer["ok"], answer


def test_every_kind_of_replacement(tmp_path: Path) -> None:
    async def direction(stage: Stage) -> None:
        await stage.step(3)
        for kind in (
            requests_that_cannot_be,
            one_that_is_asked_for_twice,
            role_zero_then_the_other_back_to_back,
            both_at_once,
            with_the_world_stopped,
        ):
            await kind(stage)

    same_bits(tmp_path, direction)
