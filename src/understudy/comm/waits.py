"""For how long a thread was blocked in operations with others: what is left of its time is its own work."""

from __future__ import annotations

import threading
import time

import torch

_OUTSIDE = -1
"""Where no backward pass runs."""


class Tail:
    """Futures that were taken in a backward pass. Whoever takes one there, as DDP does, computes all gradients first
    and then waits for all of them: so it waits from when it has taken the last one until the last one is there."""

    __slots__ = ("_pass", "since", "until")

    def __init__(self) -> None:
        self._pass = _OUTSIDE
        self.since = self.until = 0.0

    def take(self, which: int) -> float:
        """One is taken in this backward pass. Returns what was waited for in the one before."""
        waited = self.settle() if which != self._pass else 0.0
        self._pass, self.since = which, time.perf_counter()
        return waited

    def kept(self) -> None:
        """From any thread: one is there."""
        self.until = time.perf_counter()

    def settle(self) -> float:
        waited = max(0.0, self.until - self.since)
        self.since = self.until = time.perf_counter()
        return waited


class _Own(threading.local):
    def __init__(self) -> None:
        self.seconds = 0.0
        self.tail = Tail()
        self.unknown = 0


_own = _Own()


def add(seconds: float) -> None:
    """The current thread was blocked for so long."""
    _own.seconds += seconds


def take_future(*, done: bool) -> Tail:
    """The current thread takes a future, which may be complete; otherwise `kept` of what is returned must be called
    when it is."""
    which = torch._C._current_graph_task_id()
    if which == _OUTSIDE and not done:  # where it waits for that, nobody sees
        _own.unknown += 1
    _own.seconds += _own.tail.take(which)
    return _own.tail


def waited() -> tuple[float, int]:
    """Seconds for which the current thread was blocked so far, and how often it may have been without being seen.
    Called when no backward pass runs."""
    _own.seconds += _own.tail.settle()
    return _own.seconds, _own.unknown
