"""A worker's place in its machine's arena, in one generation."""

from __future__ import annotations

from typing import NamedTuple

import torch

from understudy.comm.faults import Fault, Interrupted, Poison
from understudy.comm.signature import describe

from .arena import GENERATION_SHIFT, Arena


class Member(NamedTuple):
    slot: int
    who: str
    uid: str


class ArenaStage:
    """Rounds of meeting in the arena. A round uses one of two buffers, alternately, so that a fast worker may already
    fill the next one while a slow worker still reads the last; it can be no further ahead, because the next meeting
    needs the slow one."""

    def __init__(self, arena: Arena, slot: int, members: tuple[Member, ...], generation: int, poison: Poison) -> None:
        self.arena = arena
        self.slot = slot
        self.members = [(member.slot, member.who) for member in members]
        """(slot, name) of every live member, this worker included, in role order."""
        self.bytes = arena.slot_bytes
        self._mates = tuple(member for member in members if member.slot != slot)
        self._index = [member.slot for member in members].index(slot)
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
        """This worker is done with all earlier generations and will not touch their data again."""
        self.arena.publish(self.slot, self._base)

    def announce(self, sequence: int, signature: int) -> None:
        """Say which operation this worker is in."""
        self._sequence, self._signature = sequence, signature
        self.arena.announce(self.slot, self._base + sequence, signature)

    def look_around(self) -> None:
        """Whether a mate is in another operation under the same number, or has left without coming this far."""
        for mate, who, uid in self._mates:
            sequence, signature = self.arena.announced(mate)
            if sequence == self._base + self._sequence and signature != self._signature:
                raise self._disagree(who, signature)
            if uid in self._poison.gone and self.arena.progress(mate) < self._base + self._rounds:
                raise self._poison.fail(Fault("eof", f"{who} has left", uid))

    def _disagree(self, who: str, theirs: int) -> Interrupted:
        reason = f"{who} called {describe(theirs)} where this role called {describe(self._signature)}"
        return self._poison.fail(Fault("mismatch", reason))

    def begin(self, deadline: float) -> int:
        """Which buffer the next round uses."""
        if not self._gathered:
            for mate, who, uid in self._mates:
                self.arena.wait(mate, self._base, self._poison, deadline, who, uid, self.look_around)
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
        for mate, who, uid in self._mates:
            self.arena.wait(mate, target, self._poison, deadline, who, uid, self.look_around)
            theirs = self.arena.signature(mate, self._buffer)
            if theirs != self._signature:
                raise self._disagree(who, theirs)

    def mine(self, buffer: int, dtype: torch.dtype) -> torch.Tensor:
        return self.slots(buffer, dtype)[self._index]

    def slots(self, buffer: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """Every live member's slot, in role order."""
        found = self._views.get((buffer, dtype))
        if found is None:
            found = [self.arena.slot(buffer, slot).view(dtype) for slot, _ in self.members]
            self._views[buffer, dtype] = found
        return found

    def result(self, buffer: int, dtype: torch.dtype) -> torch.Tensor:
        return self.arena.result(buffer).view(dtype)
