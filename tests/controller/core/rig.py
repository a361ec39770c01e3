"""The director alone: a test feeds events by hand, and reads orders and announcements. The tests with a `Rig` check the
messages to each party, their order and the operator's answers; random histories are the simulation's part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from understudy.controller.core.change import Change
from understudy.controller.core.director import Director
from understudy.controller.core.effects import Announcement, Effect, Reply
from understudy.controller.core.events import Asked, Event, Expired, Lost, Registered, Replace, Reported, Request
from understudy.controller.core.state import JobPlan, JobState
from understudy.protocol.frames import Exited, Leaving, Order, Relayed, Report, Stopped, Tell
from understudy.protocol.messages import (
    FromWorker,
    Gave,
    Halted,
    Here,
    Prepared,
    Rehearsed,
    Settled,
    Switched,
    ToWorker,
    Tracked,
)
from understudy.protocol.options import with_options
from understudy.protocol.roster import WorkerAddress
from understudy.protocol.settings import Settings

Stage = Literal["rehearse", "prepare", "armed", "switch", "seated", "settled"]
STAGES: tuple[Stage, ...] = ("rehearse", "prepare", "armed", "switch", "seated", "settled")
"""How far a replacement has come: its phases, then until the first step is done, then over."""


class Rig:
    """A director, and agents and workers that say what the test lets them say. Machines are m0, m1, …, standbys come
    last; with one worker each, wN is on mN."""

    def __init__(self, machines: int = 2, nproc: int = 1, **settings: Any) -> None:
        first = settings.pop("first", ())
        options = {"warm": 0, "recording_limit": 0.0, **settings}
        self.plan = JobPlan(machines, nproc, with_options(Settings(), **options), first)
        self.director = Director(self.plan)
        self.ledger: list[tuple[float, Event]] = []
        self.announcements: list[Announcement] = []
        self.now = 0.0
        self._said: dict[str, int] = {}
        self._read: dict[str, int] = {}

    @classmethod
    def opening(cls, machines: int = 2, nproc: int = 1, standbys: int = 0, **settings: Any) -> Rig:
        """All machines are here, and the first generation opens."""
        rig = cls(machines, nproc, **settings)
        founders = len(rig.plan.opening)
        for number in range(founders + standbys):
            rig.come(f"m{number}", standby=number >= founders)
            rig.here(f"m{number}")
        return rig

    @classmethod
    def training(
        cls,
        machines: int = 2,
        nproc: int = 1,
        standbys: int = 1,
        *,
        copies: bool = True,
        twins: Mapping[int, tuple[int, ...]] | None = None,
        **settings: Any,
    ) -> Rig:
        """All roles have workers with state; all orders are read. Without `twins`, all roles are twins, or none."""
        rig = cls.opening(machines, nproc, standbys, **settings)
        all_roles = tuple(range(rig.plan.roles))
        roster = rig.change.roster
        assert roster is not None
        for role, uid in enumerate(roster.seats):
            if uid is not None:
                same = (all_roles if copies else (role,)) if twins is None else twins[role]
                rig.say(uid, Switched(1, 0), Tracked(role, same))
        rig.each(rig.seats(), Settled(1, 1, None))
        assert rig.status() == "training"
        rig.orders()
        return rig

    # -- events --------------------------------------------------------------------------------------------------------

    @property
    def job(self) -> JobState:
        return self.director.job

    def feed(self, event: Event) -> list[Effect]:
        self.now += 1.0
        self.ledger.append((self.now, event))
        effects = self.director.feed(event, self.now)
        self.job.validate()
        self.announcements += [effect for effect in effects if isinstance(effect, Announcement)]
        return effects

    def come(self, name: str, *, standby: bool = False, incarnation: str = "") -> None:
        self.feed(Registered(name, incarnation or f"{name}-a", standby))

    def here(self, name: str) -> None:
        """All workers of a machine that have not said so yet."""
        for each in self.job.machines[name].all_workers:
            if each.alive and each.address is None:
                self.say(each.uid, Here(worker(each.uid, name), pid=100 + int(each.uid[1:])))

    def say(self, uid: str, *messages: FromWorker) -> None:
        for message in messages:
            self.report(self.job.workers[uid].machine, Relayed(uid, message))

    def each(self, uids: Iterable[str], *messages: FromWorker) -> None:
        """One worker after the other says all of it."""
        for uid in uids:
            self.say(uid, *messages)

    def leaving(self, name: str, seconds: float = 30.0, why: str = "preempted") -> None:
        """A machine's agent says that it goes soon."""
        self.report(name, Leaving(seconds, why))

    def exits(self, uid: str, code: int = -9, words: str = "") -> None:
        self.report(self.job.workers[uid].machine, Exited(uid, code, words))

    def report(self, name: str, report: Report) -> None:
        incarnation = self.job.machines[name].incarnation
        self._said[incarnation] = number = self._said.get(incarnation, 0) + 1
        self.feed(Reported(name, incarnation, number, report))

    def lose(self, name: str, why: str = "no heartbeat") -> None:
        self.feed(Lost(name, self.job.machines[name].incarnation, why))

    def ask(self, id: str, request: Request) -> Reply | None:
        self.feed(Asked(id, request))
        return self.job.answers.get(id)

    def at_once(self, id: str, request: Request) -> tuple[bool, str]:
        """The answer to a request that need not wait."""
        reply = self.ask(id, request)
        assert reply is not None
        return reply.ok, reply.text

    # -- what came of it -----------------------------------------------------------------------------------------------

    def orders(self) -> dict[str, list[Order]]:
        """What each machine was told since the last look; machines that were told nothing are left out."""
        found = {}
        for name, machine in self.job.machines.items():
            read = self._read.get(machine.incarnation, 0)
            new = [order for number, order in machine.outbox.after(0) if number > read]
            self._read[machine.incarnation] = machine.outbox.last
            if new:
                found[name] = new
        return found

    def heard(self) -> dict[str, list[ToWorker]]:
        """The same by worker, of what is for workers."""
        found: dict[str, list[ToWorker]] = {}
        for orders in self.orders().values():
            for order in orders:
                if isinstance(order, Tell):
                    found.setdefault(order.uid, []).append(order.message)
        return dict(sorted(found.items()))

    def reply(self, id: str = "r1") -> Reply:
        return self.job.answers[id]

    def answered(self, id: str = "r1") -> tuple[bool, str]:
        """Whether it was done, and the words."""
        return self.reply(id).ok, self.reply(id).text

    def states(self) -> dict[str, str]:
        return {name: machine.state for name, machine in self.job.machines.items()}

    def seats(self) -> list[str]:
        assert self.job.roster is not None
        return [uid for uid in self.job.roster.seats if uid is not None]

    def told(self, kind: str) -> list[str]:
        return [event.text for event in self.announcements if event.kind == kind]

    def status(self) -> str:
        return self.job.status

    def phase(self) -> str:
        """Of the change under way; nothing where there is none."""
        return "" if self.job.change is None else self.job.change.phase

    @property
    def change(self) -> Change:
        assert self.job.change is not None
        return self.job.change

    # -- longer scenes -------------------------------------------------------------------------------------------------

    def replace(self, machine: str = "m1", until: Stage = "settled", id: str = "r1", by: float | None = None) -> None:
        """Ask for a replacement and rig it up to here."""
        assert self.ask(id, Replace((machine,), by=by)) is None
        self.go_on(until)

    def go_on(self, until: Stage) -> None:
        """Rig the change under way from the rehearsal up to here."""
        steps = [self.rehearsed, self.prepared, self.first_switches, self.all_switch, self.settled]
        for step in steps[: STAGES.index(until)]:
            step()

    def rehearsed(self) -> None:
        for role, uid in self.change.joiners.items():
            if self.job.workers[uid].rehearsed != role:
                self.say(uid, Rehearsed(role))

    def prepared(self) -> None:
        self.each(sorted(self.change.waiting), Prepared(self.change.generation))

    def first_switches(self, step: int = 5) -> None:
        roster = self.change.roster
        assert roster is not None
        joiners = {move.taker.uid for move in self.change.moves}
        stayer = next(uid for uid in roster.seats if uid is not None and uid not in joiners)
        self.say(stayer, Switched(roster.generation, step))

    def all_switch(self, step: int = 5) -> None:
        roster, moves = self.change.roster, self.change.moves
        assert roster is not None
        takers, givers = {move.taker.uid for move in moves}, {move.giver.uid for move in moves}
        for uid in sorted(self.change.waiting | {str(uid) for uid in roster.seats}):
            self.say(uid, Switched(roster.generation, step, 0.5, 1000 if uid in takers else 0))
        self.each(sorted(givers - {str(uid) for uid in roster.seats}), Gave(roster.generation))

    def settled(self, lost: float | None = 0.25) -> None:
        self.each(self.seats(), Settled(self.generation, 6, lost))

    def halted(
        self,
        *uids: str,
        step: int = 5,
        voted: bool = False,
        holds: bool = True,
        over: bool = False,
        able: bool | None = None,
        kept: tuple[tuple[int, int], ...] = (),
        usual: float = 0.0,
    ) -> None:
        """Workers report after the halt. A worker with state is at a boundary, unless `able` says otherwise."""
        able = holds if able is None else able
        report = Halted(self.job.halts, self.generation, step, voted, holds, over, able=able, kept=kept, usual=usual)
        self.each(uids, report)

    def stopped(self, uid: str, seconds: float = 10.0) -> None:
        self.report(self.job.workers[uid].machine, Stopped(uid, seconds))

    def due(self, what: str) -> Expired:
        """The limit of this kind that runs; the time comes to when it is over."""
        ((moment, event),) = [
            (at, event) for at, event in self.director.due() if isinstance(event, Expired) and event.what == what
        ]
        assert moment > self.now
        self.now = moment
        return event

    def expires(self, what: str) -> None:
        self.feed(self.due(what))

    def signals(self) -> list[tuple[object, object]]:
        """Source of each signal, and what was done about it."""
        return [(event.data["source"], event.data["act"]) for event in self.announcements if event.kind == "signal"]

    @property
    def generation(self) -> int:
        return 0 if self.job.roster is None else self.job.roster.generation


def worker(uid: str, machine: str) -> WorkerAddress:
    return WorkerAddress(uid, machine, port=1000 + int(uid[1:]))
