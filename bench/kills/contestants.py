"""The jobs that lose a worker or a machine: how each system is started, and how a lost place is filled again."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

from understudy_bench.harness.job import BenchJob
from understudy_bench.harness.marks import MarkReader
from understudy_bench.harness.processes import Command, CommandFailed, rests, torchrun
from understudy_bench.kills.cost import ALONE
from understudy_bench.scripts import LIGHTHOUSE, OURS, RESTARTED, TORCHFT

Loss = Literal["worker", "machine"]

LIMIT_S, LOOK_S = 180.0, 0.02


@dataclass(frozen=True)
class Size:
    """The number of workers that train, and what they train (one of `WORKS`)."""

    places: int
    work: str

    @property
    def options(self) -> tuple[str, ...]:
        return ("--work", self.work)


PAIR = Size(2, "gpt")


class Contestant(Protocol):
    """A job that trains. When the context ends, none of its processes and files is left."""

    size: Size
    marks: MarkReader

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def check(self) -> None:
        """Raise `CommandFailed` if the job cannot continue."""

    def with_output(self, what: str) -> str:
        """An error message: `what` is wrong, and the job's last output lines."""

    async def prepare(self) -> None:
        """Wait until the job is ready for the next death: complete, and its standby, if any, idle."""

    def targets(self, loss: Loss) -> Sequence[int]:
        """The places that can be lost in this way."""

    async def victims(self, place: int, loss: Loss) -> list[int]:
        """The ids of the processes that die with this loss."""

    async def lost(self, place: int, loss: Loss) -> None:
        """Called right after the death: start what a scheduler that needs no time would start."""


async def until(job: Contestant, what: str, look: Callable[[], bool], every: float = LOOK_S) -> None:
    """Wait until `look` is true; raise `CommandFailed` if the job fails or the limit passes before."""
    late = time.monotonic() + LIMIT_S
    while not look():
        job.check()
        if time.monotonic() > late:
            raise CommandFailed(job.with_output(f"has not done this within {LIMIT_S:g} s: {what}"))
        await asyncio.sleep(every)


# -- understudy --------------------------------------------------------------------------------------------------------


class UnderstudyJob:
    """A job of `understudy run`, one worker per machine, with a way to fill a lost place."""

    def __init__(self, folder: Path, size: Size, refill: Refill) -> None:
        marks = folder / "marks"
        marks.mkdir(parents=True)
        self.size, self.marks = size, MarkReader(marks)
        self._refill = refill
        args = ("--marks", str(marks), *size.options)
        options = {"script": OURS, "args": args, "run_dir": str(folder / "run"), "name": "bench", "threads": 1}
        self.job = BenchJob({**options, "machines": size.places, **refill.settings})

    async def __aenter__(self) -> Self:
        await self.job.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.job.__aexit__(*exc)

    def check(self) -> None:
        self.job.check()

    def with_output(self, what: str) -> str:
        return self.job.with_output(what)

    async def prepare(self) -> None:
        await self._refill.prepare(self)

    def targets(self, loss: Loss) -> Sequence[int]:
        return range(self.size.places)

    async def victims(self, place: int, loss: Loss) -> list[int]:
        machine = await self.job.machine_of(place)
        if loss == "machine":
            return self.job.processes_of(machine["name"])
        return [machine["pids"][machine["roles"].index(place)]]

    async def lost(self, place: int, loss: Loss) -> None:
        if self._refill.lost is not None:
            await self._refill.lost(self, place)


@dataclass(frozen=True)
class Refill:
    """A way to fill a lost place: the job's settings, and what the benchmark does before and after a death."""

    settings: Mapping[str, object]
    prepare: Callable[[UnderstudyJob], Awaitable[None]]
    lost: Callable[[UnderstudyJob, int], Awaitable[None]] | None = None
    """None: the runtime does it all."""


async def _standby_rehearsed(contestant: UnderstudyJob) -> None:
    """Wait for an idle standby that has rehearsed every role."""
    job, roles = contestant.job, set(range(contestant.size.places))

    async def ready() -> bool | None:
        there = [each for each in await job.machines() if set(each["rehearsed"]) >= roles]
        return True if there and await rests(job.processes_of(there[0]["name"])) else None

    await job.until("a standby that is ready", ready)


async def _complete(contestant: UnderstudyJob) -> None:
    """Wait until no role is vacant and no change is in progress."""

    async def complete() -> bool | None:
        view = await contestant.job.call("GET", "/job")
        return True if view["status"] == "training" and not (view["vacant"] or view["change"]) else None

    await contestant.job.until("all replicas", complete)


async def _complete_with_standby(contestant: UnderstudyJob) -> None:
    """Wait until no role is vacant and an idle standby, which has not rehearsed, is there."""
    await _complete(contestant)
    job = contestant.job

    async def ready() -> bool | None:
        machines = await job.machines()
        standbys = [each for each in machines if each["state"] == "standby" and all(each["pids"])]
        if not standbys and any(each["state"] == "quarantined" for each in machines):
            await _readmit(job)
        return True if standbys and await rests(job.processes_of(standbys[0]["name"])) else None

    await job.until("a standby", ready)


async def _readmit_later(contestant: UnderstudyJob, place: int) -> None:
    """Readmit the quarantined machine after the survivors have completed enough steps without it."""
    at = time.time()
    others = set(range(contestant.size.places)) - {place}

    def enough() -> bool:
        ends = [mark.place for mark in contestant.marks.ends() if mark.at > at]
        return all(ends.count(other) >= ALONE + 3 for other in others)

    await until(contestant, "steps without the dead worker", enough, 0.1)
    await _readmit(contestant.job)


async def _readmit(job: BenchJob) -> None:
    """Make the quarantined machine a standby."""

    async def quarantined() -> list[str] | None:
        return [each["name"] for each in await job.machines() if each["state"] == "quarantined"] or None

    for name in await job.until("a machine in quarantine", quarantined):
        await job.call("POST", f"/machines/{name}/readmit")


_MASKED: Mapping[str, object] = {"mask": "anywhere", "quarantine": 1, "no_standby": "stop", "repair": 0.0}


def recovering(folder: Path, size: Size = PAIR) -> Contestant:
    """One standby that can take any role at once."""
    refill = Refill({"standbys": 1, "quarantine": 1000}, _standby_rehearsed)
    return UnderstudyJob(folder, size, refill)


def masking(folder: Path, size: Size = PAIR) -> Contestant:
    """No standby: the survivors mask the dead replica.

    Its machine is quarantined after one failure and readmitted after the survivors have completed enough steps.
    """
    return UnderstudyJob(folder, size, Refill(_MASKED, _complete, _readmit_later))


def refilling(folder: Path, size: Size = PAIR) -> Contestant:
    """Masking with a standby that has not rehearsed: it rehearses while the survivors train, then joins.

    The dead worker's machine becomes the next standby.
    """
    return UnderstudyJob(folder, size, Refill({**_MASKED, "standbys": 1, "warm": 0}, _complete_with_standby))


# -- torchrun and torchft ----------------------------------------------------------------------------------------------

CHECKPOINT_EVERY = 10
KEEP_ALIVE = "keep_alive_interval=1,keep_alive_max_attempt=2"
"""torchrun's: a node that is silent for two seconds is lost; by default, for fifteen."""
RESTARTS = "--max-restarts=1000"

HEARTBEAT_MS, TICK_MS, TIMEOUT_S = 1000, 50, 2.0
"""torchft's: silence after which a replica is lost, period of the lighthouse's check, limit of a collective."""
JOIN_MS = 300
"""How long torchft's lighthouse waits for replicas that are alive and late. Measured with `bench mask`'s jobs, in which
two workers die, on two cores: with the library's default, 100, replicas left each other behind for 45 s in 5 of 8 jobs;
with 300 in 0 of 6, and survivors stalled for 1.0 s; with 1,000 in 0 of 5, 1.1 s; with 10,000, as in its examples, in 0
of 7, 2.0 s."""
NOT_INSTALLED = "not installed: .venv/bin/python -m pip install -c constraints.txt -e '.[bench]'"


class Launcher(Protocol):
    """Starts the commands of a job."""

    async def open(self, job: CommandJob) -> None:
        """Start all commands."""

    def start(self, job: CommandJob, place: int) -> None:
        """Start the command of a lost machine again."""


class CommandJob:
    """A job of torchrun or torchft: one command for all places, or one for each."""

    def __init__(self, folder: Path, size: Size, launcher: Launcher, first_target: int = 0) -> None:
        self.folder, self.size = folder, size
        self._launcher, self._first_target = launcher, first_target
        self._commands: dict[int, Command] = {}
        self.stack = ExitStack()
        self._marks_folder = folder / "marks"

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the training script."""
        return ("--marks", str(self._marks_folder), *self.size.options)

    async def __aenter__(self) -> Self:
        self._marks_folder.mkdir(parents=True)
        self.marks = MarkReader(self._marks_folder)
        try:
            await self._launcher.open(self)
        except BaseException:
            self.stack.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stack.close()

    def start(self, place: int, command: list[str], env: dict[str, str]) -> None:
        """Start the command of a place; its output goes to a log of its own."""
        self._commands[place] = self.stack.enter_context(Command(command, self.folder / f"log-{place}", env))

    def check(self) -> None:
        for command in self._commands.values():
            command.check()

    def with_output(self, what: str) -> str:
        return "\n".join(command.with_output(what) for command in self._commands.values())

    async def prepare(self) -> None:
        """Nothing to wait for: there is no standby."""

    def targets(self, loss: Loss) -> Sequence[int]:
        return range(self._first_target, self.size.places)

    async def victims(self, place: int, loss: Loss) -> list[int]:
        return self._commands[place].family if loss == "machine" else [self.marks.process_of(place)]

    async def lost(self, place: int, loss: Loss) -> None:
        if loss == "machine":
            self._launcher.start(self, place)


class OneNode:
    """torchrun with all workers on one node: after a death it ends all workers and restarts from the checkpoint."""

    def __init__(self, every: int, format: tuple[str, ...]) -> None:
        self._every, self._format = every, format

    async def open(self, job: CommandJob) -> None:
        self.start(job, 0)

    def start(self, job: CommandJob, place: int) -> None:
        checkpoint = ("--checkpoint", str(job.folder / "checkpoint"), "--every", str(self._every), *self._format)
        options = ("--standalone", RESTARTS)
        job.start(place, *torchrun(job.size.places, RESTARTED, *job.options, *checkpoint, options=options))


class Nodes:
    """torchrun with one worker per node. The node with the rendezvous is never lost: that would end the job."""

    async def open(self, job: CommandJob) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        for place in range(job.size.places):
            self.start(job, place)

    def start(self, job: CommandJob, place: int) -> None:
        checkpoint = ("--checkpoint", str(job.folder / "checkpoint.pt"), "--every", str(CHECKPOINT_EVERY))
        nodes = (
            *(f"--nnodes={job.size.places}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}"),
            *(f"--rdzv-conf=is_host={int(place == 0)},{KEEP_ALIVE}", "--rdzv-id=bench", "--local-addr=127.0.0.1"),
        )
        command, env = torchrun(1, RESTARTED, *job.options, *checkpoint, options=(*nodes, RESTARTS))
        job.start(place, command, {**env, "BENCH_PLACE": str(place)})


class ReplicaGroups:
    """torchft: one replica group per worker, each with a torchrun of its own, and a lighthouse."""

    async def open(self, job: CommandJob) -> None:
        address = job.folder / "address"
        limits = ("--heartbeat", str(HEARTBEAT_MS), "--tick", str(TICK_MS), "--join", str(JOIN_MS))
        command = [sys.executable, LIGHTHOUSE, "--address", str(address), *limits]
        lighthouse = job.stack.enter_context(Command(command, job.folder / "lighthouse"))
        late = time.monotonic() + LIMIT_S
        while not address.exists():
            lighthouse.check()
            if time.monotonic() > late:
                raise CommandFailed(lighthouse.with_output(f"has no address within {LIMIT_S:g} s"))
            await asyncio.sleep(0.1)
        self._address = address.read_text()
        for place in range(job.size.places):
            self.start(job, place)

    def start(self, job: CommandJob, place: int) -> None:
        limits = ("--replicas", str(job.size.places), "--timeout", str(TIMEOUT_S))
        command, env = torchrun(1, TORCHFT, *job.options, *limits, options=("--standalone", RESTARTS))
        shared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}  # torchft's manager uses the store of its torchrun
        env = {**env, **shared, "BENCH_PLACE": str(place), "TORCHFT_LIGHTHOUSE": self._address}
        job.start(place, command, env)


def torchrun_one_node(
    folder: Path, size: Size = PAIR, *, every: int = CHECKPOINT_EVERY, dcp: bool = False
) -> Contestant:
    """torchrun on one node, with a checkpoint every `every` steps; `dcp`: by torch.distributed.checkpoint."""
    return CommandJob(folder, size, OneNode(every, ("--dcp",) if dcp else ()))


def torchrun_nodes(folder: Path, size: Size = PAIR) -> Contestant:
    return CommandJob(folder, size, Nodes(), first_target=1)


def torchft(folder: Path, size: Size = PAIR) -> Contestant:
    return CommandJob(folder, size, ReplicaGroups())


def torchft_is_installed() -> bool:
    return importlib.util.find_spec("torchft") is not None
