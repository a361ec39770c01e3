"""A worker that becomes slow in a running job is announced by name. That no other worker is announced is tested without
real processes, since a real computer may be slow for other reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.running import Disturbance, RunningJob, run_job

pytestmark = [pytest.mark.job, pytest.mark.timeout(240)]

FLAG = "slow"
SCRIPT = """
import time, torch, understudy
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Work(nn.Linear):
    def forward(self, x):
        time.sleep(0.03)  # whatever else this computer does
        return super().forward(x)

def train(job):
    model = DDP(Work(8, 8))
    optim = torch.optim.SGD(model.parameters(), lr=1e-3)
    job.track(model=model, optim=optim)
    for step in job.steps(100_000):
        with step:
            for shard in step.shards():
                time.sleep(0.05 if job.role == 1 and Path("FLAG").exists() else 0.02)  # to load what it computes
                model(torch.ones(4, 8)).sum().backward()
            optim.step()
            optim.zero_grad()

understudy.run(train)
"""


def _script(folder: Path) -> str:
    return SCRIPT.replace("FLAG", str(folder / FLAG))


def _told(folder: Path, slow_down: Disturbance) -> dict[str, Any]:
    """What is told of m1, which becomes slow after some steps."""

    async def disturb(running: RunningJob) -> None:
        await running.step(25)
        await slow_down(running)

        async def told() -> bool:
            return any(event["kind"] == "straggler" and event["data"]["machine"] == "m1" for event in running.events)

        await running.until(told, "m1 to be told of")
        assert "m1" in [each["machine"] for each in (await running.call("GET", "/job"))["stragglers"]]
        await running.call("POST", "/stop")

    result = run_job(folder, disturb, script=_script(folder), machines=3, chaos=True)
    assert result.ended.status == "stopped", result.ended.reason
    (event,) = [event for event in result.events if event["kind"] == "straggler" and event["data"]["machine"] == "m1"]
    assert event["data"]["role"] == 1
    assert event["data"]["ratio"] > 1.1
    assert event["text"].startswith("m1 role 1: ")
    return event


def test_a_worker_that_becomes_slow_is_told_of(tmp_path: Path) -> None:
    async def slow_down(running: RunningJob) -> None:
        slow = next(machine for machine in await running.machines() if machine["name"] == "m1")
        options = {"uid": slow["workers"][0], "options": {"factor": 1.4}}
        body = {"type": "extension", "kind": "slow", "machine": "m1", **options}
        await running.call("POST", "/extensions", body)

    event = _told(tmp_path, slow_down)
    assert event["data"]["part"] in ("forward", "compute")  # the update may be as long, on a busy computer


@pytest.mark.long
def test_a_worker_that_loads_its_data_slowly_is_announced(tmp_path: Path) -> None:
    async def slow_down(running: RunningJob) -> None:
        (tmp_path / FLAG).touch()

    event = _told(tmp_path, slow_down)
    assert event["data"]["part"] == "data"
    assert event["text"].startswith("m1 role 1: data ")


def test_the_steward_replaces_a_slow_machine(tmp_path: Path) -> None:
    async def disturb(running: RunningJob) -> None:
        await running.standbys(1)
        await running.step(25)
        (tmp_path / FLAG).touch()

        async def gone() -> bool:
            return any(event["kind"] == "released" and event["data"]["machine"] == "m1" for event in running.events)

        await running.until(gone, "m1 to be replaced")
        await running.call("POST", "/stop")

    settings = {"machines": 3, "standbys": 1, "pool": 1, "cool_down": 1.0, "steward": "act", "steward_looks": 1}
    result = run_job(tmp_path, disturb, script=_script(tmp_path), **settings)
    assert result.ended.status == "stopped", result.ended.reason
    said = [event["text"] for event in result.events if event["kind"] == "steward"]
    assert any(text.startswith("replaces m1: m1 role 1: ") for text in said), said
    assert not [event for event in result.events if event["kind"] in ("halt", "lost")]
