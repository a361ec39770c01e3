"""Whole jobs that mask: newcomers rehearse masked steps and take their place in them, planned or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.stage import SCRIPT, Stage, perform, same_bits

LOGGED = SCRIPT.replace("            job.log(loss=loss)\n", "").replace(
    "loss.backward()\n", "loss.backward()\n                job.log(loss=loss)\n"
)
"""What is logged for every micro-shard is reported as their mean, whoever computes them."""

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]


@pytest.mark.long
@pytest.mark.parametrize("deterministic", [False, True], ids=["summed", "deterministic"])
def test_replaced_and_lost(tmp_path: Path, deterministic: bool) -> None:
    async def direction(stage: Stage) -> None:
        await stage.standbys(2)
        await stage.step(3)
        answer = await stage.replace("m0")
        assert answer["ok"], answer
        await stage.standbys(1)
        if deterministic:  # else a step without a replica is the same within rounding only
            await stage.kill_worker("m1")
        await stage.step(int((await stage.call("GET", "/job"))["step"]) + 5)

    same_bits(tmp_path, direction, standbys=2, mask="anywhere", deterministic=deterministic, script=LOGGED)


def test_a_script_that_cannot_be_masked(tmp_path: Path) -> None:
    script = SCRIPT.replace('DDP(inner, process_group=job.mesh["dp"].get_group())', "inner")
    ended = perform(tmp_path, script=script, mask="anywhere").ended
    assert ended.status == "failed"
    assert "wrap the model in DDP" in ended.reason
