"""Jobs that train by turns: while one trains, all processes of the others are stopped."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from understudy_bench.harness.processes import Command, CommandFailed
from understudy_bench.scripts import OURS

START_S = 120.0
BLOCK_S = 120.0
STEPS = 12
"""Steps of a block."""
DROPPED = 2
"""Steps at the beginning of each block that do not count: they fill the processor's caches again."""
WARM_UP = 6
STEADY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
"""An environment in which the C library keeps freed memory, and does not ask the kernel for it in every step. Without
it, each process is faster or slower by chance for all its life."""


def ours(system: str, folder: Path, machines: int, nproc: int, options: Sequence[str] = ()) -> Command:
    """A job of the benchmarks' model under `understudy run`, with the gate in this folder."""
    return Command(
        [
            *(sys.executable, "-m", "understudy.cli.main", "run", "--name", f"bench-{system}", "--threads", "1"),
            *("--machines", str(machines), "--nproc", str(nproc), "--run-dir", str(folder / f"run-{system}")),
            # a stopped machine is not lost
            *("--heartbeat", "3600", *options, OURS, "--gate", str(folder / "gate"), "--system", system),
        ],
        folder / f"{system}.log",
        STEADY,
    )


class Turns:
    """Jobs with equally many workers, each behind a gate. One job at a time is let through its gate and trains."""

    def __init__(self, workers: int, commands: Mapping[str, Command], gate: Path) -> None:
        self._workers, self._commands = workers, commands
        self._gates: dict[str, dict[int, Connection]] = {name: {} for name in commands}
        self._address = str(gate)

    def __enter__(self) -> Turns:
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
        """Wait until all workers of all jobs are at their gates."""
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
        """Let one system train for so many steps. Returns the seconds of each step, by worker."""
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


def kept(times: Sequence[Sequence[float]], dropped: int = DROPPED) -> list[float]:
    """The steps of a block on all workers, without the first ones."""
    return [seconds for worker in times for seconds in worker[dropped:]]
