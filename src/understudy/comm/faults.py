"""What went wrong, and the poison that spreads it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

How = Literal["eof", "timeout", "interrupt", "mismatch", "vacant", "garbage", "error"]


class Fault(msgspec.Struct, frozen=True):
    """Why a generation can no longer finish its step: who, when, and how it was noticed."""

    how: How
    reason: str
    who: str = ""
    """uid of the worker at fault, where one is."""
    noticed_by: str = ""
    when: float = msgspec.field(default_factory=time.time)

    def __str__(self) -> str:
        by = f" (noticed by {self.noticed_by})" if self.noticed_by else ""
        return f"{self.how}: {self.reason}{by}"


class Interrupted(Exception):
    """Unwinds an operation of a poisoned generation. Never leaves `comm`."""


class StepFailed(RuntimeError):
    """The generation is poisoned: results since the last boundary are undefined."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Poison:
    """One generation's state of health, shared by everything that may block in it.

    Once set it stays set: what still runs in an old generation can only find out that it is over. Threads that wait on
    sockets poll `fd`; those that wait on futexes are woken by the wakers.
    """

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.wakers: list[Callable[[], None]] = []
        self.gone: set[str] = set()
        """Workers that have left in good order: no fault unless somebody still waits for them."""
        self.tell: Callable[[Fault], None] | None = None
        """Called once, with the first fault."""
        self._lock = threading.Lock()

    def set(self, fault: Fault) -> bool:
        """True where this was the first fault."""
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
        self.set(fault)
        return Interrupted()

    def __del__(self) -> None:
        os.close(self.fd)
