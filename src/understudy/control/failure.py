"""Somebody is gone, or cannot go on: everybody halts, reports, and begins again together."""

from __future__ import annotations

from understudy.worker.messages import Finish, Halt, Halted, Resume, Stalled, Switched

from .cast import Actor
from .change import Change
from .recovery import Holder, Hopeless, settle
from .transition import Transition


class Failure(Transition):
    def _halt(self, why: str) -> None:
        """Nobody goes on until everybody who is left has said how far they have come."""
        change, self.change = self.change, None
        self.status = "halting"
        self.halts += 1
        self.why = why
        self._tale("halt", why, halt=self.halts)
        involved = self._seated(change)
        if change is not None and change.planned:
            for name in change.leaving:
                if self.machines[name].state == "leaving":
                    self.machines[name].state = "cast"
        self._interrupted = change
        involved |= {uid for uid, actor in self.actors.items() if actor.alive and actor.holds}
        if change is not None:
            involved |= {move.taker.uid for move in change.moves}
        self.halted = {uid for uid in self._living(involved) if self.actors[uid].done is None}
        for uid in sorted(self.halted):
            self.actors[uid].report = None
            self._tell(uid, Halt(self.halts, why))
        self._involved = involved

    def _halted(self, actor: Actor, halted: Halted) -> None:
        if halted.how == "mismatch":
            self._fail(f"{self._name(actor)} in step {halted.step}: {halted.reason}")
        elif halted.number == 0:
            if self.status in ("training", "recovering"):
                self._halt(halted.reason or f"{self._name(actor)} has noticed a failure")
        elif halted.number == self.halts and self.status == "halting":
            actor.report = halted
            actor.holds = halted.holds
            self.halted.discard(actor.uid)

    def _decide(self) -> None:
        survivors = [self.actors[uid] for uid in self._living(self._involved)]
        change = self._interrupted
        if any(self.actors[uid].done for uid in self._involved) or any(a.report and a.report.over for a in survivors):
            self.status = "closing"
            for actor in survivors:
                self._tell(actor.uid, Finish())
            return
        holders = [
            Holder(actor.uid, actor.machine, role, actor.report)
            for actor in survivors
            if actor.report is not None and actor.report.holds and (role := actor.role) is not None
        ]
        stopped = change is not None and change.wish is not None and change.wish.request.stop_the_world
        coming, leaving = ([], []) if change is None else (list(change.places.values()), list(change.leaving))
        seated = [] if self.roster is None else [worker.machine for worker in self.roster.workers]
        try:
            unwanted = leaving if stopped else []
            settlement = settle(holders, self.plan.cells, self.twins, [*coming, *seated], unwanted)
            if not stopped and len(settlement.missing) > sum(
                m.state == "standby" and m.name not in coming for m in self.machines.values()
            ):
                # who has come can stand in
                settlement = settle(holders, self.plan.cells, self.twins, [*leaving, *seated])
        except Hopeless as error:
            self._fail(f"{self.why}; {error}")
            return
        places = dict(settlement.kept)
        for cell in settlement.missing:
            machine = self._stand_in(cell, set(places.values()))
            if machine is None:
                free = [m for m in self.machines.values() if m.state == "standby" and m.name not in places.values()]
                if not free and not self.wanted:
                    self._fail(f"{self.why}; no standby is left for {self._span(cell)}")
                return  # one is starting
            places[cell] = machine.name
        self._interrupted = None
        self._reconsider(places)
        self._tale("decided", settlement.reason, step=settlement.step, missing=list(settlement.missing))
        self.status = "recovering"
        joiners = {role: uid for role, uid in self._workers(places).items() if role in settlement.givers}
        recover = Change("recover", places, joiners, step=settlement.step, givers=settlement.givers)
        if change is not None and change.wish is not None:
            if all(name not in places.values() for name in change.leaving):
                recover.wish, recover.leaving = change.wish, change.leaving  # the failure does what was asked for
            else:
                self._again(change, self.why)
        self.change = recover
        self._phase(recover, "rehearse")
        self._rehearse(recover.joiners)

    def _reconsider(self, places: dict[int, str]) -> None:
        """Where the last change is undone, because somebody who had left goes on, it is to be made again."""
        change = self.settling
        if change is not None and set(change.leaving) & set(places.values()):
            self.settling = None
            self._again(change, self.why)

    def _resume(self, change: Change) -> None:
        change.roster = self._next_roster(change.places, fresh=True)
        change.moves = tuple(self._move(role, giver, change.joiners[role]) for role, giver in change.givers.items())
        self._phase(change, "open")
        for role, uid in enumerate(change.roster.seats):
            if uid is not None:
                self.actors[uid].role = role
        told = {uid for uid in change.roster.seats if uid is not None} | {move.giver.uid for move in change.moves}
        change.waiting = told
        for uid in sorted(told):
            self._tell(uid, Resume(change.roster, change.step, change.moves))

    def _switched(self, actor: Actor, switched: Switched) -> None:
        change = self._in(switched.generation)
        if change is None or change.roster is None:
            return
        if change.phase != "switch":
            seats = {uid for uid in change.roster.seats if uid is not None}
            leavers = {move.giver.uid for move in change.moves} - seats
            change.waiting = seats | leavers
            self.roster = change.roster
            self._phase(change, "switch")
        if "hand-over" not in change.clock and any(move.giver.uid == actor.uid for move in change.moves):
            self._mark(change, "hand-over")
        role = change.roster.role_of(actor.uid)
        if role is not None:
            change.waiting.discard(actor.uid)
            if switched.bytes:
                change.moved[actor.uid] = (switched.bytes, switched.seconds, switched.again)
            actor.holds = actor.holds or any(move.taker.uid == actor.uid for move in change.moves)
        if any(not self.actors[uid].alive for uid in change.waiting):
            self._halt(change.failed or "a worker died before it could switch")

    def _look_for_deadlock(self) -> None:
        """Everybody waits, and nobody is where another one waits for them: the script's roles do not agree."""
        if self.status != "training" or self.roster is None:
            return
        seats = {role: self.actors[uid] for role, uid in enumerate(self.roster.seats) if uid is not None}
        places: dict[int, Stalled] = {}
        for role, actor in seats.items():
            if actor.stalled is None or actor.stalled.generation != self.roster.generation:
                return
            places[role] = actor.stalled
        for stalled in places.values():
            if all(role in places and places[role].number == stalled.number and places[role].roles == stalled.roles
                   for role in stalled.roles):  # fmt: skip
                return  # they are in it together: it is only slow
        first = next(iter(places))
        other = next(role for role in places[first].roles if places[role] != places[first])
        self._fail(
            f"{self._name(seats[first])} {places[first].what}, while {self._name(seats[other])} {places[other].what}: "
            "all roles must run the same steps and call the same operations in the same order"
        )
