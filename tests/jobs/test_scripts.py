"""Ordinary kinds of training scripts, both machines replaced one after the other: the same bits as undisturbed."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.jobs.running import RunningJob, same_bits

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

PREAMBLE = """
import shutil, time, torch, understudy
from contextlib import nullcontext
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR

BACKEND = "inductor" if shutil.which("g++") else "aot_eager"
FOREVER = 100_000  # the test stops the job, or says how many steps

def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 8))

def batch(step, shard):
    return torch.rand(16, 32, generator=torch.Generator().manual_seed(1000 * step.index + shard.number))

def pause(job):
    if not job.rehearsing and not Path(__file__).with_name("hurry").exists():
        time.sleep(0.1)  # the test is not done with the job yet
"""


async def each_in_turn(running: RunningJob) -> None:
    """At every boundary one stays and one comes; both roles move."""
    await running.standbys(2)
    await running.step(5)
    requests = [await running.ask("m1"), await running.ask("m0")]
    answers = [await running.answer(request) for request in requests]
    assert all(answer["ok"] for answer in answers), answers
    assert not any(answer.get("again") for answer in answers), "what was offered was of no use"


def check(tmp_path: Path, script: str, **settings: object) -> None:
    same_bits(tmp_path, each_in_turn, script=PREAMBLE + dedent(script), standbys=2, **settings)


def test_several_optimizers_and_a_loader(tmp_path: Path) -> None:
    """One optimizer steps every third time only, so that a joiner may have to take gradients too. The loader
    shuffles anew for every pass over its data and knows where it is. Batch norm differs from role to role."""
    check(
        tmp_path,
        """
        class Loader:
            def __init__(self, role):
                self.numbers = torch.Generator().manual_seed(role)
                self.data = torch.rand(70, 32, generator=self.numbers)
                self.order, self.position = [], 0

            def __iter__(self):
                return self

            def __next__(self):
                if self.position + 16 > len(self.order):
                    self.order, self.position = torch.randperm(70, generator=self.numbers).tolist(), 0
                rows = self.order[self.position : self.position + 16]
                self.position += 16
                return self.data[rows]

            def state_dict(self):
                return {"numbers": self.numbers.get_state(), "order": self.order, "position": self.position}

            def load_state_dict(self, state):
                self.numbers.set_state(state["numbers"])
                self.order, self.position = state["order"], state["position"]

        def train(job):
            inner = nn.Sequential(network(), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 4))
            model = DDP(inner, process_group=job.mesh["dp"].get_group(), broadcast_buffers=False)
            first, *_, last = inner
            adam, sgd = AdamW(first.parameters(), lr=1e-2), SGD(last.parameters(), lr=1e-2, momentum=0.9)
            steps, waves = StepLR(adam, 5, 0.9), CosineAnnealingLR(sgd, 10)
            loader = Loader(job.role)
            job.track(model=model, adam=adam, sgd=sgd, steps=steps, waves=waves, loader=loader)
            for step in job.steps(FOREVER):
                with step:
                    shards = list(step.shards(3))
                    for shard in shards:
                        with nullcontext() if shard is shards[-1] else model.no_sync():
                            loss = model(next(loader)).pow(2).mean() * shard.weight
                            loss.backward()
                    clip_grad_norm_(first.parameters(), 0.1)
                    for optim, schedule, often in ((adam, steps, 1), (sgd, waves, 3)):
                        if step.index % often == 0:
                            optim.step()
                            optim.zero_grad()
                            schedule.step()
                    job.log(loss=loss)
                pause(job)
        understudy.run(train)
        """,
    )


@pytest.mark.long
def test_mixed_precision(tmp_path: Path) -> None:
    """Every other step overflows: the scaler leaves the optimizer out and scales less from then on."""
    check(
        tmp_path,
        """
        def train(job):
            model = DDP(network(), process_group=job.mesh["dp"].get_group())
            optim = AdamW(model.parameters(), lr=1e-2)
            scaler = torch.amp.GradScaler("cpu", growth_factor=1.7, backoff_factor=0.6, growth_interval=1)
            schedule = OneCycleLR(optim, 1e-2, total_steps=FOREVER)
            job.track(model=model, optim=optim, scaler=scaler, schedule=schedule)
            for step in job.steps(FOREVER):
                with step:
                    overflows = step.index % 2 == 1
                    for shard in step.shards():
                        with torch.autocast("cpu", dtype=torch.bfloat16):
                            loss = model(batch(step, shard)).float().pow(2).mean()
                        scaler.scale(loss * float("inf") if overflows else loss).backward()
                    scaler.unscale_(optim)
                    clip_grad_norm_(model.parameters(), 1.0)
                    scale = scaler.get_scale()
                    scaler.step(optim)
                    scaler.update()
                    assert (scaler.get_scale() < scale) == overflows
                    optim.zero_grad()
                    if not overflows:
                        schedule.step()
                    job.log(loss=loss)
                pause(job)
        understudy.run(train)
        """,
    )


@pytest.mark.long
def test_a_compiled_model(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        def train(job):
            model = DDP(torch.compile(network(), backend=BACKEND), process_group=job.mesh["dp"].get_group())
            optim = AdamW(model.parameters(), lr=1e-2)
            job.track(model=model, optim=optim)
            for step in job.steps(FOREVER):
                with step:
                    for shard in step.shards():
                        loss = model(batch(step, shard)).pow(2).mean()
                        loss.backward()
                    optim.step()
                    optim.zero_grad()
                    job.log(loss=loss)
                assert torch._dynamo.utils.counters["stats"]["unique_graphs"], "nothing was compiled"
                pause(job)
        understudy.run(train)
        """,
        env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"},
    )
