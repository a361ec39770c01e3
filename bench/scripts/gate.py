"""A gate: lets a training script run a few steps when the benchmark says so, and reports their times."""

from __future__ import annotations

import socket
import time
from multiprocessing.connection import Connection


class Gate:
    """The worker's end. Without an address, the gate is always open and measures nothing."""

    def __init__(self, address: str, system: str, rank: int) -> None:
        self._connection: Connection | None = None
        self._left = 0
        self._ends: list[float] = []
        if address:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(address)
            self._connection = Connection(sock.detach())
            self._connection.send((system, rank))

    def passes(self) -> bool:
        """Wait until a step may begin; False: training is over."""
        if self._connection is not None and self._left == 0:
            if self._ends:
                self._connection.send([later - end for end, later in zip(self._ends, self._ends[1:], strict=False)])
            try:
                self._left = self._connection.recv()
            except EOFError:
                return False
            self._ends = [time.perf_counter()]
        return self._connection is None or self._left > 0

    def passed(self) -> None:
        """Count a step as ended."""
        if self._connection is not None:
            self._ends.append(time.perf_counter())
            self._left -= 1
