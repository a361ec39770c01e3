"""Standbys that have rehearsed: they take roles of every kind in the same process, with everything warm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.running import RunningJob, run_job, same_bits
from tests.jobs.test_examples import EXAMPLES, SMALL, UNHURRIED

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]


async def ready(running: RunningJob, *kinds: set[int]) -> dict[str, Any]:
    """The standby, once it could take all roles of one of these kinds at once and has seen the others."""
    found: list[dict[str, Any]] = []

    async def there() -> bool:
        found[:] = [
            machine
            for machine in await running.machines()
            if machine["state"] == "standby"
            and set(machine["rehearsed"]) in kinds
            and all(kind & set(map(int, machine["rehearsal_seconds"])) for kind in kinds)
        ]
        return bool(found)

    await running.until(there, f"a standby that has rehearsed {kinds}")
    return found[0]


async def machine_of(running: RunningJob, role: int) -> dict[str, Any]:
    """The machine that has a role, once there is one and no change is under way."""
    found: list[dict[str, Any]] = []

    async def there() -> bool:
        job = await running.call("GET", "/job")
        found[:] = [machine for machine in await running.machines() if role in machine["roles"]]
        return bool(found) and job["status"] == "training" and job["change"] is None

    await running.until(there, f"a machine in role {role}")
    return found[0]


def test_a_standby_takes_roles_of_every_kind(tmp_path: Path) -> None:
    """A pipeline of two stages, two copies of each. First a machine dies in the stage that the standby rehearsed, in
    another copy; then one of the other stage. Both times the rehearsed worker takes over."""
    kinds = ({0, 1}, {2, 3})

    async def disturb(running: RunningJob) -> None:
        for same in (True, False):
            standby = await ready(running, *kinds)
            here = set(standby["rehearsed"])
            role = max(here) if same else min({0, 1, 2, 3} - here)
            victim = await machine_of(running, role)
            await running.kill_machine(victim["name"])

            async def promoted(name: str = standby["name"], role: int = role) -> bool:
                return bool((await machine_of(running, role))["name"] == name)

            await running.until(promoted, f"{standby['name']} in role {role}")
            assert (await machine_of(running, role))["pids"] == standby["pids"]

    settings: dict[str, Any] = {"machines": 4, "standbys": 1, "mesh": "pp=2,dp=2,tp=1", "repair": 0.5}
    script = UNHURRIED.format(example=str(EXAMPLES / "gpt_3d.py"))
    same_bits(tmp_path, disturb, script=script, args=SMALL, **settings)


ROUTED = """
import os, time, torch, understudy
import torch.distributed as dist
from pathlib import Path
from torch import nn

def strangers():
    \"\"\"The addresses outside of its machine that this process is connected to.\"\"\"
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    return [line.split()[2] for line in lines if line.split()[9] in inodes and line.split()[3] == "01"]

def exchange(rows, sent, got):
    out = rows.new_empty(sum(got), rows.shape[1])
    dist.all_to_all_single(out, rows, got, sent)
    return out

class Route(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sent, got):
        ctx.sizes = sent, got
        return exchange(rows.contiguous(), sent, got)

    @staticmethod
    def backward(ctx, grads):
        sent, got = ctx.sizes
        return exchange(grads.contiguous(), got, sent), None, None

def train(job):
    torch.manual_seed(1)
    gate, expert = nn.Linear(8, job.mesh.size()), nn.Linear(8, 8)
    optim = torch.optim.SGD([*gate.parameters(), *expert.parameters()], lr=0.05)
    job.track(gate=gate, expert=expert, optim=optim)
    notes = Path(__file__).with_name("strangers.txt")
    for step in job.steps(100_000):
        with step:
            rows = torch.rand(12, 8, generator=torch.Generator().manual_seed(1000 * step.index + job.role))
            scores = gate(rows).softmax(1)
            choice = (scores + 0.2 * torch.rand(12, job.mesh.size())).argmax(1)
            order = choice.argsort(stable=True)
            sent = choice.bincount(minlength=job.mesh.size())
            got = torch.empty_like(sent)
            dist.all_to_all_single(got, sent)
            sent, got = sent.tolist(), got.tolist()
            there = Route.apply(rows[order], sent, got)
            back = Route.apply(expert(there).tanh(), got, sent)
            loss = ((back * scores[order].max(1, keepdim=True).values) ** 2).mean()
            loss.backward()
            for parameter in gate.parameters():
                dist.all_reduce(parameter.grad)
            if job.rehearsing:
                with notes.open("a") as file:
                    file.write(f"{strangers()}\\n")
            optim.step()
            optim.zero_grad()
            job.log(loss=loss)
        if not job.rehearsing and not Path(__file__).with_name("hurry").exists():
            time.sleep(0.1)

understudy.run(train)
"""
"""Rows go to the experts that a gate chooses: the number of rows of an expert is known only in the step."""


def test_routes_that_depend_on_data_are_rehearsed_without_a_connection(tmp_path: Path) -> None:
    async def disturb(running: RunningJob) -> None:
        await ready(running, {0}, {1})
        answer = await running.replace("m1")
        assert answer["ok"], answer
        await running.step(int((await running.call("GET", "/job"))["step"]) + 2)
        told = [event["text"] for event in running.events if event["kind"] == "recorded"]
        assert len(told) == 2, told
        strayed = [event["text"] for event in running.events if event["kind"] == "rehearsal"]
        assert not strayed, strayed

    same_bits(tmp_path, disturb, script=ROUTED, standbys=1)
    seen = (tmp_path / "disturbed" / "strangers.txt").read_text().splitlines()
    assert len(seen) >= 6
    assert set(seen) == {"[]"}


GATHERED = """
import os, time, torch, understudy
import torch.distributed as dist
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def train(job):
    torch.manual_seed(1)
    model = DDP(nn.Linear(8, 8), process_group=job.mesh["dp"].get_group())
    optim = torch.optim.SGD(model.parameters(), lr=0.05)
    job.track(model=model, optim=optim)
    notes = Path(__file__).with_name("gathered.txt")
    for step in job.steps(100_000):
        with step:
            roles = [torch.zeros(1) for _ in range(job.mesh.size())]
            dist.all_gather(roles, torch.full((1,), float(job.role)))
            loss = model(torch.rand(4, 8)).pow(2).mean()
            loss.backward()
            optim.step()
            optim.zero_grad()
            job.log(loss=loss)
            if job.rehearsing:
                with notes.open("a") as file:
                    file.write(f"{os.getpid()} {[int(role) for role in roles]}\\n")
        if not job.rehearsing and not Path(__file__).with_name("hurry").exists():
            time.sleep(0.1)

understudy.run(train)
"""
"""Made-up values would be the same from all roles."""


def test_a_recording_outlives_the_machine_that_has_made_it(tmp_path: Path) -> None:
    pids: list[int] = []

    async def disturb(running: RunningJob) -> None:
        async def copied() -> bool:
            return any(event["kind"] == "copied" for event in running.events)

        await running.until(copied, "a copy of the recording")
        first = await ready(running, {0, 1})
        (recorded,) = [event for event in running.events if event["kind"] == "recorded"]
        assert recorded["data"]["role"] == 0
        noted = tmp_path / "disturbed" / "run" / f"metrics-{first['name']}.jsonl"
        assert noted.read_text() == "", "what is logged in a rehearsal was kept"
        await running.kill_machine("m0")

        async def promoted() -> bool:
            return bool((await machine_of(running, 0))["name"] == first["name"])

        await running.until(promoted, f"{first['name']} in role 0")
        pids.extend((await ready(running, {0, 1}))["pids"])

    same_bits(tmp_path, disturb, script=GATHERED, standbys=1, repair=0.5)
    notes = (tmp_path / "disturbed" / "gathered.txt").read_text().splitlines()
    heard = [note.partition(" ")[2] for note in notes if note.startswith(f"{pids[0]} ")]
    assert len(heard) >= 3
    assert set(heard) == {"[0, 1]"}


COMPILED = """
import time, torch, understudy
from pathlib import Path
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel as DDP

def train(job):
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    model = DDP(torch.compile(body, backend="aot_eager"), process_group=job.mesh["dp"].get_group())
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job.track(model=model, optim=optim)
    for step in job.steps(100_000):
        with step:
            loss = model(torch.rand(8, 16)).pow(2).mean()
            loss.backward()
            optim.step()
            optim.zero_grad()
            job.log(loss=loss, graphs=counters["stats"]["unique_graphs"], frames=counters["frames"]["total"])
        if not job.rehearsing and not Path(__file__).with_name("hurry").exists():
            time.sleep(0.1)

understudy.run(train)
"""


def test_nothing_is_compiled_after_the_switch(tmp_path: Path) -> None:
    """Not in the role that was rehearsed, and not in its twin."""

    async def disturb(running: RunningJob) -> None:
        for name in ("m0", "m1"):
            standby = await ready(running, {0, 1})
            answer = await running.replace(name)
            assert answer["ok"], answer
            await running.call("POST", "/standbys", {"type": "add-standby"})
            (playing,) = [machine for machine in await running.machines() if machine["name"] == standby["name"]]
            assert playing["pids"] == standby["pids"]
        await running.step(int((await running.call("GET", "/job"))["step"]) + 5)
        await running.call("POST", "/stop")

    result = run_job(tmp_path, disturb, script=COMPILED, standbys=1)
    assert result.ended.status == "stopped", result.ended.reason
    for machine in ("m2", "m3"):
        lines = (tmp_path / "run" / f"metrics-{machine}.jsonl").read_text().splitlines()
        compiled = {(entry["graphs"], entry["frames"]) for entry in map(json.loads, lines)}
        assert len(compiled) == 1, f"{machine} has compiled while it played: {compiled}"
        assert min(compiled)[0] > 0, "nothing was compiled at all"
