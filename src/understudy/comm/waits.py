"""The time for which a thread is blocked in operations with other workers: the rest of its time is its own work."""

from __future__ import annotations

import threading
import time

import torch

_OUTSIDE = -1
"""The number of the backward pass if none runs."""


class FutureWait:
    """The wait for futures that were taken in a backward pass. Code that takes futures there, as DDP does, computes all
    gradients first and then waits for all futures: from the time the last was taken until the last is complete."""

    __slots__ = ("_pass", "since", "until")

    def __init__(self) -> None:
        self._pass = _OUTSIDE
        self.since = self.until = 0.0

    def take(self, which: int) -> float:
        """Note that a future is taken in this backward pass. Returns the seconds waited in the pass before."""
        waited = self.settle() if which != self._pass else 0.0
        self._pass, self.since = which, time.perf_counter()
        return waited

    def kept(self) -> None:
        """Note that a future is complete. Any thread may call this."""
        self.until = time.perf_counter()

    def settle(self) -> float:
        waited = max(0.0, self.until - self.since)
        self.since = self.until = time.perf_counter()
        return waited


class _Own(threading.local):
    def __init__(self) -> None:
        self.seconds = 0.0
        self.tail = FutureWait()
        self.unknown = 0


_own = _Own()


def add(seconds: float) -> None:
    """Count seconds for which the current thread was blocked."""
    _own.seconds += seconds


def take_future(*, done: bool) -> FutureWait:
    """Note that the current thread takes a future. If it is not `done`, call `kept` of the result when it is."""
    which = torch._C._current_graph_task_id()
    if which == _OUTSIDE and not done:  # the wait for it can not be seen
        _own.unknown += 1
    _own.seconds += _own.tail.take(which)
    return _own.tail


def waited() -> tuple[float, int]:
    """Seconds for which the current thread was blocked so far, and the number of waits that were not seen.
    Call when no backward pass runs."""
    _own.seconds += _own.tail.settle()
    return _own.seconds, _own.unknown
