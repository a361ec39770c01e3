"""A real controller's process, a crowd of agents around it, and what happens to them."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from understudy.controller.client import Client
from understudy.controller.server.spec import ControlSpec
from understudy.protocol.options import with_options
from understudy.protocol.settings import Settings
from understudy_bench.crowd import Crowd
from understudy_bench.processes import CommandFailed

LIMIT_S = 600.0
LOOK_S = 0.02


@dataclass(frozen=True)
class Process:
    """The controller's, as the kernel knows it."""

    pid: int

    @property
    def cpu_s(self) -> float:
        """Of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9

    @property
    def resident_mb(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


@contextmanager
def controller(folder: Path, machines: int) -> Iterator[tuple[Process, str, str]]:
    """Its process, address and secret. Nobody is given up for being silent: agents only beat when they are asked to."""
    secret = secrets.token_bytes(32)
    ledger, mesh = str(folder / "ledger.sqlite"), (("dp", machines),)
    settings = with_options(Settings(), heartbeat=3600.0, answer_limit=600.0, limit=600.0, recording_limit=0)
    spec = ControlSpec("bench-scale", secret, machines, 1, mesh, ledger, settings=settings)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as sock, (folder / "log").open("wb") as log:
        sock.set_inheritable(True)
        module = (sys.executable, "-m", "understudy.controller.server.server", "--fd", str(sock.fileno()))
        process = subprocess.Popen(
            [*module, "--parent", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[sock.fileno()],
        )
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(spec))
            process.stdin.close()
            yield Process(process.pid), f"http://127.0.0.1:{sock.getsockname()[1]}", secret.hex()
        finally:
            process.kill()
            process.wait()


class Stage:
    """A job of a crowd; as a context it leaves no connection behind."""

    def __init__(self, process: Process, url: str, secret: str, machines: int) -> None:
        self._process, self._machines = process, machines
        self._client = Client(url, secret, patience=LIMIT_S)
        self._crowd = Crowd(url, secret, machines)
        self._names = 0
        self._seen = 0

    async def __aenter__(self) -> Self:
        await self._crowd.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._crowd.__aexit__()

    async def _call(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(lambda: self._client.call(method, path, body, limit=LIMIT_S))

    async def _tale(self, kind: str, holds: Callable[[dict[str, Any]], bool] = lambda tale: True) -> None:
        """Until one of this kind has been told since the last that was waited for."""
        late = time.monotonic() + LIMIT_S
        while True:
            page = await self._call("GET", f"/events?after={self._seen}&wait=1")
            self._seen = page["next"]
            tales = page["events"]
            for tale in tales:
                if tale["kind"] == "failed":
                    raise CommandFailed(f"the job has failed: {tale['text']}")
            if any(tale["kind"] == kind and holds(tale) for tale in tales):
                return
            if self._crowd.error is not None:
                raise self._crowd.error
            if time.monotonic() > late:
                raise CommandFailed(f"an event {kind!r}: nothing for {LIMIT_S:g} s")

    def _next_names(self, count: int) -> list[str]:
        names = [f"m{number}" for number in range(self._names, self._names + count)]
        self._names += count
        return names

    async def _measured(self, work: Any) -> dict[str, float]:
        """What a piece of work took, of the controller and on the wire."""
        counts, broken = self._crowd.counts, self._crowd.broken
        cpu, frames, size = self._process.cpu_s, counts.frames, counts.bytes
        began = time.monotonic()
        marks: dict[str, float] = await work
        took = time.monotonic() - began
        return {
            **{name: at - began for name, at in marks.items()},
            "seconds": took,
            "cpu_s": self._process.cpu_s - cpu,
            "frames": (counts.frames - frames) / self._machines,
            "bytes": (counts.bytes - size) / self._machines,
            "resident_mb": self._process.resident_mb,
            "broken": float(self._crowd.broken - broken),
        }

    async def form(self) -> dict[str, float]:
        """All machines come, and the first generation is formed; then a standby comes and rehearses."""

        async def formed() -> dict[str, float]:
            await self._crowd.come(self._next_names(self._machines))
            await self._tale("phase", lambda tale: tale["text"] == "first step")
            await self._at_rest()
            return {}

        await self._call("GET", "/job")  # it listens
        found = await self._measured(formed())
        await self._standby()
        return found

    async def _standby(self) -> None:
        names = self._next_names(1)
        told = self._crowd.told.get("Rehearse", 0.0)
        await self._crowd.come(names, standby=True)
        late = time.monotonic() + LIMIT_S
        while self._crowd.told.get("Rehearse", 0.0) <= told:
            if time.monotonic() > late:
                raise CommandFailed(f"{names[0]} was not asked to rehearse within {LIMIT_S:g} s")
            await asyncio.sleep(LOOK_S)
        await self._at_rest()

    async def _at_rest(self) -> None:
        """Nothing more goes over the wire."""
        frames = -1
        while frames != self._crowd.counts.frames:
            frames = self._crowd.counts.frames
            await asyncio.sleep(0.25)

    async def failure(self) -> dict[str, float]:
        """A machine is lost, and a standby takes its place."""
        victim = min(self._crowd.agents, key=lambda name: int(name[1:]))

        async def failed() -> dict[str, float]:
            await self._call("POST", f"/machines/{victim}/lost", {"why": "killed"})
            await self._tale("settled")
            return {"decided_s": self._crowd.told["Resume"]}

        await self._crowd.gone(victim)
        await self._at_rest()
        found = await self._measured(failed())
        await self._at_rest()
        await self._standby()
        return found

    async def planned(self) -> dict[str, float]:
        """A machine is replaced by plan."""
        leaver = min(self._crowd.agents, key=lambda name: int(name[1:]))

        async def replaced() -> dict[str, float]:
            await self._call("POST", "/replace", {"type": "replace", "machines": [leaver]})
            await self._tale("settled")
            return {"prepared_s": self._crowd.told["Prepare"], "armed_s": self._crowd.told["Arm"]}

        found = await self._measured(replaced())
        await self._at_rest()
        await self._crowd.gone(leaver)
        await self._standby()
        return found

    async def beats(self, seconds: float) -> dict[str, float]:
        """Nothing happens but signs of life."""
        cpu, began = self._process.cpu_s, time.monotonic()
        rate = await self._crowd.beat(seconds)
        took = time.monotonic() - began
        used = self._process.cpu_s - cpu
        return {
            "beats_per_s": round(rate, 1),
            "cpu_share": round(used / took, 4),
            "cpu_us_per_beat": round(1e6 * used / max(rate * took, 1.0), 1),
            "resident_mb": round(self._process.resident_mb, 1),
        }
