"""Scripts that exchange objects and load checkpoints before the first step: joiners rehearse all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict_saver

from tests.jobs.running import RunningJob, run_job, same_bits

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

SCRIPT = """
import os, socket, time, torch, understudy
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pathlib import Path
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

HERE = Path(__file__).parent
EARLIER, SHARDED, EARLY = Path(__EARLIER__), __SHARDED__, __EARLY__

def train(job):
    master = dist.get_rank() == 0
    chosen = [{"rate": 0.01, "width": 24, "by": f"{os.getpid()} {'x' * (os.getpid() % 50)}"} if master else None]
    dist.broadcast_object_list(chosen, src=0)
    places = [None] * dist.get_world_size()
    dist.all_gather_object(places, "x" * (1 + os.getpid() % 50))
    assert all(places)
    seeds = [None]
    dist.scatter_object_list(seeds, [{"seed": 5}] * len(places) if dist.get_rank() == 0 else None, src=0)
    torch.manual_seed(seeds[0]["seed"])
    model = nn.Sequential(nn.Linear(16, chosen[0]["width"]), nn.Tanh(), nn.Linear(chosen[0]["width"], 4))
    loaded = get_model_state_dict(model)
    dcp.load(loaded, checkpoint_id=EARLIER / "dcp")
    set_model_state_dict(model, loaded)
    model = fully_shard(model, mesh=job.mesh["dp"]) if SHARDED else DDP(model)
    full = torch.load(EARLIER / "full.pt") if dist.get_rank() == 0 else {}
    how = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(model, full, options=how)
    optim = torch.optim.AdamW(model.parameters(), lr=chosen[0]["rate"])
    job.track(model=model, optim=optim)
    for step in job.steps(100_000):
        with step:
            lengths = [None] * len(places)
            dist.all_gather_object(lengths, 3 + step.index % 4)
            if EARLY and step.index == 1 and job.role == 1 and not job.rehearsing and not (EARLIER / "died").exists():
                (EARLIER / "died").touch()
                os.kill(os.getpid(), 9)
            for shard in step.shards():
                numbers = torch.Generator().manual_seed(1000 * step.index + shard.number)
                batch = torch.rand(sum(lengths), 16, generator=numbers)
                loss = model(batch).pow(2).mean() * shard.weight
                loss.backward()
            optim.step()
            optim.zero_grad()
            job.log(loss=loss)
        if not job.rehearsing and not (HERE / "hurry").exists():
            time.sleep(0.1)  # the test is not done with the job yet
understudy.run(train)
"""


def script(folder: Path, *, sharded: bool = False, early: bool = False) -> str:
    """The script, and the checkpoints that it loads. `early`: a worker dies in the second step."""
    torch.manual_seed(3)
    earlier = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.Tanh(), torch.nn.Linear(24, 4)).state_dict()
    state_dict_saver.save(earlier, checkpoint_id=folder / "dcp", no_dist=True)
    torch.save({"2.bias": torch.full((4,), 0.5)}, folder / "full.pt")
    values = {"__EARLIER__": str(folder), "__SHARDED__": sharded, "__EARLY__": early}
    text = SCRIPT
    for name, value in values.items():
        text = text.replace(name, repr(value))
    return text


def failures(events: list[dict[str, Any]]) -> list[str]:
    """What went wrong in rehearsals."""
    return [event["text"] for event in events if event["kind"] == "rehearsal"]


@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp"])
def test_objects_and_checkpoints_before_the_first_step(tmp_path: Path, sharded: bool) -> None:
    """The roles of FSDP2 are no twins: each joiner needs what its own role was sent."""
    seen: list[dict[str, Any]] = []

    async def replace_then_kill(running: RunningJob) -> None:
        await running.standbys(2)
        await running.step(4)
        answer = await running.replace("m1")
        assert answer["ok"], answer
        begun = int((await running.call("GET", "/job"))["step"])

        async def copied() -> bool:
            return int((await running.call("GET", "/job"))["copies"]["step"]) > begun

        if sharded:  # the copy of role 0 was on m1
            await running.until(copied, "a copy on the other machines")
        killed = len(running.events)
        await running.kill_worker("m0")

        async def recovered() -> bool:
            return any(event["kind"] == "seated" and "has role 0" in event["text"] for event in running.events[killed:])

        await running.until(recovered, "the first step of the joiner")
        await running.step(int((await running.call("GET", "/job"))["step"]) + 3)
        seen.extend(running.events)

    copies = {"copy_every": 1} if sharded else {}
    same_bits(tmp_path, replace_then_kill, script=script(tmp_path, sharded=sharded), standbys=2, **copies)
    assert failures(seen) == []


def test_a_death_while_the_first_steps_are_recorded(tmp_path: Path) -> None:
    """The joiner has the recording of the build, which is complete."""

    async def later(running: RunningJob) -> None:
        await running.step(6)
        assert "role 0 has recorded how the model is built" in str(running.events)

    same_bits(tmp_path, later, script=script(tmp_path, early=True), standbys=1)
    assert (tmp_path / "died").exists()


def test_without_a_recording_a_rehearsal_ends_in_words(tmp_path: Path) -> None:
    """The job goes on; the standby is of no use, and the event says why and what to do."""

    async def told(running: RunningJob) -> None:
        async def there() -> bool:
            return bool(failures(running.events))

        await running.until(there, "the end of the rehearsal")
        await running.call("POST", "/stop")

    alone = script(tmp_path).replace("master = dist.get_rank() == 0", "master = dist.get_rank() == 1")
    alone = alone.replace("chosen, src=0", "chosen, src=1")
    found = run_job(tmp_path, told, script=alone, standbys=1, recording_limit=0)
    assert found.ended.status == "stopped", found.ended.reason
    text = failures(found.events)[0]
    assert "broadcast_object_list in group" in text
    assert "--recording-limit" in text
    assert "(train.py, line " in text
