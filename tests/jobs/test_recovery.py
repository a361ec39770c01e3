"""Roles without a live copy of their state: all workers go back to backup copies or to a checkpoint. A job that cannot
continue ends with a checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.running import RunningJob, run_job, same_bits
from tests.jobs.test_examples import EXAMPLES, SMALL, UNHURRIED
from understudy.state.checkpoint import CheckpointFolder

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]


async def _trains_on(running: RunningJob, decisions: int) -> str:
    """Wait until training goes on after so many decisions; where the state came from in the last."""

    async def there() -> bool:
        job = await running.call("GET", "/job")
        return len(_decided(running)) >= decisions and job["status"] == "training"

    await running.until(there, f"training after decision {decisions}")
    await running.step(int((await running.call("GET", "/job"))["step"]) + 2)
    return str(_decided(running)[-1]["data"]["source"])


def _decided(running: RunningJob) -> list[dict[str, dict[str, object]]]:
    return [event for event in running.events if event["kind"] == "decided"]


def test_state_that_only_one_role_has(tmp_path: Path) -> None:
    """FSDP over all machines. First one worker dies, and its buddy has a copy; then all die, and the copies too."""

    async def disturb(running: RunningJob) -> None:
        await running.standbys(1)
        await running.step(5)
        await running.kill_worker("m1")
        assert await _trains_on(running, 1) == "copy"

        async def saved() -> bool:
            return bool(CheckpointFolder(tmp_path / "checkpoints", 2, pytest.fail).complete())

        await running.until(saved, "a checkpoint that all roles have written")
        for machine in await running.machines():
            if machine["state"] == "active":
                os.kill(machine["pids"][0], signal.SIGKILL)
        assert await _trains_on(running, len(_decided(running)) + 1) == "checkpoint"

    script = UNHURRIED.format(example=str(EXAMPLES / "gpt_fsdp.py"))
    settings: dict[str, Any] = {"checkpoint": str(tmp_path / "checkpoints"), "checkpoint_every": 3, "copy_every": 2}
    same_bits(tmp_path, disturb, script=script, args=SMALL, standbys=1, **settings)


def test_a_job_without_machines_stops_with_a_checkpoint(tmp_path: Path) -> None:
    """… and the same command goes on from there."""
    folder = str(tmp_path / "checkpoints")
    settings: dict[str, Any] = {"checkpoint": folder, "steps": 30, "repair": 0.0, "no_standby": "stop"}

    async def disturb(running: RunningJob) -> None:
        await running.step(8)
        await running.kill_machine("m1")

    broken = run_job(tmp_path / "broken", disturb, **settings)
    assert broken.ended.status == "failed"
    assert "no standby is left for role 1; step " in broken.ended.reason
    assert "is in the checkpoint: the same command goes on from there" in broken.ended.reason
    again = run_job(tmp_path / "again", **settings)
    assert again.ended.status == "finished"
    whole = run_job(tmp_path / "whole", steps=30)
    assert {step for _, step in again.losses} <= set(range(8, 30))
    assert (broken.losses | again.losses).items() <= whole.losses.items()
    assert again.digests == whole.digests


def test_too_few_rehearsals_for_ddp(tmp_path: Path) -> None:
    ended = run_job(tmp_path, rehearsals=1).ended
    assert ended.status == "failed"
    assert "with DDP a joiner must have rehearsed two steps" in ended.reason
