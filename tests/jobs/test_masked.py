"""Whole jobs that mask: joiners rehearse masked steps and take part in them, after a plan or a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.running import SCRIPT, RunningJob, run_job, same_bits

LOGGED = SCRIPT.replace("            job.log(loss=loss)\n", "").replace(
    "loss.backward()\n", "loss.backward()\n                job.log(loss=loss)\n"
)
"""Values that are logged for every micro-shard are reported as their mean, on any replica."""

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]


@pytest.mark.long
@pytest.mark.parametrize("deterministic", [False, True], ids=["summed", "deterministic"])
def test_replaced_and_lost(tmp_path: Path, deterministic: bool) -> None:
    async def disturb(running: RunningJob) -> None:
        await running.standbys(2)
        await running.step(3)
        answer = await running.replace("m0")
        assert answer["ok"], answer
        await running.standbys(1)
        if deterministic:  # else a step without a replica is the same within rounding only
            await running.kill_worker("m1")
        await running.step(int((await running.call("GET", "/job"))["step"]) + 5)

    same_bits(tmp_path, disturb, standbys=2, mask="anywhere", deterministic=deterministic, script=LOGGED)


def test_a_script_that_cannot_be_masked(tmp_path: Path) -> None:
    script = SCRIPT.replace('DDP(inner, process_group=job.mesh["dp"].get_group())', "inner")
    ended = run_job(tmp_path, script=script, mask="anywhere").ended
    assert ended.status == "failed"
    assert "wrap the model in DDP" in ended.reason
