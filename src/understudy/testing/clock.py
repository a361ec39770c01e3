"""A clock that moves only when a test says so."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable
from types import TracebackType

from understudy.host.world import REAL, Condition, Thread


class FakeClock:
    """A `World` (see `understudy.host.world`) in which time stands still until `advance` is called.

    Threads are real. A thread that sleeps, or waits for a condition with a time-out, resumes when the clock has been
    advanced far enough:

        clock = FakeClock()
        thread = clock.start(lambda: clock.sleep(60.0), "sleeper")
        clock.advance(60.0)
        thread.join()
    """

    def __init__(self, start: float = 0.0, epoch: float = 1_000_000_000.0) -> None:
        """`start`: first value of `monotonic()`. `epoch`: first value of `time()`."""
        self._now, self._epoch = start, epoch - start
        self._conditions: weakref.WeakSet[FakeCondition] = weakref.WeakSet()
        self._lock = threading.Lock()

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

    def sleep(self, seconds: float) -> None:
        with (condition := self.condition()):
            condition.wait(seconds)

    def condition(self) -> Condition:
        found = FakeCondition(self)
        with self._lock:
            self._conditions.add(found)
        return found

    def wait_ready(self, sock: socket.socket, event: int, seconds: float) -> bool:
        """Sockets are real, and so is the time that this call waits for them."""
        return REAL.wait_ready(sock, event, seconds)

    def start(self, target: Callable[[], object], name: str) -> Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread


class FakeCondition:
    """A condition with time-outs that a `FakeClock` measures."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._notified = 0

    def __enter__(self) -> bool:
        return self._condition.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._condition.__exit__(kind, error, trace)

    def wait(self, timeout: float | None = None) -> bool:
        """False if the time-out has passed without a notification."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        before = self._notified
        while self._notified == before:
            if deadline is not None and self._clock.monotonic() >= deadline:
                return False
            self._condition.wait()
        return True

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while not predicate():
            if deadline is not None and self._clock.monotonic() >= deadline:
                return predicate()
            self.wait(None if deadline is None else deadline - self._clock.monotonic())
        return True

    def notify_all(self) -> None:
        self._notified += 1
        self._condition.notify_all()

    def look(self) -> None:
        """Let waiting threads compare their deadlines with the clock."""
        with self._condition:
            self._condition.notify_all()
