"""The number of replicas changes while a job trains: no worker halts, no step is repeated, and the job ends with the
bits of one that had all replicas from the beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.running import Result, RunningJob, run_job
from tests.jobs.test_examples import EXAMPLES, SMALL, UNHURRIED
from tests.jobs.test_vacant import SCRIPT, compare, more_steps

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]


async def scale(running: RunningJob, replicas: int, **more: object) -> None:
    """Ask for so many replicas, and wait until they train."""
    answer = await running.call("POST", "/scale", {"replicas": replicas, **more})
    assert answer["ok"], answer

    async def there() -> bool:
        job = await running.call("GET", "/job")
        return bool(job["replicas"]["live"] == replicas and job["change"] is None and job["status"] == "training")

    await running.until(there, f"{replicas} replicas")


async def grow_and_shrink(running: RunningJob, few: int = 2, many: int = 4) -> None:
    await running.step(3)
    job = await running.call("GET", "/job")
    assert job["replicas"] == {"live": few, "most": many, "target": few}
    await scale(running, many)
    await more_steps(running, 2)
    await scale(running, few)
    await more_steps(running, 2)
    await running.call("POST", "/stop")


def undisturbed(result: Result) -> None:
    """Check that no worker was interrupted and no step repeated."""
    assert not [event["text"] for event in result.events if event["kind"] in ("halt", "lost", "died", "cancelled")]
    assert not result.repeated


def test_two_four_two(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"script": SCRIPT, "machines": 4, "mask": "anywhere", "deterministic": True}
    changed = run_job(tmp_path / "changed", grow_and_shrink, **settings, begin_with=2)
    undisturbed(changed)
    released = [event["text"] for event in changed.events if event["kind"] == "released"]
    assert len(released) == 2
    compare(changed, tmp_path / "constant", **settings)


@pytest.mark.long
def test_without_determinism_the_losses_are_close(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"script": SCRIPT, "machines": 4, "mask": "anywhere"}
    changed = run_job(tmp_path / "changed", grow_and_shrink, **settings, begin_with=2)
    undisturbed(changed)
    steps = int(changed.ended.view["step"])
    constant = run_job(tmp_path / "constant", **settings, steps=steps)
    for key, loss in changed.losses.items():
        assert loss == pytest.approx(constant.losses[key], rel=1e-3, abs=1e-5), key


@pytest.mark.long
def test_pipelines_come_and_go(tmp_path: Path) -> None:
    async def disturb(running: RunningJob) -> None:
        await grow_and_shrink(running, few=1, many=2)

    settings: dict[str, Any] = {
        "script": UNHURRIED.format(example=str(EXAMPLES / "gpt_3d.py")),
        "args": (*SMALL, "--micro", "2"),
        "machines": 4,
        "mesh": "pp=2,dp=2,tp=1",
        "mask": "anywhere",
        "deterministic": True,
    }
    changed = run_job(tmp_path / "changed", disturb, **settings, begin_with=2)
    undisturbed(changed)
    compare(changed, tmp_path / "constant", **settings)


@pytest.mark.long
def test_a_machine_is_kept_and_a_leaver_dies(tmp_path: Path) -> None:
    async def disturb(running: RunningJob) -> None:
        await running.step(2)
        await scale(running, 2, without=["m0"], keep=True)
        await running.standbys(1)
        await more_steps(running, 2)
        await scale(running, 3)
        await more_steps(running, 1)
        await running.call("POST", "/scale", {"replicas": 1})
        await running.kill_worker("m2")
        await more_steps(running, 3)
        await scale(running, 1)
        await running.call("POST", "/stop")

    settings: dict[str, Any] = {"script": SCRIPT, "machines": 3, "mask": "anywhere", "deterministic": True}
    compare(run_job(tmp_path / "changed", disturb, **settings), tmp_path / "constant", **settings)
