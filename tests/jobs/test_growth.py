"""Ten replacements in a hundred steps: a stayer ends with no more memory, descriptors or threads than before."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.jobs.running import RunningJob, run_job

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

STEPS = 100
TIMES = 10
WARM = 2
"""Replacements after which everything that is only made once has been made."""
LEEWAY = 3 << 20
"""Bytes by which a Python process differs from one look to the next."""

SCRIPT = """
import time, torch, understudy
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def train(job):
    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 8)))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.track(model=model, optim=optim)
    for step in job.steps():
        with step:
            loss = model(torch.rand(8, 256)).pow(2).mean()
            loss.backward()
            optim.step()
            optim.zero_grad()
            job.log(loss=loss)
        pause = Path(__file__).with_name("pause")
        if not job.rehearsing and pause.exists():
            time.sleep(float(pause.read_text()))

understudy.run(train)
"""


class Holdings(NamedTuple):
    memory: int
    descriptors: int
    threads: int


def holdings(pid: int) -> Holdings:
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return Holdings(resident, *(len(list(Path(f"/proc/{pid}/{kind}").iterdir())) for kind in ("fd", "task")))


async def at_rest(pids: dict[str, int], before: dict[str, Holdings], limit: float) -> dict[str, Holdings]:
    """What they hold, once links of the former generation are closed, which happens beside training."""
    for _ in range(int(limit / 0.25)):
        await asyncio.sleep(0.25)
        found = {who: holdings(pid) for who, pid in pids.items()}
        if all(found[who].descriptors <= held.descriptors for who, held in before.items()):
            break
    return found


@pytest.mark.long
def test_ten_replacements_in_a_hundred_steps(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    pause = folder / "pause"
    seen: list[dict[str, Holdings]] = []

    def pace(seconds: float) -> None:
        part = folder / "pause.part"
        part.write_text(str(seconds))
        part.rename(pause)

    async def replace(running: RunningJob) -> None:
        await running.standbys(1)
        (leaver,) = [entry["machine"] for entry in await running.call("GET", "/roster") if entry["machine"] != "m0"]
        if len(seen) < TIMES - 1:
            await running.call("POST", "/standbys", {"type": "add-standby"})  # for the next time
        pace(1.5)  # few steps go by while the joiner rehearses
        before = len(running.events)
        id = await running.ask(leaver)

        async def rehearsed() -> bool:
            return any(event["kind"] == "phase" and event["text"] == "prepare" for event in running.events[before:])

        await running.until(rehearsed, f"the end of rehearsal {len(seen) + 1}")
        pace(0.02)
        answer = await running.answer(id)
        assert answer["ok"], answer

    async def disturb(running: RunningJob) -> None:
        pace(1.5)
        await running.step(1)
        (stayer,) = [machine for machine in await running.machines() if machine["name"] == "m0"]
        assert running.job.controller is not None
        pids = {
            "the stayer": stayer["pids"][0],
            "its agent": running.job.agents["m0"].pid,
            "the controller": running.job.controller.pid,
        }
        for _ in range(TIMES):
            await replace(running)
            pace(1.5)
            last = len(seen) == TIMES - 1  # what counts; before, training must not come to its end meanwhile
            seen.append(await at_rest(pids, seen[WARM - 1] if len(seen) >= WARM else {}, 20.0 if last else 3.0))
        pause.unlink()

    result = run_job(folder, disturb, script=SCRIPT, steps=STEPS, standbys=1)
    assert result.ended.status == "finished", result.ended.reason
    assert len(seen) == TIMES
    for who in seen[0]:
        first, last = seen[WARM - 1][who], seen[-1][who]
        story = f"{who}, after each replacement: {[each[who] for each in seen]}"
        assert last.threads <= first.threads, story
        assert last.descriptors <= first.descriptors, story
        assert last.memory <= first.memory + LEEWAY, story
