"""The worker's end of the Unix socket between a worker and its agent."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

from understudy.host.world import REAL, World
from understudy.protocol.framing import FramingError
from understudy.protocol.messages import TO_AGENT, TO_WORKER, ExtensionMessage, FromWorker, Telemetry, ToWorker


class AgentConnection:
    """The worker's end. `hear` is called on a thread of the connection's own; `lost` once when the agent is gone, but
    not after `close`."""

    def __init__(self, sock: socket.socket, world: World = REAL) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._world, self._lock = world, world.condition()
        self._closed = False

    def start(self, hear: Callable[[ToWorker | ExtensionMessage], None], lost: Callable[[str], None]) -> None:
        def listen() -> None:
            try:
                while True:
                    hear(TO_WORKER.receive(self._sock.recv))
            except (OSError, FramingError) as error:
                if not self._closed:
                    lost(str(error))

        self._world.start(listen, "understudy agent connection")

    def send(self, message: FromWorker | Telemetry) -> None:
        """Send a message. Errors are ignored: without its agent this process is about to end."""
        with self._lock, suppress(OSError):
            self._sock.sendall(TO_AGENT.encode(message))

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
