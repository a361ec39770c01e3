"""Replicas are lost in whole jobs, and training continues without them until they are refilled. The job ends with the
bits of an undisturbed one, and every micro-shard of every step has counted exactly once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.jobs.running import Result, RunningJob, run_job
from tests.jobs.test_examples import EXAMPLES, SMALL, UNHURRIED
from understudy.data import cut
from understudy.verify.chaos.invariants import applied_once, read_records

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

SCRIPT = """
import time, torch, understudy
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MICRO = 3

class Counting(nn.Module):
    # one parameter for each micro-shard of a step: its gradient says how often that has counted
    def __init__(self, count):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.1), nn.Linear(128, 8))
        self.counts = nn.Parameter(torch.zeros(count))

    def forward(self, number, inputs):
        return self.body(inputs).pow(2).mean() + self.counts[number]

def train(job):
    torch.manual_seed(1)
    replicas = job.mesh.size()
    model = DDP(Counting(replicas * MICRO), process_group=job.mesh["dp"].get_group())
    counts, body = model.module.counts, model.module.body
    optim = torch.optim.AdamW(body.parameters(), lr=1e-2)
    count = torch.optim.SGD([counts], lr=replicas * MICRO)
    job.track(model=model, optim=optim, count=count)
    for step in job.steps(100_000):
        with step:
            for shard in step.shards(MICRO):
                numbers = torch.Generator().manual_seed(1000 * step.index + shard.number)
                loss = model(shard.number, torch.rand(16, 64, generator=numbers))
                (loss * shard.weight).backward()
                job.log(loss=loss)
                if not job.rehearsing and not Path(__file__).with_name("hurry").exists():
                    time.sleep(0.03)  # the test is not done with the job yet
            nn.utils.clip_grad_norm_(body.parameters(), 1.0)
            optim.step()
            count.step()
            optim.zero_grad()
            count.zero_grad()
            if not job.rehearsing:
                job.log(least=counts.min(), most=counts.max())
                if float(counts.min()) != -step.index - 1 or float(counts.max()) != -step.index - 1:
                    raise ValueError(f"step {step.index}: a micro-shard counts {counts.tolist()}")

understudy.run(train)
"""

LOCAL = (
    SCRIPT.replace("import time,", "import os, sys, time,")
    .replace("MICRO = 3\n", "MICRO = 3\nSOURCE, MASK = sys.argv[1:]\nfrom understudy.data import Local, Tokens\n")
    .replace(
        "    for step in job.steps",
        """    local = Local(Path(__file__).with_name(f"disk-{os.getpid()}"), SOURCE, MASK, job.replicas[1])
    data = Tokens(local, context=64, batch=16, seed=job.seed, prefetch=1)
    read = Path(__file__).with_name(f"read-{os.getpid()}").open("a", buffering=1)
    for step in job.steps""",
    )
    .replace(
        "                numbers = torch.Generator().manual_seed(1000 * step.index + shard.number)\n",
        """                inputs = data.batch(step.index, shard)[0] / 65536
                if not job.rehearsing:
                    print(step.index, shard.number, file=read)
""",
    )
    .replace("torch.rand(16, 64, generator=numbers)", "inputs")
)
"""The same with tokens, of which each worker has its replica's shards only, in a folder of its own. It notes what it
reads."""


async def whole(running: RunningJob) -> None:
    """Wait until no role is vacant."""

    async def there() -> bool:
        job = await running.call("GET", "/job")
        return bool(job["status"] == "training" and not job["vacant"] and job["change"] is None)

    await running.until(there, "all replicas")


async def more_steps(running: RunningJob, count: int) -> None:
    await running.step(int((await running.call("GET", "/job"))["step"]) + count)


async def masked(running: RunningJob, count: int) -> None:
    """Wait until so many have been masked."""

    async def there() -> bool:
        return [event["kind"] for event in running.events].count("masked") >= count

    await running.until(there, f"masking {count}")


def compare(disturbed: Result, folder: Path, **settings: Any) -> None:
    """With another job of as many steps, undisturbed."""
    assert disturbed.ended.status == "stopped", disturbed.ended.reason
    steps = int(disturbed.ended.view["step"])
    undisturbed = run_job(folder, **{**settings, "standbys": 0, "steps": steps})
    assert undisturbed.ended.status == "finished", undisturbed.ended.reason
    differing = dict(disturbed.losses.items() - undisturbed.losses.items())
    assert not differing, f"losses differ from step {min(step for _, step in differing)} on"
    assert {step for _, step in disturbed.losses} == set(range(steps))
    assert disturbed.digests == undisturbed.digests, "same losses, but another state at the end"
    assert applied_once(read_records(disturbed.run_dir), disturbed.events, len(undisturbed.digests), steps) == []


def test_one_two_and_three_of_four_are_lost(tmp_path: Path) -> None:
    chance = random.Random(7)

    async def disturb(running: RunningJob) -> None:
        await running.step(3)
        for lost in (1, 2, 3):
            before = sum(event["kind"] == "masked" for event in running.events)
            roster = await running.call("GET", "/roster")
            for entry in chance.sample(roster, lost):
                await running.kill_worker(entry["machine"])
            await masked(running, before + 1)
            await more_steps(running, 2)
            await whole(running)
            await more_steps(running, 2)
        await running.call("POST", "/stop")

    settings: dict[str, Any] = {
        "script": SCRIPT,
        "machines": 4,
        "standbys": 1,
        "mask": "anywhere",
        "deterministic": True,
        "quarantine": 9,
    }
    disturbed = run_job(tmp_path / "disturbed", disturb, **settings)
    assert any(event["kind"] == "change" and event["data"]["kind"] == "refill" for event in disturbed.events)
    compare(disturbed, tmp_path / "undisturbed", **settings)


def cut_for(folder: Path, replicas: int) -> Path:
    np.arange(replicas * 4096).astype("<u2").tofile(folder / "tokens")
    cut(folder / "tokens", folder / "source", replicas)
    return folder / "source"


async def kill_role(running: RunningJob, role: int) -> None:
    roster = await running.call("GET", "/roster")
    (machine,) = [entry["machine"] for entry in roster if entry["role"] == role]
    await running.kill_worker(machine)


@pytest.mark.parametrize(
    ("mask", "order"),
    [
        pytest.param("anywhere", (0, 2, 1), id="anywhere", marks=pytest.mark.long),
        pytest.param("spare:r=2", (3, 1), id="spare"),
    ],
)
def test_replicas_are_lost_without_refill_and_data_is_local(mask: str, order: tuple[int, ...], tmp_path: Path) -> None:
    """One of four is lost after the other, at random moments, until no more can be done without."""
    chance = random.Random(5)

    async def disturb(running: RunningJob) -> None:
        await running.step(3)
        for number, role in enumerate(order, 1):
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            await kill_role(running, role)
            await masked(running, number)
            await more_steps(running, 3)
        await running.call("POST", "/stop")

    settings: dict[str, Any] = {
        "script": LOCAL,
        "args": (str(cut_for(tmp_path, 4)), mask),
        "machines": 4,
        "mask": mask,
        "deterministic": True,
        "quarantine": 1,  # a machine that has failed is not readmitted, and no other one is asked for
        "no_standby": "stop",
        "repair": 0,
    }
    folder = tmp_path / "disturbed"
    disturbed = run_job(folder, disturb, **settings)
    assert not [event["text"] for event in disturbed.events if event["kind"] == "change"]
    last = [event["text"] for event in disturbed.events if event["kind"] == "masked"][-1]
    assert last.startswith(f"{len(order)} of 4 replicas vacant")
    assert "; 4 shards have a single live holder: replica " in last
    lines = [tuple(map(int, line.split())) for file in folder.glob("read-*") for line in file.read_text().splitlines()]
    read, steps = Counter(lines), int(disturbed.ended.view["step"])
    assert read.keys() >= {(step, number) for step in range(steps) for number in range(12)}
    assert sum(count > 1 for count in read.values()) <= 12 * len(order), "only interrupted steps are read again"
    compare(disturbed, tmp_path / "undisturbed", **settings)


def test_a_job_waits_for_a_shard_without_a_holder(tmp_path: Path) -> None:
    """Shard 0 is lost with its only two holders. The others have all of the state, so no step is lost."""

    async def disturb(running: RunningJob) -> None:
        await running.step(3)
        await kill_role(running, 0)
        await kill_role(running, 1)

        async def waits() -> bool:
            return any(event["kind"] == "policy" and "holds shard 0 " in event["text"] for event in running.events)

        await running.until(waits, "the wipe-out")
        await whole(running)
        await more_steps(running, 2)
        await running.call("POST", "/stop")

    settings: dict[str, Any] = {
        "script": LOCAL,
        "args": (str(cut_for(tmp_path, 4)), "spare:r=2"),
        "machines": 4,
        "mask": "spare:r=2",
        "deterministic": True,
        "quarantine": 9,
    }
    disturbed = run_job(tmp_path / "disturbed", disturb, **settings)
    assert not [event for event in disturbed.events if event["kind"] == "decided" and event["data"]["repeated"]]
    compare(disturbed, tmp_path / "undisturbed", **settings)


@pytest.mark.long
def test_a_machine_is_lost_for_good_and_another_one_while_it_is_refilled(tmp_path: Path) -> None:
    async def disturb(running: RunningJob) -> None:
        await running.step(3)
        await running.kill_machine("m1")
        await masked(running, 1)
        await running.phase("prepare")
        await running.kill_machine("m2")
        await masked(running, 2)
        await more_steps(running, 3)
        await whole(running)
        await running.call("POST", "/stop")

    settings: dict[str, Any] = {
        "script": SCRIPT,
        "machines": 3,
        "repair": 0,
        "no_standby": "shrink",
        "deterministic": True,
    }
    compare(run_job(tmp_path / "disturbed", disturb, **settings), tmp_path / "undisturbed", **settings)


def test_a_stage_of_a_pipeline_is_lost_and_the_other_one_parks(tmp_path: Path) -> None:
    async def disturb(running: RunningJob) -> None:
        await running.step(2)
        await running.kill_machine("m0")
        await masked(running, 1)
        states = {machine["name"]: machine["state"] for machine in await running.machines()}
        assert states["m1"] == "parked"
        await more_steps(running, 3)
        await whole(running)
        await more_steps(running, 2)
        await running.call("POST", "/stop")

    settings: dict[str, Any] = {
        "script": UNHURRIED.format(example=str(EXAMPLES / "gpt_3d.py")),
        "args": (*SMALL, "--micro", "2"),
        "machines": 4,
        "mesh": "dp=2,pp=2,tp=1",
        "mask": "anywhere",
        "deterministic": True,
        "repair": 0,
    }
    compare(run_job(tmp_path / "disturbed", disturb, **settings), tmp_path / "undisturbed", **settings)
