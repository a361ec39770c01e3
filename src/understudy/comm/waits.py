"""Handles of running operations, as torch expects them, and the time for which a thread is blocked in operations with
other workers: the rest of its time is its own work."""

# torch declares Work's methods for C++ objects; a subclass in Python is narrower in some places and wider in others.
# mypy: disable-error-code="override"

from __future__ import annotations

import threading
import time
from datetime import timedelta
from types import FunctionType
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from understudy.device import torch_private

from . import typed_futures
from .faults import OperationTimeout
from .links.pairs import Receive, Send

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
    which = torch_private.backward_pass()
    if which == _OUTSIDE and not done:  # the wait for it can not be seen
        _own.unknown += 1
    _own.seconds += _own.tail.take(which)
    return _own.tail


def waited() -> tuple[float, int]:
    """Seconds for which the current thread was blocked so far, and the number of waits that were not seen.
    Call when no backward pass runs."""
    _own.seconds += _own.tail.settle()
    return _own.seconds, _own.unknown


T = TypeVar("T", bound=type)


def untraced(cls: T) -> T:
    """Keep torch.compile out of the methods of a class and out of all that they call.

    torch's C++ calls into a group while torch.compile watches every frame of the thread: when DDP rebuilds its buckets,
    when a graph has broken before a collective. `torch.compiler.disable` does the same but takes seconds to import.
    """
    for method in vars(cls).values():
        if isinstance(method, FunctionType):
            torch_private.leave_untraced(method.__code__)
    return cls


_SET = threading.Event()
_SET.set()
_waiting: dict[int, float] = {}
"""By thread: the time since which it waits for a message."""


def longest_wait_for_messages() -> float:
    """Seconds for which some thread has been waiting for a message."""
    since = min(_waiting.copy().values(), default=None)
    return 0.0 if since is None else time.monotonic() - since


class TimeLimits(Protocol):
    """The end of waits that take too long."""

    def expired(self, seconds: float) -> OperationTimeout:
        """End the wait of a caller that allows this many seconds. Returns the exception to raise."""

    def check_expired(self) -> None:
        """Raise OperationTimeout if an operation with a limit has ended because of it."""


@untraced
class GroupWork(dist.Work):
    """A running operation, or one that is `done`. It always completes; `Fabric.fault` tells if its result counts. If it
    is `limited`, its time limit was set by the script, and `wait` raises if it has been reached."""

    def __init__(
        self, result: Any, limits: TimeLimits | None = None, *, done: bool = False, limited: bool = False
    ) -> None:
        super().__init__()
        self._result = result
        self._limits, self._limited = limits, limited
        self._done = _SET if done else threading.Event()
        self._lock = threading.Lock()
        self._future: Any = None
        """Completes when the operation does."""
        self._value: Any = None
        """The future that `get_future` returns, if it is another one."""
        self._tail: FutureWait | None = None

    def finish(self) -> None:
        with self._lock:
            self._done.set()
            future, tail = self._future, self._tail
        if tail is not None:
            tail.kept()
        if future is not None:
            future.set_result(self._result if self._value is None else 0)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if not self._done.is_set():
            self._await(self._done, timeout.total_seconds(), time.perf_counter())
        if self._limited and self._limits is not None:
            self._limits.check_expired()
        return True

    def _await(self, done: threading.Event, limit: float, began: float) -> None:
        try:
            if not done.wait(limit or None):
                raise self._expired(limit)
        finally:
            add(time.perf_counter() - began)

    def _expired(self, limit: float) -> OperationTimeout:
        if self._limits is None:
            return OperationTimeout(f"Timed out after {limit:g} s, the limit given to wait")
        return self._limits.expired(limit)

    def is_completed(self) -> bool:
        return self._done.is_set()

    is_success = is_completed

    def synchronize(self) -> None:
        self.wait()

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        return self._result

    def get_future(self) -> Any:
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if typed_futures.is_needed(self._result):
                    self._value = typed_futures.tensors_after(self._future, self._result)
                done = self._done.is_set()
                self._tail = take_future(done=done)
                if done:
                    self._future.set_result(self._result if self._value is None else 0)
            return self._future if self._value is None else self._value


@untraced
class MessageWork(GroupWork):
    """Completes with its point-to-point message."""

    def __init__(
        self,
        result: Any,
        job: Send | Receive,
        back: list[tuple[torch.Tensor, torch.Tensor]],
        limits: TimeLimits | None = None,
        *,
        limited: bool = False,
    ) -> None:
        super().__init__(result, limits, limited=limited)
        self._job, self._back = job, back
        self._last = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if not self._job.done.is_set():
            _waiting[threading.get_ident()] = time.monotonic()
            try:
                self._await(self._job.done, timeout.total_seconds(), time.perf_counter())
            finally:
                del _waiting[threading.get_ident()]
        self._complete()
        return super().wait()

    def _complete(self) -> None:
        if self._last.acquire(blocking=False):  # by the first thread that waits, and never released
            for target, source in self._back:
                with torch.inference_mode(target.is_inference()):
                    target.copy_(source)
            self.finish()
        self._done.wait()

    def is_completed(self) -> bool:
        if self._job.done.is_set():
            self._complete()
        return self._done.is_set()

    def get_future(self) -> Any:
        if not self.is_completed():
            threading.Thread(target=self._follow, name="understudy future", daemon=True).start()
        return super().get_future()

    def _follow(self) -> None:
        self._job.done.wait()
        self._complete()

    def _source_rank(self) -> int:
        """The rank that sent the message; undefined, as its data is, if the generation is poisoned."""
        self.wait()
        return self._job.peer or 0
