"""Shared memory of one group on one machine, synchronised by futexes.

Memory order: a word is written by one process only, and every reader passes through the kernel or the interpreter lock
between reading it and reading the data behind it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable

import torch

from understudy.comm.faults import Fault, Interrupted, Poison
from understudy.comm.links.link import STALL_S

from . import futex

_LINE = 128
"""Bytes per slot in the header: progress word, one signature per buffer, number and signature of the operation under
way. Two cache lines: writers never share one."""
_PAGE = 4096
_GLANCES = 80
"""Looks at a word before sleeping on it, some 50 µs: a sleeper is costly to wake, and peers are mostly close by. The
processor is offered to others between two looks, and where they take it that is milliseconds: hence a look at the
poison as well."""
GENERATION_SHIFT = 40
"""A progress word is generation << 40 | rounds: words of an earlier generation are always smaller."""


class Arena:
    """Two buffers, each with a slot per role of the cell and one result area. Its size depends on nothing else.

    The memory has no name: it is a descriptor handed from worker to worker, so it vanishes with its last process.
    """

    def __init__(self, fd: int, slots: int, slot_bytes: int) -> None:
        self.fd = fd
        self.slots = slots
        self.slot_bytes = slot_bytes
        header = -(-slots * _LINE // _PAGE) * _PAGE
        size = header + 2 * (slots + 1) * slot_bytes
        if os.fstat(fd).st_size == 0:
            os.ftruncate(fd, size)
        elif os.fstat(fd).st_size != size:
            raise ValueError(f"arena of {os.fstat(fd).st_size} bytes where {size} were expected: different settings")
        self._map = mmap.mmap(fd, size)
        self._words = memoryview(self._map)[:header].cast("Q")
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        data = torch.frombuffer(self._map, dtype=torch.uint8, offset=header)
        self._areas = [
            [data[(b * (slots + 1) + s) * slot_bytes :][:slot_bytes] for s in range(slots + 1)] for b in (0, 1)
        ]

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> Arena:
        return cls(os.memfd_create("understudy-arena", os.MFD_CLOEXEC), slots, slot_bytes)

    def close(self) -> None:
        """Drop the descriptor; the mapping goes with the last tensor that looks at it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def slot(self, buffer: int, slot: int) -> torch.Tensor:
        return self._areas[buffer][slot]

    def result(self, buffer: int) -> torch.Tensor:
        return self._areas[buffer][self.slots]

    def publish(self, slot: int, value: int) -> None:
        """Set this worker's progress word and wake whoever sleeps on it."""
        self._words[slot * (_LINE // 8)] = value
        futex.wake(self._base + slot * _LINE)

    def progress(self, slot: int) -> int:
        return self._words[slot * (_LINE // 8)]

    def sign(self, slot: int, buffer: int, signature: int) -> None:
        self._words[slot * (_LINE // 8) + 1 + buffer] = signature

    def signature(self, slot: int, buffer: int) -> int:
        return self._words[slot * (_LINE // 8) + 1 + buffer]

    def announce(self, slot: int, operation: int, signature: int) -> None:
        at = slot * (_LINE // 8) + 3
        self._words[at] = 0
        self._words[at + 1] = signature
        self._words[at] = operation

    def announced(self, slot: int) -> tuple[int, int]:
        """The operation a slot's worker is in and its signature; (0, 0) where it is just going on to the next."""
        at = slot * (_LINE // 8) + 3
        operation, signature = self._words[at], self._words[at + 1]
        return (operation, signature) if self._words[at] == operation else (0, 0)

    def wait(
        self,
        slot: int,
        target: int,
        poison: Poison,
        deadline: float,
        who: str,
        uid: str,
        stalled: Callable[[], None] | None = None,
    ) -> None:
        """Return once that slot's word has reached `target`; raise when the generation is poisoned. `stalled` is
        called now and then while it has not."""
        words, index, address = self._words, slot * (_LINE // 8), self._base + slot * _LINE
        for _ in range(_GLANCES):
            if words[index] >= target:
                return
            if poison.fault is not None:
                raise Interrupted
            os.sched_yield()
        look = time.monotonic() + STALL_S
        while (seen := words[index]) < target:
            if poison.fault is not None:
                raise Interrupted
            now = time.monotonic()
            if now > deadline:
                raise poison.fail(Fault("timeout", f"{who} did not reach the operation within its time limit", uid))
            if now > look and stalled is not None:
                look = now + STALL_S
                stalled()
            futex.wait(address, seen & 0xFFFFFFFF)

    def wake_all(self) -> None:
        for slot in range(self.slots):
            futex.wake(self._base + slot * _LINE)
