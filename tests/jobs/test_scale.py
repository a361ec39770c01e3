"""Replicas come and go by plan while a job trains: nobody halts, no step is repeated, and in the end every bit is as
in a job that had all of them from the beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.stage import Result, Stage, perform
from tests.jobs.test_examples import EXAMPLES, SMALL, UNHURRIED
from tests.jobs.test_vacant import SCRIPT, compare, more_steps

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]


async def scale(stage: Stage, replicas: int, **more: object) -> None:
    """Ask for so many replicas, and wait until they train."""
    answer = await stage.call("POST", "/scale", {"replicas": replicas, **more})
    assert answer["ok"], answer

    async def there() -> bool:
        job = await stage.call("GET", "/job")
        return bool(job["replicas"]["live"] == replicas and job["change"] is None and job["status"] == "training")

    await stage.until(there, f"{replicas} replicas")


async def grow_and_shrink(stage: Stage, few: int = 2, many: int = 4) -> None:
    await stage.step(3)
    job = await stage.call("GET", "/job")
    assert job["replicas"] == {"live": few, "most": many, "target": few}
    await scale(stage, many)
    await more_steps(stage, 2)
    await scale(stage, few)
    await more_steps(stage, 2)
    await stage.call("POST", "/stop")


def undisturbed(result: Result) -> None:
    """Nobody was interrupted, whatever else happened."""
    assert not [tale["text"] for tale in result.tales if tale["kind"] in ("halt", "lost", "died", "cancelled")]
    assert not result.repeated


def test_two_four_two(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"script": SCRIPT, "machines": 4, "mask": "anywhere", "deterministic": True}
    changed = perform(tmp_path / "changed", grow_and_shrink, **settings, begin_with=2)
    undisturbed(changed)
    released = [tale["text"] for tale in changed.tales if tale["kind"] == "released"]
    assert len(released) == 2
    compare(changed, tmp_path / "constant", **settings)


@pytest.mark.long
def test_without_determinism_the_losses_are_close(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"script": SCRIPT, "machines": 4, "mask": "anywhere"}
    changed = perform(tmp_path / "changed", grow_and_shrink, **settings, begin_with=2)
    undisturbed(changed)
    steps = int(changed.ended.view["step"])
    constant = perform(tmp_path / "constant", **settings, steps=steps)
    for key, loss in changed.losses.items():
        assert loss == pytest.approx(constant.losses[key], rel=1e-3, abs=1e-5), key


@pytest.mark.long
def test_pipelines_come_and_go(tmp_path: Path) -> None:
    async def direction(stage: Stage) -> None:
        await grow_and_shrink(stage, few=1, many=2)

    settings: dict[str, Any] = {
        "script": UNHURRIED.format(example=str(EXAMPLES / "gpt_3d.py")),
        "args": (*SMALL, "--micro", "2"),
        "machines": 4,
        "mesh": "pp=2,dp=2,tp=1",
        "mask": "anywhere",
        "deterministic": True,
    }
    changed = perform(tmp_path / "changed", direction, **settings, begin_with=2)
    undisturbed(changed)
    compare(changed, tmp_path / "constant", **settings)


@pytest.mark.long
def test_a_machine_is_kept_and_a_leaver_dies(tmp_path: Path) -> None:
    async def direction(stage: Stage) -> None:
        await stage.step(2)
        await scale(stage, 2, without=["m0"], keep=True)
        await stage.standbys(1)
        await more_steps(stage, 2)
        await scale(stage, 3)
        await more_steps(stage, 1)
        await stage.call("POST", "/scale", {"replicas": 1})
        await stage.kill_worker("m2")
        await more_steps(stage, 3)
        await scale(stage, 1)
        await stage.call("POST", "/stop")

    settings: dict[str, Any] = {"script": SCRIPT, "machines": 3, "mask": "anywhere", "deterministic": True}
    compare(perform(tmp_path / "changed", direction, **settings), tmp_path / "constant", **settings)
