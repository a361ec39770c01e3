"""Shared memory of one group on one machine, synchronised by futexes.

Memory order: a word is written by one process only, and every reader passes through the kernel or the interpreter lock
between reading it and reading the data behind it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from understudy.comm.faults import Fault, Interrupted, Poison
from understudy.comm.links.link import STALL_S
from understudy.comm.ops import describe

_LINE = 128
"""Bytes per slot in the header: progress word, one signature per buffer, number and signature of the operation under
way. Two cache lines: writers never share one."""
_PAGE = 4096
_GLANCES = 80
"""Looks at a word before sleeping on it, some 50 µs: a sleeper is costly to wake, and peers are mostly close by. The
processor is yielded between two looks, which may take milliseconds: hence a look at the poison as well."""
GENERATION_SHIFT = 40
"""A progress word is generation << 40 | rounds: words of an earlier generation are always smaller."""
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine(), 0)
_WAIT, _WAKE, _ALL = 0, 1, 0x7FFFFFFF
if sys.platform == "linux" and not _FUTEX:
    raise OSError(f"no futex on {sys.platform}/{platform.machine()}; use --transport torch:gloo there")
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_long, _pointer = ctypes.c_long, ctypes.c_void_p
_syscall.argtypes = (_long, _pointer, _long, _long, _pointer, _pointer, _long)
_syscall.restype = _long
_SLICE = (ctypes.c_long * 2)(0, 20_000_000)
"""A timespec, seconds and nanoseconds, of the longest sleep: a bound on the delay of a lost wake-up."""
_slice_address = ctypes.addressof(_SLICE)


def _sleep(address: int, seen: int) -> None:
    """Sleep while the 32-bit word holds `seen`, for one slice at most. May return early; callers loop."""
    if _syscall(_FUTEX, address, _WAIT, seen, _slice_address, None, 0) < 0:
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR):
            raise OSError(code, "futex wait")


def _wake(address: int) -> None:
    _syscall(_FUTEX, address, _WAKE, _ALL, None, None, 0)


class ArenaMember(NamedTuple):
    """A live worker of the cell: its slot, its name in messages, its uid."""

    slot: int
    who: str
    uid: str


class Arena:
    """Two buffers, each with a slot per role of the cell and one result area. The size depends on nothing else.

    The memory has no name: it is a descriptor handed from worker to worker, so it vanishes with the last process.
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
            raise ValueError(f"arena of {os.fstat(fd).st_size} bytes instead of {size}: different settings")
        self._map = mmap.mmap(fd, size)
        self._words = memoryview(self._map)[:header].cast("Q")
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        data = torch.frombuffer(self._map, dtype=torch.uint8, offset=header)
        self.areas: list[tuple[torch.Tensor, ...]] = [buffer.unbind() for buffer in data.view(2, slots + 1, slot_bytes)]
        """By buffer: the slots, and behind them the result area."""

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> Arena:
        return cls(os.memfd_create("understudy-arena", os.MFD_CLOEXEC), slots, slot_bytes)

    def close(self) -> None:
        """Drop the descriptor; the mapping goes with the last tensor that looks at it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def publish(self, slot: int, value: int) -> None:
        """Set this worker's progress word and wake the threads that sleep on it."""
        self._words[slot * (_LINE // 8)] = value
        _wake(self._base + slot * _LINE)

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
        """The operation that a slot's worker is in and its signature; (0, 0) between two operations."""
        at = slot * (_LINE // 8) + 3
        operation, signature = self._words[at], self._words[at + 1]
        return (operation, signature) if self._words[at] == operation else (0, 0)

    def wait(
        self, mate: ArenaMember, target: int, poison: Poison, deadline: float, stalled: Callable[[], None]
    ) -> None:
        """Return once a worker's word has reached `target`, calling `stalled` now and then meanwhile; raise if the
        generation is poisoned."""
        slot, who, uid = mate
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
            if now > look:
                look = now + STALL_S
                stalled()
            _sleep(address, seen & 0xFFFFFFFF)

    def wake_all(self) -> None:
        for slot in range(self.slots):
            _wake(self._base + slot * _LINE)


class ArenaRounds:
    """The meetings of one worker with the others of its cell, in one generation.

    A round uses one of two buffers, alternately, so that a fast worker may already fill the next one while a slow
    worker still reads the last. A worker can be no further ahead, because the next meeting needs the slow one."""

    def __init__(
        self, arena: Arena, slot: int, members: tuple[ArenaMember, ...], generation: int, poison: Poison
    ) -> None:
        self.arena = arena
        self.slot = slot
        self.members = [member.slot for member in members]
        """Slots of all live members, this worker's included, in role order."""
        self.bytes = arena.slot_bytes
        self._mates = tuple(member for member in members if member.slot != slot)
        self._index = self.members.index(slot)
        self._views: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        self._base = generation << GENERATION_SHIFT
        self._poison = poison
        self._rounds = 0
        self._buffer = 1
        self._gathered = False
        self._sequence = 0
        self._signature = 0
        poison.wakers.append(arena.wake_all)

    def arrive(self) -> None:
        """Say that this worker is done with all earlier generations and will not touch their data again."""
        self.arena.publish(self.slot, self._base)

    def announce(self, sequence: int, signature: int) -> None:
        self._sequence, self._signature = sequence, signature
        self.arena.announce(self.slot, self._base + sequence, signature)

    def look_around(self) -> None:
        """Raise if another worker of the cell is in another operation under the same number, or has left too early."""
        for mate, who, uid in self._mates:
            sequence, signature = self.arena.announced(mate)
            if sequence == self._base + self._sequence and signature != self._signature:
                raise self._disagree(who, signature)
            if uid in self._poison.gone and self.arena.progress(mate) < self._base + self._rounds:
                raise self._poison.fail(Fault("eof", f"{who} has left", uid))

    def _disagree(self, who: str, theirs: int) -> Interrupted:
        reason = f"{who} called {describe(theirs)} but this role called {describe(self._signature)}"
        return self._poison.fail(Fault("mismatch", reason))

    def begin(self, deadline: float) -> int:
        """Begin a round. Returns its buffer."""
        if not self._gathered:
            for mate in self._mates:
                self.arena.wait(mate, self._base, self._poison, deadline, self.look_around)
            self._gathered = True
        self._poison.check()
        self._buffer ^= 1
        self.arena.sign(self.slot, self._buffer, self._signature)
        return self._buffer

    def meet(self, deadline: float) -> None:
        """Return once all members have come this far."""
        self._rounds += 1
        target = self._base + self._rounds
        self.arena.publish(self.slot, target)
        for mate in self._mates:
            self.arena.wait(mate, target, self._poison, deadline, self.look_around)
            theirs = self.arena.signature(mate.slot, self._buffer)
            if theirs != self._signature:
                raise self._disagree(mate.who, theirs)

    def mine(self, buffer: int, dtype: torch.dtype) -> torch.Tensor:
        return self.slots(buffer, dtype)[self._index]

    def slots(self, buffer: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """The slots of all live members, in role order."""
        found = self._views.get((buffer, dtype))
        if found is None:
            areas = self.arena.areas[buffer]
            with torch.inference_mode(False):  # they are used within the mode and outside of it
                found = self._views[buffer, dtype] = [areas[slot].view(dtype) for slot in self.members]
        return found

    def result(self, buffer: int, dtype: torch.dtype) -> torch.Tensor:
        return self.arena.areas[buffer][self.arena.slots].view(dtype)
