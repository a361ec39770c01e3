"""Whole jobs that a test disturbs: real agents, a real controller, real workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.agent.agent import BEAT_S
from understudy.launch.local import Ended, LocalJob
from understudy.launch.spec import make

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
    schedule = torch.optim.lr_scheduler.StepLR(optim, 5, 0.8)
    job.track(model=model, optim=optim, schedule=schedule)
    for step in job.steps(100_000):
        with step:
            for shard in step.shards(2):
                numbers = torch.Generator().manual_seed(1000 * step.index + shard.number)
                loss = model(torch.rand(16, 64, generator=numbers)).pow(2).mean() * shard.weight
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            optim.zero_grad()
            schedule.step()
            job.log(loss=loss)
        if not job.rehearsing and not Path(__file__).with_name("hurry").exists():
            time.sleep(0.1)  # the test is not done with the job yet

understudy.run(train)
"""


@dataclass
class Result:
    run_dir: Path
    ended: Ended
    losses: dict[tuple[int, int], float]
    """(role, step) → what the role logged."""
    events: list[dict[str, Any]]
    repeated: int

    @property
    def digests(self) -> dict[str, str]:
        found: dict[str, str] = self.ended.view["digests"]
        return found


class RunningJob:
    """A running job and what one can do to it."""

    def __init__(self, job: LocalJob, events: list[dict[str, Any]], news: asyncio.Event) -> None:
        self.job, self.events, self._news = job, events, news

    async def call(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self.job.client.call, method, path, body)

    async def until(self, true: Callable[[], Awaitable[bool]], what: str, limit: float = 150.0) -> None:
        """Looks again whenever the controller tells something, and after each beat, of which it tells nothing."""
        deadline = time.monotonic() + limit
        self._news.clear()
        while not await true():
            assert time.monotonic() < deadline, f"waited {limit} s for {what}"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), BEAT_S)
            self._news.clear()

    async def step(self, number: int) -> None:
        """Wait until training has come so far."""

        async def there() -> bool:
            return int((await self.call("GET", "/job"))["step"]) >= number

        await self.until(there, f"step {number}")

    async def phase(self, name: str) -> None:
        """Wait until a change has come to this phase."""

        async def there() -> bool:
            change = (await self.call("GET", "/job"))["change"]
            seen = [event["data"]["phase"] for event in self.events if event["kind"] == "phase"]
            return name in seen or (change is not None and str(change["phase"]) == name)

        await self.until(there, f"phase {name}")

    async def standbys(self, count: int) -> None:
        """Wait until so many standbys are ready."""

        async def there() -> bool:
            ready = [m for m in await self.machines() if m["state"] == "standby" and all(m["pids"])]
            return len(ready) >= count

        await self.until(there, f"{count} standbys")

    async def machines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.call("GET", "/machines")
        return found

    async def ask(self, *machines: str, **more: object) -> str:
        return str((await self.call("POST", "/replace", {"type": "replace", "machines": machines, **more}))["id"])

    async def answer(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def there() -> bool:
            found.update(await asyncio.to_thread(self.job.client.answer, id, 10.0))
            return bool(found["done"])

        await self.until(there, f"the answer to {id}")
        return found

    async def replace(self, *machines: str, **more: object) -> dict[str, Any]:
        return await self.answer(await self.ask(*machines, **more))

    async def kill_worker(self, machine: str) -> None:
        for known in await self.machines():
            if known["name"] == machine:
                os.kill(known["pids"][0], signal.SIGKILL)

    async def kill_machine(self, name: str) -> None:
        self.job.agents[name].kill()


Disturbance = Callable[[RunningJob], Awaitable[None]]


async def _nothing(running: RunningJob) -> None:
    pass


def losses_in(folder: Path) -> tuple[dict[tuple[int, int], float], int]:
    """What all machines have logged, and how often more than one did; they never disagree."""
    losses: dict[tuple[int, int], float] = {}
    repeated = 0
    for file in folder.rglob("metrics-*.jsonl"):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            if "loss" not in entry:
                continue  # in a pipeline, only the last stage has it
            key = (entry["role"], entry["step"])
            if key in losses:
                assert losses[key] == entry["loss"]
                repeated += 1
            losses[key] = entry["loss"]
    return losses, repeated


def run_job(folder: Path, disturb: Disturbance = _nothing, *, script: str = SCRIPT, **settings: Any) -> Result:
    """Run a job from its beginning to its end while `disturb` does something to it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.py"
    path.write_text(script)
    spec = make({"machines": 2, **settings, "script": str(path), "run_dir": str(folder / "run")})
    events: list[dict[str, Any]] = []

    async def run() -> Ended:
        news = asyncio.Event()

        def told(event: dict[str, Any]) -> None:
            events.append(event)
            news.set()

        async with LocalJob(spec, on_line=lambda line: None, on_event=told) as job:
            end = asyncio.ensure_future(job.wait())
            disturbing = asyncio.ensure_future(disturb(RunningJob(job, events, news)))
            try:
                await asyncio.wait([end, disturbing], return_when=asyncio.FIRST_COMPLETED)
                if disturbing.done():
                    disturbing.result()
                    (folder / "hurry").touch()
                return await end
            finally:
                for task in (end, disturbing):
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await task

    ended = asyncio.run(run())
    losses, repeated = losses_in(folder / "run")
    return Result(folder / "run", ended, losses, events, repeated)


def same_bits(folder: Path, disturb: Disturbance, **settings: Any) -> None:
    """Stop a job when `disturb` is through with it; another one of as many steps, undisturbed, must end in the same
    state after the same losses."""

    async def until_directed(running: RunningJob) -> None:
        await disturb(running)
        await running.call("POST", "/stop")

    disturbed = run_job(folder / "disturbed", until_directed, **settings)
    assert disturbed.ended.status == "stopped", disturbed.ended.reason
    steps = int(disturbed.ended.view["step"])
    alone = {name: value for name, value in settings.items() if name not in ("checkpoint", "checkpoint_every")}
    undisturbed = run_job(folder / "undisturbed", **{**alone, "standbys": 0, "copy_every": 0, "steps": steps})
    assert undisturbed.ended.status == "finished", undisturbed.ended.reason
    assert {step for _, step in undisturbed.losses} == set(range(steps))
    differing = dict(disturbed.losses.items() - undisturbed.losses.items())
    assert not differing, f"losses differ from step {min(step for _, step in differing)} on"
    missing = undisturbed.losses.keys() - disturbed.losses.keys()
    lost = sum(event["kind"] == "lost" for event in disturbed.events)  # each with the last notes of its workers
    assert len(missing) <= lost * int(settings.get("nproc", 1)), f"no agent has noted {missing}"
    assert disturbed.digests == undisturbed.digests, "same losses, but another state at the end"
