"""What is between simulated workers: generations whose links open, votes, and faults that spread.

Links open when both ends want them. A vote is complete when all roles are in it. The news of a fault reach each worker
after a delay of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from understudy.comm.faults import Fault
from understudy.protocol.roster import Roster

from .scheduler import Scheduler
from .verdicts import Rule, RuleBroken

if TYPE_CHECKING:
    from .fabric import SimFabric
    from .judge import Judge

SETUP_S = 5.0
"""Seconds after which links that do not open are given up."""


class Round:
    """One all-reduce of a generation."""

    def __init__(self) -> None:
        self.given: dict[str, list[int]] = {}
        self.least: list[int] | None = None
        self.told: set[str] = set()


class SharedGeneration:
    """One generation as all its workers see it together."""

    def __init__(self, network: Network, roster: Roster) -> None:
        self.network, self.roster = network, roster
        self.opening: dict[str, None] = {}
        self.closed: set[str] = set()
        self.opened: set[str] = set()
        self.faults: dict[str, Fault] = {}
        """By worker: the first fault that has reached it."""
        self.left: set[str] = set()
        """Workers that have left in good order."""
        self.rounds: dict[int, Round] = {}

    @property
    def members(self) -> list[str]:
        return [uid for uid in self.roster.seats if uid is not None]

    def neighbours(self, uid: str) -> set[str]:
        """The workers with which a worker has links to open."""
        number, members = self.roster.generation, set(self.members)
        if uid not in members:
            return set()
        if self.roster.fresh or number == 1:
            return members
        new = {m for m, since in zip(self.roster.seats, self.roster.since, strict=True) if m and since == number}
        return members if uid in new else new

    # -- links ---------------------------------------------------------------------------------------------------------

    def open(self, uid: str) -> None:
        self.opening[uid] = None
        self.network.scheduler.after(SETUP_S, partial(self.fail, uid, "time limit"))
        self.look()

    def look(self) -> None:
        """Complete, or give up, the preparations that can be."""
        for uid in list(self.opening):
            if uid in self.opened or uid in self.closed:
                continue
            around = self.neighbours(uid)
            if any(self.network.is_dead(other) or other in self.closed for other in around):
                self.network.later(self.fail, uid, "a neighbour is gone")
            elif around <= self.opening.keys():
                self.opened.add(uid)
                self.network.later(self.network.fabrics[uid].opened, self)

    def fail(self, uid: str, why: str) -> None:
        if uid not in self.opened and uid not in self.closed:
            self.closed.add(uid)
            self.network.fabrics[uid].not_opened(self, why)
            self.poison(Fault("eof", why, noticed_by=uid, when=0.0), uid)
            self.look()

    def close(self, uid: str) -> None:
        if uid not in self.closed:
            self.closed.add(uid)
            self.look()

    # -- faults --------------------------------------------------------------------------------------------------------

    def poison(self, fault: Fault, noticed_by: str) -> None:
        for uid in sorted({*self.members, noticed_by}):
            if uid == noticed_by:
                self._reach(uid, fault)
            else:
                self.network.later(self._reach, uid, fault)

    def _reach(self, uid: str, fault: Fault) -> None:
        if uid not in self.faults and uid not in self.left:
            self.faults[uid] = fault
            fabric = self.network.fabrics.get(uid)
            if fabric is not None:
                fabric.wake()

    # -- votes ---------------------------------------------------------------------------------------------------------

    def give(self, uid: str, number: int, numbers: list[int]) -> Round:
        """A worker's vector in an all-reduce."""
        network, ballot = self.network, self.rounds.setdefault(number, Round())
        if not ballot.given:
            network.scheduler.after(network.limit, partial(self._late, ballot))
        ballot.given[uid] = numbers
        missing = set(self.members) - ballot.given.keys()
        if missing & self.left:
            network.later(self.poison, Fault("eof", f"{min(missing)} has left", min(missing), uid, 0.0), uid)
        if not missing:
            if len({len(each) for each in ballot.given.values()}) > 1:
                what = f"different collectives meet in {self.roster.generation}"
                network.scheduler.fail(RuleBroken(Rule.VOTE_TOGETHER, what))
            ballot.least = [min(column) for column in zip(*ballot.given.values(), strict=False)]
            network.judge.voted(self.roster, ballot.given)
            for member in self.members:
                network.later(self._tell, ballot, member)
        return ballot

    def _tell(self, ballot: Round, uid: str) -> None:
        if not self.network.is_dead(uid):
            ballot.told.add(uid)
            self.network.fabrics[uid].wake()

    def _late(self, ballot: Round) -> None:
        if ballot.least is None:
            first = next(iter(ballot.given))
            self.poison(Fault("timeout", "an all-reduce takes too long", noticed_by=first, when=0.0), first)


class Network:
    """All simulated workers and what is between them."""

    def __init__(self, scheduler: Scheduler, chance: random.Random, judge: Judge, limit: float) -> None:
        self.scheduler, self.random, self.judge, self.limit = scheduler, chance, judge, limit
        self.generations: dict[int, SharedGeneration] = {}
        self.fabrics: dict[str, SimFabric] = {}

    def delay(self) -> float:
        """Seconds that a message or a small piece of work takes: mostly few, now and then many."""
        draw = self.random.random()
        return draw * 0.01 if draw < 0.9 else draw * 0.3

    def later(self, action: Callable[..., None], *arguments: object) -> None:
        self.scheduler.after(self.delay(), partial(action, *arguments))

    def is_dead(self, uid: str) -> bool:
        fabric = self.fabrics.get(uid)
        return fabric is not None and fabric.process.dead

    def generation(self, roster: Roster) -> SharedGeneration:
        found = self.generations.get(roster.generation)
        if found is None:
            found = self.generations[roster.generation] = SharedGeneration(self, roster)
        elif found.roster != roster:
            self.scheduler.fail(RuleBroken(Rule.ONE_ROSTER, f"{roster} and {found.roster}"))
        return found

    def false_alarm(self, uid: str) -> None:
        """A worker takes its generation for interrupted, although nothing is wrong."""
        fabric = self.fabrics.get(uid)
        if fabric is not None and fabric.roster is not None:
            shared = self.generations[fabric.generation]
            shared.poison(Fault("timeout", "it takes too long", noticed_by=uid, when=0.0), uid)

    def died(self, uid: str) -> None:
        """A worker's process is gone: the others notice one after another."""
        for generation in self.generations.values():
            if uid in generation.members and uid not in generation.left:
                fault = Fault("eof", f"{uid} is gone", uid, when=0.0)
                self.later(generation.poison, fault, uid)
            self.later(generation.look)
