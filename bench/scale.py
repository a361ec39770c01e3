"""Scale: the work of the control plane as a job grows from 64 to 4,096 machines.

The controller is a real one: a process of its own with its ledger on disk. The machines are simulated
(`scale_agents.py`): thousands of agents in one process that speak the real protocol over real sockets, each with a
worker that answers as workers do and trains nothing. Controller and agents have one of two cores each.

For each size: all machines register and the first generation is formed; then failures (a machine is lost, all workers
halt and report, a standby takes the role) alternate with planned replacements; then agents only send heartbeats.

- `decided_s`: from the report of the loss until the last machine has read the order to continue;
- `armed_s`: from the request until the leaver has read that all workers are prepared;
- `cpu_s`: the controller's processor time for one change, by the kernel's clock for the process, so that other
  processes do not count; `cpu_us_per_machine`: the same divided by the number of machines;
- `frames` and `bytes` per machine: both directions, acknowledgements included.

Checks: the slope of processor time over machines in a log-log plot from 256 machines up (1: proportional), and that
messages and bytes per machine do not grow.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from understudy.controller.client import Client
from understudy.controller.server.spec import ControlSpec
from understudy.protocol.options import with_options
from understudy.protocol.settings import Settings
from understudy_bench.harness.bench import Bench, Check, Progress, Result, median, spread
from understudy_bench.harness.processes import CommandFailed, workplace
from understudy_bench.scale_agents import SimulatedAgents

# -- the job -----------------------------------------------------------------------------------------------------------

LIMIT_S = 600.0
LOOK_S = 0.02


@dataclass(frozen=True)
class ControllerProcess:
    """The controller's process, as the kernel accounts for it."""

    pid: int

    @property
    def cpu_s(self) -> float:
        """Processor seconds of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9

    @property
    def resident_mb(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


@contextmanager
def controller(folder: Path, machines: int) -> Iterator[tuple[ControllerProcess, str, str]]:
    """Start a controller. Yields its process, URL and secret.

    Its heartbeat limit is an hour: the simulated agents send heartbeats only on demand.
    """
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
            yield ControllerProcess(process.pid), f"http://127.0.0.1:{sock.getsockname()[1]}", secret.hex()
        finally:
            process.kill()
            process.wait()


class SimulatedJob:
    """A job of simulated agents. When the context ends, all connections are closed."""

    def __init__(self, process: ControllerProcess, url: str, secret: str, machines: int) -> None:
        self._process, self._machines = process, machines
        self._client = Client(url, secret, patience=LIMIT_S)
        self._agents = SimulatedAgents(url, secret, machines)
        self._names = 0
        self._seen = 0

    async def __aenter__(self) -> Self:
        await self._agents.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._agents.__aexit__()

    async def _call(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(lambda: self._client.call(method, path, body, limit=LIMIT_S))

    async def _event(self, kind: str, holds: Callable[[dict[str, Any]], bool] = lambda event: True) -> None:
        """Wait for an event of a kind that came after the last one waited for."""
        late = time.monotonic() + LIMIT_S
        while True:
            page = await self._call("GET", f"/events?after={self._seen}&wait=1")
            self._seen = page["next"]
            events = page["events"]
            for event in events:
                if event["kind"] == "failed":
                    raise CommandFailed(f"the job has failed: {event['text']}")
            if any(event["kind"] == kind and holds(event) for event in events):
                return
            if self._agents.error is not None:
                raise self._agents.error
            if time.monotonic() > late:
                raise CommandFailed(f"an event {kind!r}: nothing for {LIMIT_S:g} s")

    def _next_names(self, count: int) -> list[str]:
        names = [f"m{number}" for number in range(self._names, self._names + count)]
        self._names += count
        return names

    async def _measured(self, work: Any) -> dict[str, float]:
        """Measure a piece of work: time, the controller's processor time, and the traffic."""
        counts, broken = self._agents.counts, self._agents.broken
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
            "broken": float(self._agents.broken - broken),
        }

    async def form(self) -> dict[str, float]:
        """Let all machines register and the first generation form; then a standby comes and rehearses."""

        async def formed() -> dict[str, float]:
            await self._agents.come(self._next_names(self._machines))
            await self._event("phase", lambda event: event["data"]["phase"] == "first step")
            await self._at_rest()
            return {}

        await self._call("GET", "/job")  # it listens
        found = await self._measured(formed())
        await self._standby()
        return found

    async def _standby(self) -> None:
        names = self._next_names(1)
        told = self._agents.told.get("Rehearse", 0.0)
        await self._agents.come(names, standby=True)
        late = time.monotonic() + LIMIT_S
        while self._agents.told.get("Rehearse", 0.0) <= told:
            if time.monotonic() > late:
                raise CommandFailed(f"{names[0]} was not asked to rehearse within {LIMIT_S:g} s")
            await asyncio.sleep(LOOK_S)
        await self._at_rest()

    async def _at_rest(self) -> None:
        """Wait until no more messages are sent."""
        frames = -1
        while frames != self._agents.counts.frames:
            frames = self._agents.counts.frames
            await asyncio.sleep(0.25)

    async def failure(self) -> dict[str, float]:
        """Lose a machine; a standby takes its role."""
        victim = min(self._agents.agents, key=lambda name: int(name[1:]))

        async def failed() -> dict[str, float]:
            await self._call("POST", f"/machines/{victim}/lost", {"why": "killed"})
            await self._event("settled")
            return {"decided_s": self._agents.told["Resume"]}

        await self._agents.gone(victim)
        await self._at_rest()
        found = await self._measured(failed())
        await self._at_rest()
        await self._standby()
        return found

    async def planned(self) -> dict[str, float]:
        """Replace a machine by plan."""
        leaver = min(self._agents.agents, key=lambda name: int(name[1:]))

        async def replaced() -> dict[str, float]:
            await self._call("POST", "/replace", {"type": "replace", "machines": [leaver]})
            await self._event("settled")
            return {"prepared_s": self._agents.told["Prepare"], "armed_s": self._agents.told["Arm"]}

        found = await self._measured(replaced())
        await self._at_rest()
        await self._agents.gone(leaver)
        await self._standby()
        return found

    async def beats(self, seconds: float) -> dict[str, float]:
        """Let agents send only heartbeats."""
        cpu, began = self._process.cpu_s, time.monotonic()
        rate = await self._agents.beat(seconds)
        took = time.monotonic() - began
        used = self._process.cpu_s - cpu
        return {
            "beats_per_s": round(rate, 1),
            "cpu_share": round(used / took, 4),
            "cpu_us_per_beat": round(1e6 * used / max(rate * took, 1.0), 1),
            "resident_mb": round(self._process.resident_mb, 1),
        }


# -- the question ------------------------------------------------------------------------------------------------------

SIZES = (64, 256, 1024, 4096)
QUICK = (64, 256, 1024)
CHANGES = 3
"""Changes of each kind at each size."""
QUICK_CHANGES = 2
BEATS_S = 5.0
FROM = 256
SLOPE_BAR = 1.15
GROWTH_BAR = 1.1

Row = dict[str, object]


# -- figures -----------------------------------------------------------------------------------------------------------


def slope(points: Mapping[int, float]) -> float:
    """The slope of the straight line through the logarithms: the power of the size with which a value grows."""
    xs, ys = [math.log(size) for size in points], [math.log(max(value, 1e-9)) for value in points.values()]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def column(rows: Sequence[Mapping[str, Any]], what: str, name: str) -> dict[int, float]:
    """Machines → a column's value, for the sizes that count."""
    return {row["machines"]: row[name] for row in rows if row["what"] == what and row["machines"] >= FROM}


def summed(what: str, machines: int, seen: Sequence[Mapping[str, float]]) -> Row:
    """One row for all changes of a kind at one size: medians."""
    row: Row = {"part": "changes", "what": what, "machines": machines, "rounds": len(seen)}
    for name in seen[0]:
        row[name] = round(median(each[name] for each in seen), 4)
    cpu = [each["cpu_s"] for each in seen]
    row["cpu_us_per_machine"] = round(1e6 * median(cpu) / machines, 1)
    row["cpu_spread"] = [round(value, 4) for value in spread(cpu)]
    return row


def checks_of(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    checks = []
    for what in ("failure", "planned"):
        power = slope(column(rows, what, "cpu_s"))
        checks.append(Check(f"{what}_cpu_slope", round(power, 3), f"<= {SLOPE_BAR}", power <= SLOPE_BAR))
    for what in ("failure", "planned"):
        for name in ("frames", "bytes"):
            values = column(rows, what, name)
            growth = values[max(values)] / values[min(values)]
            checks.append(Check(f"{what}_{name}_growth", round(growth, 3), f"<= {GROWTH_BAR}", growth <= GROWTH_BAR))
    return checks


# -- all sizes ---------------------------------------------------------------------------------------------------------


async def _at_size(machines: int, changes: int, folder: Path, done: Callable[[str], None]) -> list[Row]:
    folder.mkdir()
    seen: dict[str, list[dict[str, float]]] = {}
    with controller(folder, machines) as (process, url, secret):
        async with SimulatedJob(process, url, secret, machines) as job:
            seen["formation"] = [await job.form()]
            done(f"{machines} machines: formed")
            for number in range(changes):
                for what in ("failure", "planned"):
                    found = await (job.failure() if what == "failure" else job.planned())
                    seen.setdefault(what, []).append(found)
                    done(f"{machines} machines, {what} {number + 1}: {found['cpu_s']:.3f} s of processor time")
            beats = await job.beats(BEATS_S)
            done(f"{machines} machines: beats")
    rows = [summed(what, machines, each) for what, each in seen.items()]
    return [*rows, {"part": "at rest", "machines": machines, **beats}]


def measure(quick: bool, progress: Progress) -> Result:
    sizes, changes = (QUICK, QUICK_CHANGES) if quick else (SIZES, CHANGES)
    progress.total = len(sizes) * (2 + 2 * changes)
    rows: list[Row] = []
    with workplace() as folder:
        for machines in sizes:
            rows += asyncio.run(_at_size(machines, changes, folder / str(machines), progress.advance))
    kinds = [row for row in rows if "what" in row]
    return Result(sorted(rows, key=_order), checks_of(kinds))


def _order(row: Mapping[str, Any]) -> tuple[bool, str]:
    """Sort key: changes of a kind together."""
    return row["part"] != "changes", str(row.get("what", ""))


BENCH = Bench("scale", "what a change costs the controller, from 64 to 4,096 machines", measure)
