"""Jobs that train by turns: while one does, all processes of the others are stopped."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from understudy_bench.processes import Command, CommandFailed
from understudy_bench.scripts import OURS

START_S = 120.0
BLOCK_S = 120.0
STEPS = 12
"""In a block."""
DROPPED = 2
"""Steps at the beginning of each block, in which everything comes back into the caches."""
WARM_UP = 6
STEADY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
"""The environment of all contestants: the C library keeps what is freed, and does not ask the kernel for it again in
every step. Without it each start is faster or slower by chance, for as long as it lives."""


def ours(system: str, folder: Path, machines: int, nproc: int, options: Sequence[str] = ()) -> Command:
    """A job of the benchmarks' model under `understudy run`, for a contest whose gate is in this folder."""
    return Command(
        [
            *(sys.executable, "-m", "understudy.cli.main", "run", "--name", f"bench-{system}", "--threads", "1"),
            *("--machines", str(machines), "--nproc", str(nproc), "--run-dir", str(folder / f"run-{system}")),
            # a machine that stands still is not gone
            *("--heartbeat", "3600", *options, OURS, "--gate", str(folder / "gate"), "--system", system),
        ],
        folder / f"{system}.log",
        STEADY,
    )


class Contest:
    """Jobs of as many workers each behind gates: whoever is let through trains, while the others stand still."""

    def __init__(self, workers: int, commands: Mapping[str, Command], gate: Path) -> None:
        self._workers, self._commands = workers, commands
        self._gates: dict[str, dict[int, Connection]] = {name: {} for name in commands}
        self._address = str(gate)

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


def kept(times: Sequence[Sequence[float]], dropped: int = DROPPED) -> list[float]:
    """A block's steps without the first ones, of all workers."""
    return [seconds for worker in times for seconds in worker[dropped:]]
