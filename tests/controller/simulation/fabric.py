"""How the simulated workers communicate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from understudy.protocol.roster import Roster

if TYPE_CHECKING:
    from .world import World

COLLECTIVE = 4.0
"""Simulated seconds after which a vote that is not complete times out."""


class SimFabric:
    """One generation's links: they open when both ends want them, and a vote passes when everybody is in it."""

    def __init__(self, world: World, roster: Roster) -> None:
        self.world, self.roster = world, roster
        self.back, self.step = "", 0
        self.opening: set[str] = set()
        self.closed: set[str] = set()
        self.done: set[str] = set()
        self.poisoned: dict[str, str] = {}
        self.rounds = 0
        self.ballots: dict[str, list[int]] = {}

    def members(self) -> list[str]:
        return [uid for uid in self.roster.seats if uid is not None]

    def neighbours(self, uid: str) -> set[str]:
        """With whom a worker has something to open."""
        number, members = self.roster.generation, set(self.members())
        if uid not in members:
            return set()
        if self.roster.fresh or number == 1:
            return members
        new = {m for m, since in zip(self.roster.seats, self.roster.since, strict=True) if m and since == number}
        return members if uid in new else new

    def open(self, uid: str) -> None:
        self.opening.add(uid)
        for member in sorted({*self.members(), uid}):
            self.consider(member)
        self.world.after(5.0, lambda: self.fail(uid, "time limit"))

    def consider(self, uid: str) -> None:
        if uid not in self.opening or uid in self.done:
            return
        around = self.neighbours(uid)
        if any(not self.world.workers[other].alive or other in self.closed for other in around):
            self.world.after(self.world.delay(), lambda: self.fail(uid, "a neighbour is gone"))
        elif around <= self.opening:
            self.done.add(uid)
            self.world.after(self.world.delay(), lambda: self.world.workers[uid].opened(self))

    def fail(self, uid: str, why: str) -> None:
        if uid not in self.done and uid not in self.closed:
            self.closed.add(uid)
            self.world.workers[uid].not_opened(self, why)
            self.poison(why, uid)
            for member in self.members():
                self.consider(member)

    def close(self, uid: str) -> None:
        if uid not in self.closed:
            self.closed.add(uid)
            for member in self.members():
                self.consider(member)

    def poison(self, why: str, noticed_by: str) -> None:
        for uid in sorted({*self.members(), noticed_by}):
            self.world.after(0.0 if uid == noticed_by else self.world.delay(), partial(self._reach, uid, why))

    def _reach(self, uid: str, why: str) -> None:
        if uid not in self.poisoned:
            self.poisoned[uid] = why
            if self.world.workers[uid].alive:
                self.world.workers[uid].felt(self)

    def vote(self, uid: str, numbers: list[int]) -> None:
        self.ballots[uid] = numbers
        if len(self.ballots) == 1:
            self.world.after(COLLECTIVE, partial(self._late, self.rounds))
        if set(self.ballots) >= set(self.members()):
            least = [min(column) for column in zip(*self.ballots.values(), strict=True)]
            if not any(numbers[5] < 1 << 40 for numbers in self.ballots.values()):
                self.world.passed(self, least[2])
            self.ballots = {}
            self.rounds += 1
            for member in self.members():
                self.world.after(self.world.delay(), partial(self._tell, member, least))

    def _late(self, number: int) -> None:
        if number == self.rounds and self.ballots:
            self.poison("timeout", next(iter(self.ballots)))

    def _tell(self, uid: str, least: list[int]) -> None:
        worker = self.world.workers[uid]
        if worker.alive and worker.mode == "voting" and worker.fabric is self and uid not in self.poisoned:
            worker.mode = "counting"  # the result is good, but the thread has not looked at it yet
            worker.later(self.world.delay(), partial(worker.counted, least))
