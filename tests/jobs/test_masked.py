"""Whole jobs that mask: newcomers rehearse masked steps and take their place in them, planned or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.stage import Stage, perform, same_bits

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

SCRIPT = """
import time, torch, understudy
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def train(job):
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.1), nn.Linear(128, 8))
    model = DDP(inner, process_group=job.mesh["dp"].get_group())
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job.track(model=model, optim=optim)
    for step in job.steps(100_000):
        with step:
            for shard in step.shards(2):
                numbers = torch.Generator().manual_seed(1000 * step.index + shard.number)
                loss = model(torch.rand(16, 64, generator=numbers)).pow(2).mean()
                (loss * shard.weight).backward()
                job.log(loss=loss)
                if not job.rehearsing and not Path(__file__).with_name("hurry").exists():
                    time.sleep(0.1)  # the test is not done with the job yet
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            optim.zero_grad()

understudy.run(train)
"""


@pytest.mark.long
@pytest.mark.parametrize("deterministic", [False, True], ids=["summed", "deterministic"])
def test_replaced_and_lost(tmp_path: Path, deterministic: bool) -> None:
    async def direction(stage: Stage) -> None:
        await stage.standbys(2)
        await stage.step(3)
        answer = await stage.replace("m0")
        assert answer["ok"], answer
        await stage.standbys(1)
        await stage.kill_worker("m1")
        await stage.step(int((await stage.call("GET", "/job"))["step"]) + 5)

    same_bits(tmp_path, direction, script=SCRIPT, standbys=2, mask="anywhere", deterministic=deterministic)


def test_a_script_that_cannot_be_masked(tmp_path: Path) -> None:
    script = SCRIPT.replace('DDP(inner, process_group=job.mesh["dp"].get_group())', "inner")
    ended = perform(tmp_path, script=script, mask="anywhere").ended
    assert ended.status == "failed"
    assert "wrap the model in DDP" in ended.reason
