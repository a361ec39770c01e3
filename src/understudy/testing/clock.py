"""A clock that moves only when a test says so."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable
from math import inf
from typing import TypeVar

from understudy.host.world import REAL, Condition, Thread

T = TypeVar("T")


class FakeClock:
    """A `World` (see `understudy.host.world`) in which time stands still until `advance` is called.

    Threads are real. A thread that sleeps, or waits for a condition with a time-out, resumes when the clock has been
    advanced far enough:

        clock = FakeClock()
        thread = clock.start(lambda: clock.sleep(60.0), "sleeper")
        clock.until_waiting(1)
        clock.advance(60.0)
        thread.join()
    """

    def __init__(self, start: float = 0.0, epoch: float = 1_000_000_000.0) -> None:
        """`start`: first value of `monotonic()`. `epoch`: first value of `time()`."""
        self._now, self._epoch = start, epoch - start
        self._conditions: weakref.WeakSet[FakeCondition] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._waiting = 0
        self._more_wait = threading.Condition()

    def time(self) -> float:
        return self._epoch + self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward and wake every thread that has waited long enough."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back: advance({seconds:g})")
        with self._lock:
            self._now += seconds
            conditions = list(self._conditions)
        for condition in conditions:
            condition.look()

    def until_waiting(self, threads: int, timeout: float = 60.0) -> None:
        """Wait, in real time, until this number of threads sleep or wait with a time-out."""
        with self._more_wait:
            if not self._more_wait.wait_for(lambda: self._waiting >= threads, timeout):
                raise TimeoutError(f"{self._waiting} threads wait after {timeout:g} s, not {threads}")

    def _waits(self, change: int) -> None:
        with self._more_wait:
            self._waiting += change
            self._more_wait.notify_all()

    def sleep(self, seconds: float) -> None:
        with (condition := self.condition()):
            condition.wait(seconds)

    def condition(self) -> Condition:
        found = FakeCondition(self)
        with self._lock:
            self._conditions.add(found)
        return found

    def wait_ready(self, sock: socket.socket, event: int, seconds: float) -> bool:
        """Sockets are real: waits for them take real time."""
        return REAL.wait_ready(sock, event, seconds)

    def start(self, target: Callable[[], object], name: str) -> Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread


class FakeCondition(threading.Condition):
    """A condition with time-outs that a `FakeClock` measures."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self._notified = 0

    def wait(self, timeout: float | None = None) -> bool:
        """False if the time-out has passed without a notification."""
        before, deadline = self._notified, inf if timeout is None else self._clock.monotonic() + timeout
        self._clock._waits(int(timeout is not None))
        try:
            while self._notified == before and self._clock.monotonic() < deadline:
                super().wait()
        finally:
            self._clock._waits(-int(timeout is not None))
        return self._notified != before

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        deadline = inf if timeout is None else self._clock.monotonic() + timeout
        while not (holds := predicate()) and (left := deadline - self._clock.monotonic()) > 0:
            self.wait(None if timeout is None else left)
        return holds

    def notify_all(self) -> None:
        self._notified += 1
        super().notify_all()

    def look(self) -> None:
        """Let waiting threads compare their deadlines with the clock."""
        with self:
            super().notify_all()
