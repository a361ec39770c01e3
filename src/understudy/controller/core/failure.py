"""Somebody is gone, or cannot go on: everybody halts, reports, and begins again together."""

from __future__ import annotations

from understudy.protocol.messages import Conclude, Finish, Halt, Halted, Resume, Stalled, Switched
from understudy.protocol.sentences import listed

from .cast import Machine, Worker
from .change import Change
from .company import ATTEMPTS, OVER
from .settlement import STATE, Holder, Settlement, StateLost, fall_back, latest_copy, settle
from .vacancies import STUBBORN, Vacancies


class Failure(Vacancies):
    # -- the halt ------------------------------------------------------------------------------------------------------

    def _halt(self, why: str) -> None:
        """Nobody goes on until everybody who is left has said how far they have come."""
        self._recycle()
        change, self.change = self.change, None
        self.status = "halting"
        self.halts += 1
        self.why = why
        self.halted_at, self.waiting = self._now, ""
        self._tale("halt", why, halt=self.halts)
        involved = self._seated(change)
        if change is not None and change.planned:
            for name in change.leaving:
                if self.machines[name].state == "leaving":
                    self.machines[name].state = "cast"
        self._interrupted = change
        involved |= {
            uid for uid, a in self.actors.items() if a.alive and (a.holds or (a.report is not None and a.report.able))
        }
        if change is not None:
            involved |= {move.taker.uid for move in change.moves}
        self.halted = {uid for uid in self._living(involved) if self.actors[uid].done is None}
        for uid in sorted(self.halted):
            self.actors[uid].report = None
            self._tell(uid, Halt(self.halts, why))
        self._involved = involved

    def _halted(self, actor: Worker, halted: Halted) -> None:
        if halted.how == "mismatch":
            self._fail(f"{self._name(actor)} in step {halted.step}: {halted.reason}", "collectives")
        elif halted.number == 0:
            if self.status in ("training", "recovering") or (self.status == "forming" and self.change is not None):
                why = halted.reason or f"{self._name(actor)} has noticed a failure"
                late = self._suspects() if halted.how == "timeout" else []
                self._tale("signal", why, source="limit" if halted.how == "timeout" else "link", act="halt")
                self._halt(why)
                self._give_up_on(late, "keeps the others waiting")
        elif halted.number == self.halts and self.status == "halting":
            actor.report = halted
            actor.holds = halted.holds
            self.halted.discard(actor.uid)

    # -- the decision --------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        survivors = self._survivors()
        change = self._interrupted
        if any(self.actors[uid].done for uid in self._involved) or any(a.report and a.report.over for a in survivors):
            if self._stumbled:
                self._fail(next(iter(self._stumbled.values())))
                return
            self.status = "closing"
            for actor in survivors:
                self._tell(actor.uid, Finish())
            return
        settlement = self._settlement(survivors, change)
        if settlement is None:
            return
        spared = self._spared(settlement, survivors)
        settlement = settlement.without(self._cells(spared), spared)
        if self._stuck(settlement):
            return
        places = dict(settlement.kept)
        stopped = change is not None and change.wish is not None and change.wish.request.stop_the_world
        vacant = () if stopped else self._to_vacate(settlement, survivors, spared)
        in_place = {actor.uid for actor in survivors if actor.report is not None and actor.report.able}
        lacking = []
        for cell in () if vacant else settlement.missing:
            taken = set(places.values())
            machine = self._at_hand(cell) or self._stand_in(cell, taken)
            if machine is None and not self._free(taken):
                machine = self._own(cell, taken, in_place)
                if machine is None:
                    lacking.append(cell)
            if machine is not None and machine.whole:
                places[cell] = machine.name
        if lacking:
            self._wait_for_machine(lacking)
        if not vacant and not places.keys() >= set(settlement.missing):
            return  # one is starting, or has yet to come
        if vacant:
            places = self._places_without(settlement, (*vacant, *spared))
        self._interrupted = None
        self.waiting = ""
        self._stumbles |= {(role, settlement.reached) for role in self._stumbled}
        self._stumbled.clear()
        self._deaths.update((cell, settlement.reached) for cell in settlement.missing)
        plans = [each for each in (change, self.settling) if each is not None and each.wish is None]
        self._reconsider(places)
        facts = {"source": settlement.back or "replica", "repeated": settlement.repeated}
        missing = list(settlement.missing)
        reason = settlement.reason if settlement.givers and not vacant else settlement.reason.partition(STATE)[0]
        roles = [role for cell in missing for role in self._roles(cell)]
        self._tale("decided", reason, step=settlement.step, missing=missing, roles=roles, **facts)
        self.status = "recovering"
        workers = self._workers(places)
        joiners = {
            role: uid
            for role, uid in workers.items()
            if not vacant
            and self.plan.cells[role] in settlement.missing
            and (uid not in in_place or self.actors[uid].role != role)
        }
        givers = {role: uids for role, uids in settlement.givers.items() if not vacant and workers[role] not in uids}
        recover = Change("recover", places, joiners, step=settlement.step, givers=givers, copies=settlement.copies)
        recover.vacant, recover.spared = tuple(sorted((*vacant, *spared))), spared
        recover.back = settlement.back
        reports = [Holder(a.uid, a.machine, a.role, a.report) for a in survivors if a.report and a.role is not None]
        recover.copied = latest_copy(reports, self.plan.roles, self.twins)
        if change is not None and change.wish is not None:
            if all(name not in places.values() for name in change.leaving):
                recover.wish, recover.leaving = change.wish, change.leaving  # the failure does what was asked for
            else:
                self._again(change, self.why)
        elif names := {name for each in plans if each.kind != "refill" for name in each.leaving}:
            recover.leaving = tuple(sorted(names - set(places.values())))  # they go all the same
            recover.keep = any(each.keep for each in plans)
        self.change = recover
        self._phase(recover, "rehearse")
        self._rehearse(recover.joiners)

    def _survivors(self) -> list[Worker]:
        """Who is left of those who were asked. Those of a standby that have only rehearsed other roles do not count."""
        living = [self.actors[uid] for uid in self._living(self._involved)]
        return [actor for actor in living if actor in self.machines[actor.machine].actors[actor.slot : actor.slot + 1]]

    def _settlement(self, survivors: list[Worker], change: Change | None) -> Settlement | None:
        """Where to go on and with whom; None where the job begins anew or has failed."""
        if self.roster is None:
            self._nothing_left("nobody who is left holds any state")
            return None
        reports = [
            Holder(actor.uid, actor.machine, role, actor.report)
            for actor in survivors
            if actor.report is not None and (role := actor.role) is not None
        ]
        holders = [holder for holder in reports if holder.report.holds]
        stopped = change is not None and change.wish is not None and change.wish.request.stop_the_world
        coming, leaving = ([], []) if change is None else (list(change.places.values()), list(change.leaving))
        seated = [worker.machine for worker in self.roster.workers]
        unwanted = leaving if stopped else []
        cells = self.plan.cells
        try:
            settlement = settle(holders, cells, self.twins, [*coming, *seated], unwanted)
            free = sum(m.state == "standby" and m.name not in coming for m in self.machines.values())
            if not stopped and len(set(settlement.missing) - self._cells(self._spared(settlement, survivors))) > free:
                # who has come can stand in
                settlement = settle(holders, cells, self.twins, [*leaving, *seated])
            return settlement
        except StateLost as error:
            lost = str(error)
        able = [holder for holder in reports if holder.report.able]
        try:
            return fall_back(able, cells, self.twins, self._latest_checkpoint(), lost, [*coming, *seated], unwanted)
        except StateLost:
            self._nothing_left(lost)
        return None

    def _nothing_left(self, lost: str) -> None:
        if not self.begun and not self._stumbled and self.starts < STUBBORN:
            self._start_over()
        elif self._stumbled:
            self._fail(next(iter(self._stumbled.values())))
        else:
            self._fail(f"{self.why}; {lost}, and there is no checkpoint; keep some with --checkpoint DIR")

    def _stuck(self, settlement: Settlement) -> bool:
        """Whether the same happens again and again."""
        for role, text in self._stumbled.items():
            if (role, settlement.reached) in self._stumbles:
                self._fail(text)
                return True
        for cell in settlement.missing:
            if self._deaths[cell, settlement.reached] >= STUBBORN:
                self._fail(f"{self.why}; {self._span(cell)} died {STUBBORN} times in step {settlement.reached}")
                return True
        return False

    def _own(self, cell: int, taken: set[str], in_place: set[str]) -> Machine | None:
        """The machine that has played a cell, where only workers of it have died; they are started again, as are those
        that have not come to their first boundary."""
        if self.roster is None:
            return None
        names = {worker.machine for role in self._roles(cell) if (worker := self.roster.player(role)) is not None}
        names |= {name for name in [self.parked.get(cell)] if name is not None}
        for machine in (self.machines[name] for name in sorted(names - taken)):
            if machine.state == "cast" and not machine.ill and machine.failures < self.plan.quarantine:
                for actor, role in zip(list(machine.actors), self._roles(cell), strict=True):
                    fresh = actor.role is None or role in (actor.rehearsing, actor.rehearsed)
                    if actor.alive and (fresh or actor.uid in in_place):
                        continue
                    if actor.alive:
                        self._condemn(actor, "")
                    machine.actors[actor.slot] = self._start(machine, actor.slot)
                return machine
        return None

    def _wait_for_machine(self, cells: list[int]) -> None:
        """No standby is left for these: ask for machines and wait, or stop."""
        if not self.waiting:
            spans = " and ".join(self._span(cell) for cell in cells)
            self.waiting = f"{self.why}; no standby is left for {spans}"
            if self.plan.scarcity == "stop":
                self._conclude_job(self.waiting)
                return
            self.waiting_since, self._refused = self._now, 0
            self._tale("waiting", f"{self.waiting}: training waits for one; add one with: understudy standby add")
        if not self.wanted and self._refused < ATTEMPTS:
            self._want(len(cells))

    def _start_over(self) -> None:
        """Nothing has been computed that would be worth keeping: everybody begins anew."""
        self.starts += 1
        self._tale("decided", "no step was made yet: all begin anew", step=0, missing=[], source="start", repeated=0)
        change, self._interrupted = self._interrupted, None
        if change is not None and change.wish is not None:
            self._again(change, self.why)
        self.roster, self.status, self.waiting = None, "forming", ""
        self.twins.clear()
        for machine in self.machines.values():
            if machine.state == "cast" and not self._quarantined(machine):
                self._renew(machine)
        self.vacancies = len(self.plan.opening) - sum(m.state == "cast" for m in self.machines.values())

    def _refound(self, actors: list[Worker]) -> None:
        """Before the first generation: somebody else for those who have died."""
        for actor in actors:
            machine = self.machines[actor.machine]
            if machine.state == "cast" and not self._quarantined(machine):
                machine.actors[actor.slot] = self._start(machine, actor.slot)
        self.vacancies += len({actor.machine for actor in actors if self.machines[actor.machine].state != "cast"})

    def _fill_vacancies(self) -> None:
        """Before the first step: standbys take the places of machines that are gone."""
        here = sum(machine.state == "cast" for machine in self.machines.values())
        self.vacancies = min(self.vacancies, len(self.plan.opening) - here)
        for machine in sorted(self._free(set()), key=lambda machine: not machine.whole)[: self.vacancies]:
            machine.state = "cast"
            self.vacancies -= 1
            if any(actor.role is not None for actor in machine.actors):
                self._renew(machine)
        if not self.vacancies:
            return
        if self.plan.scarcity == "stop" or self._refused >= ATTEMPTS:
            self._fail(f"{self.why}; the job has not begun, and there is no standby")
            return
        if not self.waiting:
            self.waiting = f"{self.why}; the job has not begun, and there is no standby"
            self.waiting_since = self._now
            self._tale("waiting", f"{self.waiting}: it waits for one; add one with: understudy standby add")
        if not self.wanted:
            self._want(self.vacancies)

    def _conclude_job(self, why: str) -> None:
        """End with a checkpoint of what there is."""
        survivors = self._survivors()
        settlement = self._settlement(survivors, self._interrupted)
        if settlement is None or self.status in OVER:
            return
        if settlement.back:
            lost, saved = settlement.reason.split(": all go back")[0], self._latest_checkpoint()
            self._fail(f"{why}; {lost}; " + ("there is no checkpoint" if saved is None else _continued(saved)))
            return
        reached = {settlement.step: (True, False), settlement.step - 1: (True,)}
        tasks: dict[str, list[int]] = {
            actor.uid: []
            for actor in survivors
            if (report := actor.report) and report.holds and report.voted in reached.get(report.step, ())
        }
        for actor in survivors:
            if actor.role is not None and settlement.kept.get(self.plan.cells[actor.role]) == actor.machine:
                tasks[actor.uid].append(actor.role)
        for role, givers in settlement.givers.items():
            tasks[givers[0]].append(role)
        self._last_words, self._last_step, self._keepers = why, settlement.step, set(tasks)
        self.status, self.waiting = "closing", ""
        for uid, roles in tasks.items():
            self._tell(uid, Conclude(settlement.step, tuple(roles)))
        self.closing_at = self._now

    def _ending(self) -> str:
        if self._latest_checkpoint() == self._last_step:
            return f"{self._last_words}; {_continued(self._last_step)}"
        return f"{self._last_words}; no checkpoint could be written"

    def _reconsider(self, places: dict[int, str]) -> None:
        """Where the last change is undone, because somebody who had left goes on, it is to be made again."""
        change = self.settling
        if change is not None and set(change.leaving) & set(places.values()):
            self.settling = None
            self._again(change, self.why)

    def _resume(self, change: Change) -> None:
        change.roster = self._next_roster(change.places, fresh=True, vacant=change.vacant)
        takers = self._workers(change.places)
        change.moves = tuple(
            self._move(role, giver, takers[role], part, len(givers), change.copies.get(role, -1))
            for role, givers in change.givers.items()
            for part, giver in enumerate(givers)
        )
        self._phase(change, "open")
        for role, uid in enumerate(change.roster.seats):
            if uid is not None:
                self.actors[uid].role = role
        told = {uid for uid in change.roster.seats if uid is not None} | {move.giver.uid for move in change.moves}
        change.waiting = told
        for uid in sorted(told):
            self.actors[uid].entered, self.actors[uid].parked = True, False
            self._tell(uid, Resume(change.roster, change.step, change.moves, change.back, change.copied))
        if change.vacant:
            self._park(change)

    def _switched(self, actor: Worker, switched: Switched) -> None:
        actor.entered, actor.parked = True, False
        change = self._in(switched.generation)
        if change is None or change.roster is None:
            return
        first = change.phase != "switch"
        if first:
            seats = {uid for uid in change.roster.seats if uid is not None}
            leavers = {move.giver.uid for move in change.moves} - seats
            change.waiting = seats | leavers
            self.roster = change.roster
            self._phase(change, "switch")
            if change.kind == "shrink":
                self._vacated(change.vacant, f"from here on without {listed(change.leaving)}")
        if "hand-over" not in change.clock and any(move.giver.uid == actor.uid for move in change.moves):
            self._mark(change, "hand-over")
        role = change.roster.role_of(actor.uid)
        if role is not None:
            change.waiting.discard(actor.uid)
            if switched.bytes:
                change.moved[actor.uid] = (switched.bytes, switched.seconds, switched.again)
            took = bool(change.back) or any(move.taker.uid == actor.uid for move in change.moves)
            actor.holds = actor.holds or took
        if first and any(not self.actors[uid].alive for uid in change.waiting):  # who dies later is seen to then
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
            if all(places[role].number == stalled.number and places[role].roles == stalled.roles
                   for role in stalled.roles if role in places):  # fmt: skip
                return  # they are in it together: it is only slow
        first = next(iter(places))
        other = next(role for role in places[first].roles if role in places and places[role] != places[first])
        self._fail(
            f"{self._name(seats[first])} {places[first].what}, while {self._name(seats[other])} {places[other].what}: "
            "all roles must run the same steps and call the same operations in the same order",
            "collectives",
        )


def _continued(step: int) -> str:
    return f"step {step} is in the checkpoint: the same command goes on from there"
