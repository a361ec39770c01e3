"""Machines of running jobs are replaced, and killed, at all kinds of bad moments: the result is the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.stage import Direction, Result, Stage, perform

pytestmark = [pytest.mark.job, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_HOME", str(tmp_path_factory.mktemp("home")))
        result = perform(tmp_path_factory.mktemp("undisturbed"))
    assert result.ended.status == "finished"
    assert len(result.losses) == 120
    return result


def same(result: Result, undisturbed: Result) -> None:
    assert result.ended.status == "finished", result.ended.reason
    assert result.digests == undisturbed.digests
    assert result.losses.items() <= undisturbed.losses.items()
    assert {step for _, step in result.losses} == set(range(60))


async def one(stage: Stage) -> None:
    await stage.standbys(1)
    await stage.step(5)
    answer = await stage.replace("m1")
    assert answer["ok"], answer
    assert not answer["again"]


async def role_zero_then_the_other_back_to_back(stage: Stage) -> None:
    await stage.standbys(2)
    await stage.step(5)
    first, second = await stage.ask("m0"), await stage.ask("m1")
    assert (await stage.answer(first))["ok"]
    assert (await stage.answer(second))["ok"]


async def both_at_once(stage: Stage) -> None:
    await stage.standbys(2)
    await stage.step(5)
    assert (await stage.replace("m0", "m1"))["ok"]


async def with_the_world_stopped(stage: Stage) -> None:
    await stage.standbys(1)
    await stage.step(5)
    assert (await stage.replace("m0", stop_the_world=True))["ok"]


async def while_the_controller_dies(stage: Stage) -> None:
    await stage.standbys(1)
    await stage.step(5)
    id = await stage.ask("m1")
    for phase in ("rehearse", "prepare", "switch"):
        await stage.phase(phase)
        await stage.kill_controller()
    assert (await stage.answer(id))["ok"]


async def the_joiner_dies_and_another_one_comes(stage: Stage) -> None:
    await stage.standbys(2)
    await stage.step(3)
    id = await stage.ask("m1", standbys=["m2"])
    await stage.phase("rehearse")
    await stage.kill_machine("m2")
    assert (await stage.answer(id))["ok"]


async def the_leaver_dies_before_the_switch(stage: Stage) -> None:
    await stage.standbys(1)
    await stage.step(3)
    await stage.ask("m1")
    await stage.phase("rehearse")
    await stage.kill_worker("m1")


async def the_leaver_dies_at_the_switch(stage: Stage) -> None:
    await stage.standbys(1)
    await stage.step(3)
    await stage.ask("m1")
    await stage.phase("armed")
    await stage.kill_machine("m1")


async def a_stayer_dies_while_another_one_is_replaced(stage: Stage) -> None:
    await stage.standbys(2)
    await stage.step(3)
    id = await stage.ask("m1")
    await stage.phase("prepare")
    await stage.kill_worker("m0")
    await stage.answer(id)


@pytest.mark.parametrize(
    ("direction", "standbys"),
    [
        (one, 1),
        (role_zero_then_the_other_back_to_back, 2),
        (both_at_once, 2),
        (with_the_world_stopped, 1),
        (while_the_controller_dies, 1),
        (the_joiner_dies_and_another_one_comes, 2),
        (the_leaver_dies_before_the_switch, 1),
        (the_leaver_dies_at_the_switch, 1),
        (a_stayer_dies_while_another_one_is_replaced, 2),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_same_bits(direction: Direction, standbys: int, tmp_path: Path, undisturbed: Result) -> None:
    same(perform(tmp_path / "job", direction, standbys=standbys), undisturbed)


def test_requests_that_cannot_be(tmp_path: Path, undisturbed: Result) -> None:
    async def ask(stage: Stage) -> None:
        await stage.step(3)
        unknown = await stage.replace("m9")
        assert not unknown["ok"]
        assert "there is no machine m9" in unknown["text"]
        missing = await stage.replace("m1")
        assert not missing["ok"]
        assert "understudy standby add" in missing["text"]
        await stage.call("POST", "/standbys", {"type": "add-standby"})
        await stage.standbys(1)
        first, second = await stage.ask("m1"), await stage.ask("m1")
        twice = await stage.answer(second)
        assert not twice["ok"]
        assert "m1 is being replaced already" in twice["text"]
        assert (await stage.answer(first))["ok"]

    same(perform(tmp_path / "job", ask), undisturbed)
