"""Roles without a live replica: everybody goes back together, to copies in memory or to a checkpoint; and a job that
cannot go on ends with one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.stage import Stage, perform, same_bits
from tests.jobs.test_examples import EXAMPLES, SMALL, UNHURRIED
from understudy.state.checkpoint import CheckpointFolder

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]


async def _trains_on(stage: Stage, decisions: int) -> str:
    """Wait until training goes on after so many decisions; where the state came from in the last."""

    async def there() -> bool:
        job = await stage.call("GET", "/job")
        return len(_decided(stage)) >= decisions and job["status"] == "training"

    await stage.until(there, f"training after decision {decisions}")
    await stage.step(int((await stage.call("GET", "/job"))["step"]) + 2)
    return str(_decided(stage)[-1]["data"]["source"])


def _decided(stage: Stage) -> list[dict[str, dict[str, object]]]:
    return [tale for tale in stage.tales if tale["kind"] == "decided"]


def test_state_that_only_one_role_has(tmp_path: Path) -> None:
    """FSDP over all machines. First one worker dies, whose buddy has a copy; then all die, and the copies too."""

    async def direction(stage: Stage) -> None:
        await stage.standbys(1)
        await stage.step(5)
        await stage.kill_worker("m1")
        assert await _trains_on(stage, 1) == "copy"

        async def saved() -> bool:
            return bool(CheckpointFolder(tmp_path / "checkpoints", 2, pytest.fail).complete())

        await stage.until(saved, "a checkpoint that everybody has written")
        for machine in await stage.machines():
            if machine["state"] == "active":
                os.kill(machine["pids"][0], signal.SIGKILL)
        assert await _trains_on(stage, len(_decided(stage)) + 1) == "checkpoint"

    script = UNHURRIED.format(example=str(EXAMPLES / "gpt_fsdp.py"))
    settings: dict[str, Any] = {"checkpoint": str(tmp_path / "checkpoints"), "checkpoint_every": 3, "copy_every": 2}
    same_bits(tmp_path, direction, script=script, args=SMALL, standbys=1, **settings)


def test_a_job_without_machines_stops_with_a_checkpoint(tmp_path: Path) -> None:
    """… and the same command goes on from there."""
    folder = str(tmp_path / "checkpoints")
    settings: dict[str, Any] = {"checkpoint": folder, "steps": 30, "repair": 0.0, "no_standby": "stop"}

    async def direction(stage: Stage) -> None:
        await stage.step(8)
        await stage.kill_machine("m1")

    broken = perform(tmp_path / "broken", direction, **settings)
    assert broken.ended.status == "failed"
    assert "no standby is left for role 1; step " in broken.ended.reason
    assert "is in the checkpoint: the same command goes on from there" in broken.ended.reason
    again = perform(tmp_path / "again", **settings)
    assert again.ended.status == "finished"
    whole = perform(tmp_path / "whole", steps=30)
    assert {step for _, step in again.losses} <= set(range(8, 30))
    assert (broken.losses | again.losses).items() <= whole.losses.items()
    assert again.digests == whole.digests


def test_too_few_rehearsals_for_ddp(tmp_path: Path) -> None:
    ended = perform(tmp_path, rehearsals=1).ended
    assert ended.status == "failed"
    assert "with DDP a joiner must have rehearsed two steps" in ended.reason
