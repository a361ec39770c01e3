"""Machines of a running job are replaced in every way an operator can ask for: the result is the same to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.running import RunningJob, same_bits

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]


async def machine_of(running: RunningJob, role: int) -> str:
    roster: list[dict[str, Any]] = await running.call("GET", "/roster")
    return str(roster[role]["machine"])


async def add(running: RunningJob, count: int) -> None:
    await running.call("POST", "/standbys", {"type": "add-standby", "count": count})
    await running.standbys(count)


async def requests_that_cannot_be(running: RunningJob) -> None:
    unknown = await running.replace("m9")
    assert not unknown["ok"]
    assert "there is no machine m9" in unknown["text"]
    missing = await running.replace("m1")
    assert not missing["ok"]
    assert "understudy standby add" in missing["text"]


async def one_that_is_asked_for_twice(running: RunningJob) -> None:
    await add(running, 1)
    first, second = await running.ask("m1"), await running.ask("m1")
    twice = await running.answer(second)
    assert not twice["ok"]
    assert "m1 is being replaced already" in twice["text"]
    answer = await running.answer(first)
    assert answer["ok"], answer
    assert not answer["again"]
    gone = await running.replace("m1")
    assert not gone["ok"]
    assert "m1 is gone already" in gone["text"]


async def role_zero_then_the_other_back_to_back(running: RunningJob) -> None:
    """The other one with every link opened anew."""
    await add(running, 2)
    ids = [await running.ask(await machine_of(running, role), all_links=role == 1) for role in (0, 1)]
    for id in ids:
        answer = await running.answer(id)
        assert answer["ok"], answer


async def both_at_once(running: RunningJob) -> None:
    await add(running, 2)
    answer = await running.replace(await machine_of(running, 0), await machine_of(running, 1))
    assert answer["ok"], answer


async def with_the_world_stopped(running: RunningJob) -> None:
    await add(running, 1)
    answer = await running.replace(await machine_of(running, 0), stop_the_world=True)
    assert answer["ok"], answer


def test_every_kind_of_replacement(tmp_path: Path) -> None:
    async def disturb(running: RunningJob) -> None:
        await running.step(3)
        for kind in (
            requests_that_cannot_be,
            one_that_is_asked_for_twice,
            role_zero_then_the_other_back_to_back,
            both_at_once,
            with_the_world_stopped,
        ):
            await kind(running)

    same_bits(tmp_path, disturb)
