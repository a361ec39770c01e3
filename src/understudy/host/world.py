"""Time and concurrency as parameters: code that waits takes a `World`, so that the simulation can replace it."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Condition(AbstractContextManager[bool], Protocol):
    """The part of `threading.Condition` that the runtime uses."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Thread(Protocol):
    """A thread that has been started."""

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class World(Protocol):
    """Clocks, threads and conditions. Code that takes a world uses nothing else to wait or to tell the time."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def condition(self) -> Condition: ...

    def start(self, target: Callable[[], object], name: str) -> Thread:
        """A daemon thread that runs `target`."""

    def wait_ready(self, sock: socket.socket, event: int, seconds: float) -> bool:
        """Whether `select.POLLIN` or `POLLOUT` holds for a socket within this time."""


class RealWorld:
    """The clocks, threads and conditions of this computer."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def condition(self) -> Condition:
        return threading.Condition()

    def start(self, target: Callable[[], object], name: str) -> Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def wait_ready(self, sock: socket.socket, event: int, seconds: float) -> bool:
        poller = select.poll()
        poller.register(sock, event)
        return bool(poller.poll(seconds * 1000))


REAL: World = RealWorld()
