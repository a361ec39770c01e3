"""The controller's mind: events in, orders and tales out. No clock, no socket, no file; the same events give the same
orders, so that a controller that comes back reads its ledger and knows where everybody stands."""

from __future__ import annotations

from operator import is_

from understudy.protocol.frames import Exited, KeptCopy, Leaving, Relayed, Stopped
from understudy.protocol.messages import (
    Arm,
    Cancelled,
    Done,
    Failed,
    FailureCause,
    Faulty,
    Gave,
    Halted,
    Here,
    Parked,
    Prepared,
    Recorded,
    Rehearsed,
    Saved,
    Settled,
    Stalled,
    Switched,
    Tracked,
    Unprepared,
)

from .cast import Machine, Worker
from .change import Change
from .company import OVER
from .events import Asked, Event, Expired, Lost, Noted, Output, Overdue, Registered, Rejected, Reported, Slipping
from .judgement import Source
from .replacement import Replacement

DULL = (Prepared, Cancelled, Switched, Gave, Settled, Saved)
"""Words that each worker says in every change, or often: they are counted, and nothing else follows from most."""


def _is_dull(event: Event) -> bool:
    return isinstance(event, Reported) and isinstance(event.report, Relayed) and isinstance(event.report.message, DULL)


class Director(Replacement):
    # -- events --------------------------------------------------------------------------------------------------------

    def feed(self, event: Event, now: float = 0.0) -> list[Output]:
        """Take an event in; orders are in the machines' outboxes afterwards."""
        self._now, self._out = now, []
        before = self._outline()
        match event:
            case Registered(name, incarnation, standby, labels):
                self._register(name, incarnation, standby, labels)
            case Rejected(name, _, why):
                self._tale("refused", why, machine=name)
            case Lost(name, incarnation, why, source):
                machine = self.machines.get(name)
                if machine is None and self.status == "forming" and not self.starts:
                    self._fail(f"{name} could not start: {why}")
                elif machine is None:
                    self._tale("lost", f"{name} could not start: {why}", machine=name)
                    self.wanted = max(0, self.wanted - 1)
                    self._refused += 1
                elif machine.incarnation == incarnation and machine.alive:
                    self._lose(machine, why, source)
            case Reported(name, incarnation, number, report):
                machine = self.machines.get(name)
                known = machine is not None and machine.incarnation == incarnation and machine.alive
                if machine is not None and known and machine.inbox.take(number):
                    match report:
                        case Leaving():
                            self._notified(machine, report)
                        case KeptCopy(recorded):
                            self._copied(machine, recorded)
                        case _:
                            self._heed(report)
            case Asked(id, request):
                self.requests.add(id)
                self._ask(id, request)
            case Overdue(id):
                self._overdue(id)
            case Slipping():
                pass  # what is known is looked at in any case
            case Expired(what, number):
                self._expired(what, number)
            case Noted(kind, text, data):
                self._tale(kind, text, **data)
        self._advance(dull=_is_dull(event) and all(map(is_, self._outline(), before)))
        return self._out

    def _heed(self, report: Relayed | Exited | Stopped) -> None:
        actor = self.actors[report.uid]
        if isinstance(report, Relayed) and isinstance(report.message, Saved):
            self.saves.setdefault(report.message.role, set()).add(report.message.step)  # whoever has written it
        if not actor.alive:
            return
        if isinstance(report, Exited):
            self._exited(actor, report)
            return
        if isinstance(report, Stopped):
            self._give_up_on([actor.uid], f"has been stopped by a signal for {report.seconds:.0f} s")
            return
        match report.message:
            case Here(worker, pid):
                actor.address, actor.pid = worker, pid
                self._starting.pop(actor.uid, None)
            case Tracked(role, twins, size):
                actor.holds, self.sizes[role] = True, size
                self._know_twins(role, twins)
            case Parked(role):
                if role == actor.rehearsing:
                    actor.rehearsed, actor.rehearsing = role, None
            case Recorded(role, _, size, steps) as recorded:
                self.recordings.made(self.machines[actor.machine].place, recorded)
                if not recorded.url:
                    return
                said = f"role {role} has recorded {steps} steps for newcomers to rehearse with: {size / 1e6:.3g} MB"
                self._tale("recorded", said, role=role, bytes=size)
            case Rehearsed(role, seconds, also, diverged, fixed):
                if role == actor.rehearsing:  # else another one is wanted meanwhile
                    actor.rehearsed, actor.rehearsing, actor.also, actor.fixed = role, None, also, fixed
                    if diverged:
                        text = f"{self._name(actor)} does something else than what was recorded: {diverged}"
                        self._tale("rehearsal", text, uid=actor.uid)
                    tour, cell = self.machines[actor.machine].tour, self.plan.cells[role]
                    tour[cell] = seconds or tour.get(cell, 0.0)
            case Prepared(generation, seconds):
                if (change := self._in(generation)) is not None:
                    change.opened[actor.uid] = seconds
                    if change.phase == "prepare":
                        change.waiting.discard(actor.uid)
            case Unprepared(generation, why):
                if (change := self._in(generation)) is not None:
                    self._unprepared(change, actor, why)
            case Cancelled(generation):
                if (change := self._in(generation)) is not None and change.phase == "cancel":
                    change.waiting.discard(actor.uid)
            case Switched() as switched:
                self._switched(actor, switched)
            case Gave(generation):
                if (change := self._in(generation)) is not None and change.phase == "switch":
                    change.waiting.discard(actor.uid)
            case Settled(generation, _, lost):
                self._settled(actor, generation, lost)
            case Halted() as halted:
                self._halted(actor, halted)
            case Done() as done:
                actor.done = done
                self.closing_at = self.closing_at or self._now
                self.halted.discard(actor.uid)
            case Stalled() as stalled:
                actor.stalled = stalled if stalled.roles else None
                self._look_for_deadlock()
            case Faulty(reason, fatal):
                self._signal("script", [actor], f"{self._name(actor)}: {reason}", dead=False, trusted=not fatal)
            case Failed(step, error, _, cause):
                if not self._plays(actor.uid):
                    self._tale("rehearsal", f"{self._name(actor)} failed: {error}", uid=actor.uid)
                else:
                    self._stumble(actor, f"{self._name(actor)} failed in step {step}: {error}", cause)

    def _copied(self, machine: Machine, recorded: Recorded) -> None:
        self.recordings.copied(machine.place, recorded)
        if recorded.url:
            said = f"{machine.name} keeps a copy of what role {recorded.role} has recorded"
            self._tale("copied", said, machine=machine.name, role=recorded.role)

    # -- machines ------------------------------------------------------------------------------------------------------

    def _register(self, name: str, incarnation: str, standby: bool, labels: dict[str, str]) -> None:
        old = self.machines.get(name)
        if old is not None and old.incarnation == incarnation:
            return
        if old is not None and old.alive:
            self._lose(old, "its agent was started again", "agent")
        cast = self.status == "forming" and not standby and self._has_room()
        machine = self.machines[name] = Machine(name, incarnation, "cast" if cast else "standby", labels=labels)
        if old is not None:
            machine.history, machine.pardoned, machine.ill = old.history, old.pardoned, old.ill
        if self.status in OVER:
            self._dismiss(machine, f"the job is {self.status}")
            return
        self._refills = 0
        if not cast and self.wanted:
            self.wanted -= 1
        if old is not None and self._quarantined(machine):
            return
        self._tale("machine", f"{name} has come" + ("" if cast else " as a standby"), machine=name)
        for slot in range(self.plan.nproc):
            machine.actors.append(self._start(machine, slot))

    def _has_room(self) -> bool:
        """Whether not all places of the first generation are taken."""
        places = len(self.plan.opening)
        if len(self.machines) < places:
            return True
        return sum(machine.state == "cast" for machine in self.machines.values()) < places

    def _lose(self, machine: Machine, why: str, source: Source = "heartbeat") -> None:
        self._tale("lost", f"{machine.name} is gone: {why}", machine=machine.name)
        dead, cast = [actor for actor in machine.everybody if actor.alive], machine.state == "cast"
        if machine.notice is None:
            self._blemish(machine, why)
        self._dismiss(machine, why, again=machine.notice is None)  # fences it, should it still live
        self._signal(source, dead, f"{machine.name} is gone: {why}", cast=cast)

    def _exited(self, actor: Worker, report: Exited) -> None:
        actor.alive = False
        self.halted.discard(actor.uid)
        machine = self.machines[actor.machine]
        if actor.done is not None or self.status in OVER:
            return
        how = f"was killed by signal {-report.code}" if report.code < 0 else f"ended with exit code {report.code}"
        if report.code or self._plays(actor.uid):  # else it could not change its role, and another one can
            self._blemish(machine, f"{actor.uid} {how}")
        cast = machine.state == "cast" and self.status == "forming"
        said = report.words.strip().splitlines()
        words = f": {said[-1]}" if said else ""
        if report.code >= 0 and (cast or self._plays(actor.uid)):
            if report.code == 0 and not actor.holds:
                words = "; let the script call understudy.run(train)"
            text = f"{self._name(actor)} {how} before the job was over{words}"
            if report.code == 0 or not actor.holds:
                self._fail(text, "no-train" if report.code == 0 and not actor.holds else "exits")
            else:
                self._stumble(actor, text, "exits")
            return
        self._tale("died", f"{self._name(actor)} {how}", machine=machine.name, uid=actor.uid)
        self._signal("exit", [actor], f"{self._name(actor)} {how}")

    def _stumble(self, actor: Worker, text: str, cause: FailureCause) -> None:
        """A script has failed where it played. Another worker tries once more; the second time it is the script."""
        if actor.alive:
            self._condemn(actor, text)
        role = self._seat(actor.uid)
        if role is None or not actor.holds:
            self._fail(text, cause)  # it has not come to its first step
            return
        self._stumbled[role] = text
        self._tale("died", text, machine=actor.machine, uid=actor.uid, cause=cause)
        self._signal("script", [actor], text)

    # -- what follows from what is so ----------------------------------------------------------------------------------

    def _outline(self) -> tuple[object, ...]:
        """By what it is seen that something has come of an event."""
        return (self.status, self.change, self.settling, self.roster, len(self.queue))

    def _advance(self, *, dull: bool = False) -> None:
        """Take the steps that have become possible; after a dull event only those that wait for it."""
        while self.status not in OVER and self._step(dull=dull):
            dull = False
        if not dull:
            self._anticipate()
            self._foresee()
        self._finish()

    def _step(self, *, dull: bool = False) -> bool:
        """Take one; whether there was one."""
        change = self.change
        if self.status == "halting" and not self.halted:
            self._decide()
            return self.status != "halting"
        if change is None:
            if dull:
                return False
            if self.status == "forming":
                return self._form()
            return self.status == "training" and self._next()
        if change.phase == "rehearse" and self._rehearsed(change):
            self._propose(change) if change.planned else self._resume(change)
            return True
        if change.phase == "cancel" and not dull:
            change.waiting = set(self._living(change.waiting))  # the dead do not answer
        if change.waiting:
            return False
        if change.phase == "prepare":
            self._phase(change, "armed")
            for move in change.moves:
                self._tell(move.giver.uid, Arm(change.generation))
        elif change.phase == "cancel":
            self._give_up(change)
        elif change.phase == "switch":
            self._complete(change)
        else:
            return False
        return True

    def _form(self) -> bool:
        if self.vacancies:
            self._fill_vacancies()
        if len(self.machines) < len(self.plan.opening) or self._awaits_worker():
            return False
        cast = [machine for machine in self.machines.values() if machine.state == "cast"]
        opening = self.plan.opening
        if len(cast) < len(opening) or not all(machine.whole for machine in cast):
            return False
        cast.sort(key=lambda machine: (len(machine.name), machine.name))
        places = {cell: machine.name for cell, machine in zip(opening, cast, strict=False)}
        vacant = tuple(role for role, cell in enumerate(self.plan.cells) if cell not in places)
        self.change = Change("form", places, {}, vacant=vacant, spared=vacant)
        if vacant:
            self._vacated(vacant, f"the job begins with {len(opening)} of {self.plan.machines} machines")
        self._resume(self.change)
        return True

    def _awaits_worker(self) -> bool:
        """Whether somebody who is to play has yet to say that they are there."""
        found = next((actor for actor in self._starting.values() if self._is_awaited(actor)), None)
        if found is None:
            self._starting = {uid: actor for uid, actor in self._starting.items() if actor.alive}
        return found is not None

    def _is_awaited(self, actor: Worker) -> bool:
        return actor.alive and self.machines[actor.machine].state == "cast"

    def _finish(self) -> None:
        if self.status not in ("training", "closing") or self.roster is None:
            return
        if self.status == "training" and not self.closing_at:
            return  # nobody has come to the end
        seated = [self.actors[uid] for uid in self.roster.seats if uid is not None]
        ends = [actor.done for actor in seated if actor.done is not None]
        if self._last_words:
            if not any(actor.alive and actor.done is None for actor in map(self.actors.__getitem__, self._keepers)):
                self._fail(self._ending())
            return
        if not ends and not any(actor.alive for actor in seated) and self.status == "closing":
            self._fail(f"{self.why}; nobody is left who has made all steps")
        if not ends or any(actor.alive and actor.done is None for actor in seated):
            return
        self.status = "stopped" if any(end.stopped for end in ends) else "finished"
        step = max(end.step for end in ends)
        self._tale(self.status, f"{self.status} after {step} steps", step=step)
        self._close(f"the job is {self.status}")
