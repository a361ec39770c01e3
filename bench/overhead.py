"""Overhead: what a step costs under `understudy run`, against plain DDP over Gloo started by torchrun.

Both jobs live all the time, with the same model, batches and threads on the same cores. They train by turns, a block
of steps each. While one trains, all processes of the other are stopped, those that only look after it too: what the
controller and the agents use counts for understudy alone, and what torchrun uses for plain alone.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from understudy_bench.harness import Bench, Check, Progress, Result, interleave, median, spread
from understudy_bench.processes import Command, CommandFailed, interruptible, torchrun
from understudy_bench.scripts import OURS, PLAIN

SYSTEMS = ("understudy", "plain")
LAYOUTS = {2: (2, 1), 4: (2, 2)}
"""Workers → understudy's machines and workers on each. Two machines, so that it has no more shared memory than needed:
Gloo talks over loopback."""
BLOCKS = {2: 20, 4: 12}
QUICK = {2: 5}
STEPS = 12
DROPPED = 2
"""Steps at the beginning of each block, in which everything comes back into the caches."""
WARM_UP = 6
START_S = 120.0
BLOCK_S = 120.0
BAR = 1.02

Times = Mapping[str, Sequence[Sequence[float]]]
"""System → block → seconds of its steps on all workers."""


class Contest:
    """Two jobs behind gates: whoever is let through trains, while the other stands still."""

    def __init__(self, workers: int, folder: Path) -> None:
        machines, nproc = LAYOUTS[workers]
        gate = str(folder / "gate")
        self._workers = workers
        self._commands = {
            "understudy": Command(
                [
                    *(sys.executable, "-m", "understudy.cli.main", "run", "--name", "bench-overhead", "--threads", "1"),
                    *("--machines", str(machines), "--nproc", str(nproc), "--run-dir", str(folder / "run")),
                    # a machine that stands still is not gone
                    *("--heartbeat", "3600", OURS, "--gate", gate),
                ],
                folder / "understudy.log",
            )
        }
        command, env = torchrun(workers, PLAIN, "--gate", gate)
        self._commands["plain"] = Command(command, folder / "plain.log", env)
        self._gates: dict[str, dict[int, Connection]] = {name: {} for name in SYSTEMS}
        self._address = gate

    def __enter__(self) -> Contest:
        with ExitStack() as stack, socket.socket(socket.AF_UNIX) as server:
            server.bind(self._address)
            server.listen()
            server.settimeout(0.5)
            stack.callback(self._close_gates)
            for command in self._commands.values():
                stack.enter_context(command)
            self._admit(server)
            for command in self._commands.values():
                command.pause()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _admit(self, server: socket.socket) -> None:
        """Everybody waits at their gate."""
        late = time.monotonic() + START_S
        while any(len(gates) < self._workers for gates in self._gates.values()):
            for command in self._commands.values():
                command.check()
            if time.monotonic() > late:
                raise CommandFailed(f"the workers have not started training within {START_S:g} s")
            try:
                sock, _ = server.accept()
            except TimeoutError:
                continue
            sock.setblocking(True)
            connection = Connection(sock.detach())
            system, rank = connection.recv()
            self._gates[system][rank] = connection

    def _close_gates(self) -> None:
        for gates in self._gates.values():
            for gate in gates.values():
                gate.close()

    def train(self, system: str, steps: int) -> list[list[float]]:
        """Let a system train alone for a few steps; their seconds, by worker."""
        command, gates = self._commands[system], self._gates[system].values()
        command.resume()
        for gate in gates:
            gate.send(steps)
        late = time.monotonic() + BLOCK_S
        times = []
        for gate in gates:
            while not gate.poll(0.5):
                command.check()
                if time.monotonic() > late:
                    raise CommandFailed(f"{system} has not trained {steps} steps within {BLOCK_S:g} s")
            times.append(gate.recv())
        command.pause()
        return times


def kept(times: Sequence[Sequence[float]]) -> list[float]:
    """A block's steps without the first ones, of all workers."""
    return [seconds for worker in times for seconds in worker[DROPPED:]]


def ratios(times: Times) -> list[float]:
    """By block: how much longer a step takes under understudy."""
    return [median(o) / median(p) for o, p in zip(times["understudy"], times["plain"], strict=True)]


def total_ratio(times: Times) -> float:
    """The same of all steps together."""
    ours, plain = ([s for block in times[system] for s in block] for system in SYSTEMS)
    return median(ours) / median(plain)


def rows_of(workers: int, times: Times) -> list[dict[str, object]]:
    """A row for each block and one for all together."""
    pooled = {system: [[s for block in times[system] for s in block]] for system in SYSTEMS}
    rows: list[dict[str, object]] = []
    for name, part in (("", times), ("all", pooled)):
        for number, ratio in enumerate(ratios(part)):
            row: dict[str, object] = {"workers": workers, "block": name or str(number)}
            for system in SYSTEMS:
                values = [seconds * 1e3 for seconds in part[system][number]]
                row[f"{system}_ms"] = round(median(values), 2)
                row[f"{system}_spread"] = [round(value, 1) for value in spread(values)]
            row["ratio"] = round(ratio, 4)
            if name:
                row["ratio_spread"] = [round(value, 3) for value in spread(ratios(times))]
            rows.append(row)
    return rows


def measure(quick: bool, progress: Progress) -> Result:
    plan = QUICK if quick else BLOCKS
    progress.total = sum(len(SYSTEMS) * blocks for blocks in plan.values())
    rows: list[dict[str, object]] = []
    checks = []
    for workers, blocks in plan.items():
        times: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
        with (
            interruptible(),
            TemporaryDirectory(prefix="understudy-bench-") as folder,
            Contest(workers, Path(folder)) as contest,
        ):
            for system in SYSTEMS:
                contest.train(system, WARM_UP)
            for block, system in interleave(SYSTEMS, blocks):
                times[system].append(kept(contest.train(system, STEPS)))
                progress.advance(f"{workers} workers: {system}, block {block + 1}")
        rows += rows_of(workers, times)
        ratio = total_ratio(times)
        checks.append(Check(f"ratio_{workers}", round(ratio, 4), f"<= {BAR}", ratio <= BAR))
    return Result(rows, checks)


BENCH = Bench("overhead", "a step under understudy run, against plain DDP over Gloo", measure)
