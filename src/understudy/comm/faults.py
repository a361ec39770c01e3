"""What can go wrong between workers, and the poison by which all of them learn of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

How = Literal["eof", "timeout", "interrupt", "mismatch", "vacant", "garbage", "error"]


class Fault(msgspec.Struct, frozen=True):
    """Why a generation can no longer finish its step."""

    how: How
    reason: str
    who: str = ""
    """uid of the worker at fault, if one is."""
    noticed_by: str = ""
    when: float = msgspec.field(default_factory=time.time)

    def __str__(self) -> str:
        by = f" (noticed by {self.noticed_by})" if self.noticed_by else ""
        return f"{self.how}: {self.reason}{by}"


class InvalidCall(ValueError, RuntimeError):
    """A call of a group that no role carries out. Torch's backends raise ValueError for some of these calls and
    RuntimeError for others."""


class OperationTimeout(RuntimeError):
    """An operation has reached the timeout that the script has set. Its generation is poisoned."""


class PrepareFailed(RuntimeError):
    """A generation could not be prepared; the current one is untouched."""


class SwitchRefused(RuntimeError):
    """A generation cannot be entered from the current one."""


class LinkFailed(Exception):
    """A link could not be opened; the message names the other worker and the reason."""


class Interrupted(Exception):
    """Unwinds an operation of a poisoned generation. Never leaves `comm`."""


class Poison:
    """The health of one generation, shared by everything that may block in it.

    Once set it stays set: operations that still run in an old generation can only end. Threads that wait on sockets
    poll `fd`; threads that wait on futexes are woken by the wakers.
    """

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.wakers: list[Callable[[], None]] = []
        self.gone: set[str] = set()
        """Workers that have left in good order: a fault only for an operation that needs one of them."""
        self.tell: Callable[[Fault], None] | None = None
        """Called once, with the first fault."""
        self._lock = threading.Lock()

    def set(self, fault: Fault) -> bool:
        """Whether this is the first fault."""
        with self._lock:
            if self.fault is not None:
                return False
            self.fault, tell = fault, self.tell
        os.eventfd_write(self.fd, 1)
        for wake in self.wakers:
            wake()
        if tell is not None:
            tell(fault)
        return True

    def check(self) -> None:
        if self.fault is not None:
            raise Interrupted

    def fail(self, fault: Fault) -> Interrupted:
        """Set the fault. Returns the exception to raise."""
        self.set(fault)
        return Interrupted()

    def __del__(self) -> None:
        os.close(self.fd)
