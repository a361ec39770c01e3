"""Jobs whose workers and machines a benchmark kills: how each is started, who is where, who is started anew."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

from understudy_bench.outage import ALONE, Watch
from understudy_bench.processes import Command, CommandFailed, rests, torchrun
from understudy_bench.running import Running
from understudy_bench.scripts import LIGHTHOUSE, OURS, RESTARTED, TORCHFT

Loss = Literal["worker", "machine"]

LIMIT_S, LOOK_S = 180.0, 0.02
NOT_INSTALLED = "not installed: .venv/bin/python -m pip install -c constraints.txt -e '.[bench]'"
CHECKPOINT_EVERY = 10
HEARTBEAT_MS, TICK_MS, TIMEOUT_S = 1000, 50, 2.0
"""torchft's settings: when a silent replica is gone, how often the lighthouse looks, how long a collective may take."""
JOIN_MS = 300
"""How long torchft's lighthouse waits for replicas that live and are not there yet. Tried in `bench mask`'s jobs,
where two workers die, on two cores: with its library's default, 100, replicas left each other behind for 45 s
in 5 of 8; with 300 in 0 of 6, and the survivors stalled for 1.0 s; with 1,000 in 0 of 5, 1.1 s; with 10,000, as in its
examples, in 0 of 7, 2.0 s."""
KEEP_ALIVE = "keep_alive_interval=1,keep_alive_max_attempt=2"
"""torchrun's: a node that is silent for two seconds is gone. By default it is fifteen."""
RESTARTS = "--max-restarts=1000"


@dataclass(frozen=True)
class Size:
    """How many train, and what (one of `WORKS`)."""

    places: int
    work: str

    @property
    def options(self) -> tuple[str, ...]:
        return ("--work", self.work)


PAIR = Size(2, "gpt")


class Struck(Protocol):
    """A job that trains. As a context it leaves nothing behind."""

    size: Size
    watch: Watch

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def check(self) -> None:
        """Raises where the job cannot go on."""

    def said(self, what: str) -> str:
        """What is wrong with it, and its last lines."""

    async def prepare(self) -> None:
        """Whoever shall take the next dead one's place is there and has nothing left to do."""

    def targets(self, loss: Loss) -> Sequence[int]:
        """The places that can be lost in this way."""

    async def victims(self, place: int, loss: Loss) -> list[int]:
        """The processes that die when this is lost."""

    async def lost(self, place: int, loss: Loss) -> None:
        """Called right after the death: what a scheduler that needs no time would start, is started."""


async def until(job: Struck, what: str, look: Callable[[], bool], every: float = LOOK_S) -> None:
    """Wait for what `look` sees, as long as the job lives."""
    late = time.monotonic() + LIMIT_S
    while not look():
        job.check()
        if time.monotonic() > late:
            raise CommandFailed(job.said(f"has not done this within {LIMIT_S:g} s: {what}"))
        await asyncio.sleep(every)


class Understudy(Running):
    """Machines with a worker each, and a standby that could take the role of any at once."""

    settings: Mapping[str, object] = {"standbys": 1, "quarantine": 1000}

    def __init__(self, folder: Path, size: Size = PAIR) -> None:
        marks = folder / "marks"
        marks.mkdir(parents=True)
        self.size, self.watch = size, Watch(marks)
        args = ("--marks", str(marks), *size.options)
        options = {"script": OURS, "args": args, "run_dir": str(folder / "run"), "name": "bench", "threads": 1}
        super().__init__({**options, "machines": size.places, **self.settings})

    async def prepare(self) -> None:
        async def ready() -> bool | None:
            there = [each for each in await self.machines() if set(each["rehearsed"]) >= set(range(self.size.places))]
            return True if there and await rests(self.family(there[0]["name"])) else None

        await self.until("a standby that is ready", ready)

    def targets(self, loss: Loss) -> Sequence[int]:
        return range(self.size.places)

    async def victims(self, place: int, loss: Loss) -> list[int]:
        machine = await self.player(place)
        return self.family(machine["name"]) if loss == "machine" else [machine["pids"][machine["roles"].index(place)]]

    async def lost(self, place: int, loss: Loss) -> None:
        """The standby knows."""


class Masked(Understudy):
    """Machines with a worker each and nobody else: the others go on without a dead one. Its machine is put aside after
    a single failure, nobody is sent for, and only when enough steps were made without it, it is let in again."""

    settings: Mapping[str, object] = {"mask": "anywhere", "quarantine": 1, "no_standby": "stop", "repair": 0.0}

    async def prepare(self) -> None:
        async def complete() -> bool | None:
            job = await self.call("GET", "/job")
            return True if job["status"] == "training" and not (job["vacant"] or job["change"]) else None

        await self.until("all replicas", complete)

    async def lost(self, place: int, loss: Loss) -> None:
        at = time.time()
        others = set(range(self.size.places)) - {place}

        def enough() -> bool:
            ends = [mark.place for mark in self.watch.ends() if mark.at > at]
            return all(ends.count(other) >= ALONE + 3 for other in others)

        await until(self, "steps without the dead one", enough, 0.1)
        await self._let_in()

    async def _let_in(self) -> None:
        """The machine that was put aside is a standby."""

        async def aside() -> list[str] | None:
            return [each["name"] for each in await self.machines() if each["state"] == "quarantined"] or None

        for name in await self.until("a machine that is put aside", aside):
            await self.call("POST", f"/machines/{name}/readmit")


class Refilled(Masked):
    """The same with a standby that has not rehearsed: the others go on while it does, and then it joins them. The dead
    one's machine is the next standby."""

    settings: Mapping[str, object] = {**Masked.settings, "standbys": 1, "warm": 0}

    async def prepare(self) -> None:
        await super().prepare()

        async def ready() -> bool | None:
            machines = await self.machines()
            standbys = [each for each in machines if each["state"] == "standby" and all(each["pids"])]
            if not standbys and any(each["state"] == "quarantined" for each in machines):
                await self._let_in()
            return True if standbys and await rests(self.family(standbys[0]["name"])) else None

        await self.until("a standby", ready)

    async def lost(self, place: int, loss: Loss) -> None:
        """The standby knows."""


class _Commands:
    """Commands that look after the places, one for each or one for all."""

    def __init__(self, folder: Path, size: Size = PAIR) -> None:
        self._folder, self.size = folder, size
        self._commands: dict[int, Command] = {}
        self._stack = ExitStack()

    async def __aenter__(self) -> Self:
        marks = self._folder / "marks"
        marks.mkdir(parents=True)
        self.watch = Watch(marks)
        self._options = ("--marks", str(marks), *self.size.options)
        try:
            await self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    async def _open(self) -> None:
        raise NotImplementedError

    async def __aexit__(self, *exc: object) -> None:
        self._stack.close()

    def _start(self, place: int, command: list[str], env: dict[str, str]) -> None:
        log = self._folder / f"log-{place}"
        self._commands[place] = self._stack.enter_context(Command(command, log, env))

    def check(self) -> None:
        for command in self._commands.values():
            command.check()

    def said(self, what: str) -> str:
        return "\n".join(command.said(what) for command in self._commands.values())

    async def prepare(self) -> None:
        """Nobody waits in the wings."""

    def targets(self, loss: Loss) -> Sequence[int]:
        return range(self.size.places)

    async def victims(self, place: int, loss: Loss) -> list[int]:
        return self._commands[place].family if loss == "machine" else [self.watch.player(place)]

    async def lost(self, place: int, loss: Loss) -> None:
        if loss == "machine":
            self._play(place)

    def _play(self, place: int) -> None:
        """Start what looks after this place."""
        raise NotImplementedError


class Torchrun(_Commands):
    """One node with all workers: when one dies, torchrun ends the others and starts all from the last checkpoint."""

    every = CHECKPOINT_EVERY
    format: tuple[str, ...] = ()

    async def _open(self) -> None:
        checkpoint = ("--checkpoint", str(self._folder / "checkpoint"), "--every", str(self.every), *self.format)
        options = ("--standalone", RESTARTS)
        self._start(0, *torchrun(self.size.places, RESTARTED, *self._options, *checkpoint, options=options))


class TorchrunDcp(Torchrun):
    """The same with torch.distributed.checkpoint."""

    format = ("--dcp",)


class TorchrunEveryStep(Torchrun):
    """The same with a checkpoint after every step."""

    every = 1


class TorchrunNodes(_Commands):
    """Nodes with a worker each. The one that is lost is never the one with the rendezvous: that ends the job."""

    async def _open(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        for place in range(self.size.places):
            self._play(place)

    def _play(self, place: int) -> None:
        checkpoint = ("--checkpoint", str(self._folder / "checkpoint.pt"), "--every", str(CHECKPOINT_EVERY))
        nodes = (
            *(f"--nnodes={self.size.places}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}"),
            *(f"--rdzv-conf=is_host={int(place == 0)},{KEEP_ALIVE}", "--rdzv-id=bench", "--local-addr=127.0.0.1"),
        )
        command, env = torchrun(1, RESTARTED, *self._options, *checkpoint, options=(*nodes, RESTARTS))
        self._start(place, command, {**env, "BENCH_PLACE": str(place)})

    def targets(self, loss: Loss) -> Sequence[int]:
        return range(1, self.size.places)


class Torchft(_Commands):
    """Replica groups with a worker each, each looked after by a torchrun of its own, and a lighthouse."""

    async def _open(self) -> None:
        address = self._folder / "address"
        limits = ("--heartbeat", str(HEARTBEAT_MS), "--tick", str(TICK_MS), "--join", str(JOIN_MS))
        lighthouse = Command(
            [sys.executable, LIGHTHOUSE, "--address", str(address), *limits], self._folder / "lighthouse"
        )
        self._stack.enter_context(lighthouse)
        late = time.monotonic() + LIMIT_S
        while not address.exists():
            lighthouse.check()
            if time.monotonic() > late:
                raise CommandFailed(lighthouse.said(f"has no address within {LIMIT_S:g} s"))
            await asyncio.sleep(0.1)
        self._address = address.read_text()
        for place in range(self.size.places):
            self._play(place)

    def _play(self, place: int) -> None:
        limits = ("--replicas", str(self.size.places), "--timeout", str(TIMEOUT_S))
        command, env = torchrun(1, TORCHFT, *self._options, *limits, options=("--standalone", RESTARTS))
        shared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}  # torchft's manager uses the store of its torchrun
        env = {**env, **shared, "BENCH_PLACE": str(place), "TORCHFT_LIGHTHOUSE": self._address}
        self._start(place, command, env)


def torchft_is_installed() -> bool:
    return importlib.util.find_spec("torchft") is not None
