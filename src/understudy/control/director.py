"""The controller's mind: events in, orders and tales out. No clock, no socket, no file; the same events give the same
orders, so that a controller that comes back reads its ledger and knows where everybody stands."""

from __future__ import annotations

import msgspec

from understudy.agent.messages import Exited, Word
from understudy.worker.messages import (
    Arm,
    Cancel,
    Cancelled,
    Done,
    Failed,
    Finish,
    Gave,
    Halt,
    Halted,
    Here,
    Prepare,
    Prepared,
    Rehearse,
    Rehearsed,
    Resume,
    Settled,
    Stalled,
    Stop,
    Switched,
    Tracked,
    Unprepared,
)

from .cast import Actor, Machine
from .change import Change, Phase, Wish
from .company import ATTEMPTS, OVER, Company, Plan
from .events import (
    AddStandby,
    Asked,
    Event,
    Lost,
    Output,
    Overdue,
    Registered,
    RemoveStandby,
    Replace,
    Reported,
    StopJob,
)
from .recovery import Holder, Hopeless, settle


class Director(Company):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.reason = ""
        """Why the job has failed."""
        self.twins: dict[int, tuple[int, ...]] = {}
        """Roles that hold identical copies of a role's state."""
        self.settling: Change | None = None
        """The last change, until its first step is done everywhere; so long, those who gave their roles away stay, and
        go on should a newcomer die."""
        self.halts = 0
        self.halted: set[str] = set()
        """Who must report before anything is decided."""
        self.why = ""
        """Of the last halt."""
        self._involved: set[str] = set()
        self._interrupted: Change | None = None
        """What was under way when it came to that."""
        self.stopping = False

    # -- events --------------------------------------------------------------------------------------------------------

    def feed(self, event: Event, now: float = 0.0) -> list[Output]:
        """Take an event in; orders are in the machines' outboxes afterwards."""
        self._now, self._out = now, []
        match event:
            case Registered(name, incarnation, standby):
                self._register(name, incarnation, standby)
            case Lost(name, incarnation, why):
                machine = self.machines.get(name)
                if machine is None and self.status == "forming":
                    self._fail(f"{name} could not start: {why}")
                elif machine is None:
                    self._tale("lost", f"{name} could not start: {why}", machine=name)
                    self.wanted = max(0, self.wanted - 1)
                elif machine.incarnation == incarnation and machine.alive:
                    self._lose(machine, why)
            case Reported(name, incarnation, number, report):
                machine = self.machines.get(name)
                known = machine is not None and machine.incarnation == incarnation and machine.alive
                if machine is not None and known and machine.inbox.take(number):
                    self._heed(report)
            case Asked(id, request):
                self._ask(id, request)
            case Overdue(id):
                self._overdue(id)
        self._advance()
        return self._out

    def _heed(self, report: Word | Exited) -> None:
        actor = self.actors[report.uid]
        if not actor.alive:
            return
        if isinstance(report, Exited):
            self._exited(actor, report)
            return
        match report.message:
            case Here(worker, pid):
                actor.address, actor.pid = worker, pid
            case Tracked(role, twins):
                actor.holds, self.twins[role] = True, twins
            case Rehearsed(role):
                actor.rehearsed, actor.rehearsing = role, None
            case Prepared(generation):
                if (change := self._in(generation)) is not None and change.phase == "prepare":
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
                self.halted.discard(actor.uid)
            case Stalled() as stalled:
                actor.stalled = stalled if stalled.roles else None
                self._look_for_deadlock()
            case Failed(step, error):
                if not self._plays(actor.uid):
                    self._tale("rehearsal", f"{self._name(actor)} failed: {error}", uid=actor.uid)
                else:
                    self._fail(f"{self._name(actor)} failed in step {step}: {error}")

    def _in(self, generation: int) -> Change | None:
        """The change under way, if it is to this generation."""
        return self.change if self.change is not None and self.change.generation == generation else None

    # -- machines ------------------------------------------------------------------------------------------------------

    def _register(self, name: str, incarnation: str, standby: bool) -> None:
        old = self.machines.get(name)
        if old is not None and old.incarnation == incarnation:
            return
        if old is not None and old.alive:
            self._lose(old, "its agent was started again")
        seats = sum(machine.state == "cast" for machine in self.machines.values())
        cast = self.status == "forming" and not standby and seats < self.plan.machines
        machine = self.machines[name] = Machine(name, incarnation, "cast" if cast else "standby")
        if old is not None:
            machine.failures = old.failures
        if self.status in OVER:
            self._dismiss(machine, f"the job is {self.status}")
            return
        if not cast and self.wanted:
            self.wanted -= 1
        self._tale("machine", f"{name} has come" + ("" if cast else " as a standby"), machine=name)
        for slot in range(self.plan.nproc):
            machine.actors.append(self._start(machine, slot))

    def _lose(self, machine: Machine, why: str) -> None:
        self._tale("lost", f"{machine.name} is gone: {why}", machine=machine.name)
        dead, cast = [actor for actor in machine.actors if actor.alive], machine.state == "cast"
        self._dismiss(machine, why)  # fences it, should it still live
        self._bereaved(dead, f"{machine.name} is gone: {why}", cast=cast)

    def _exited(self, actor: Actor, report: Exited) -> None:
        actor.alive = False
        self.halted.discard(actor.uid)
        machine = self.machines[actor.machine]
        if actor.done is not None or self.status in OVER:
            return
        how = f"was killed by signal {-report.code}" if report.code < 0 else f"ended with exit code {report.code}"
        cast = machine.state == "cast" and self.status == "forming"
        said = report.words.strip().splitlines()
        words = f": {said[-1]}" if said else ""
        if report.code >= 0 and (cast or self._plays(actor.uid)):
            if report.code == 0 and not actor.holds:
                words = "; let the script call understudy.run(train)"
            self._fail(f"{self._name(actor)} {how} before the job was over{words}")
            return
        self._tale("died", f"{self._name(actor)} {how}", machine=machine.name, uid=actor.uid)
        self._bereaved([actor], f"{self._name(actor)} {how}", cast=cast)

    def _bereaved(self, dead: list[Actor], why: str, *, cast: bool) -> None:
        """What the death of these workers means; `cast` says whether their machine was among the first."""
        if self.status in OVER:
            return
        change, uids = self.change, {actor.uid for actor in dead}
        self.halted -= uids
        if self.status == "forming" and change is None:
            if cast:
                self._fail(f"{why} while the job was starting")
        elif self.status in ("halting", "closing"):
            self.why = why  # it goes on when the others have reported
        elif change is not None and not change.planned:
            if uids & ({*change.joiners.values(), *change.givers.values()} | self._seated(change)):
                self._halt(why)
        elif uids & self._seated(None) or (change is not None and change.phase == "switch" and change.waiting & uids):
            self._halt(why)
        elif change is not None and uids & set(change.joiners.values()):
            if change.phase == "switch":
                self._halt(why)
            else:
                self._cancel(why)
        for actor in dead:
            self._restaff(actor)

    # -- what follows from what is so ----------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Take the steps that have become possible."""
        while self.status not in OVER and self._step():
            pass
        self._anticipate()
        self._finish()

    def _step(self) -> bool:
        """Take one; whether there was one."""
        change = self.change
        if self.status == "halting" and not self.halted:
            self._decide()
            return self.status != "halting"
        if change is None:
            if self.status == "forming":
                return self._form()
            return self.status == "training" and self._next()
        if change.phase == "rehearse" and self._rehearsed(change):
            self._propose(change) if change.planned else self._resume(change)
            return True
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

    def _rehearsed(self, change: Change) -> bool:
        return all(self.actors[uid].rehearsed == role for role, uid in change.joiners.items())

    def _phase(self, change: Change, phase: Phase) -> None:
        change.phase = phase
        self._mark(change, phase)

    def _mark(self, change: Change, what: str) -> None:
        change.clock[what] = self._now
        self._tale("phase", what, change=change.request, generation=change.generation)

    def _form(self) -> bool:
        cast = [machine for machine in self.machines.values() if machine.state == "cast"]
        if len(cast) < self.plan.machines or not all(machine.whole for machine in cast):
            return False
        cast.sort(key=lambda machine: (len(machine.name), machine.name))
        places = {cell: machine.name for cell, machine in enumerate(cast)}
        self.change = Change("form", places, {})
        self._resume(self.change)
        return True

    # -- planned replacement -------------------------------------------------------------------------------------------

    def _ask(self, id: str, request: Replace | AddStandby | RemoveStandby | StopJob) -> None:
        if self.status in OVER:
            self._reply(id, False, f"the job is {self.status}")
            return
        match request:
            case Replace(machines):
                problem = self.objection(request)
                if problem:
                    self._reply(id, False, problem)
                else:
                    self._tale("asked", f"replace {', '.join(machines)}", id=id)
                    self.queue.append(Wish(id, request))
            case AddStandby(count) if count < 1:
                self._reply(id, False, f"{count} standbys cannot be added; ask for at least one")
            case AddStandby(count):
                self.wanted += count
                self._tale("wanted", f"{count} standby machine{'s' if count > 1 else ''} wanted", count=count)
                self._reply(id, True, f"{count} more asked for")
            case RemoveStandby(name):
                machine = self.machines.get(name)
                if machine is None or machine.state != "standby":
                    self._reply(id, False, f"{name} is not a standby; standbys: {self._names('standby')}")
                elif self.change is not None and name in self.change.places.values():
                    self._reply(id, False, f"{name} is about to play; wait until the replacement is over")
                else:
                    self._dismiss(machine, "an operator has removed it")
                    self._tale("machine", f"{name} is dismissed", machine=name)
                    self._reply(id, True, f"{name} is dismissed")
            case StopJob():
                self.stopping = True
                self._tale("asked", "stop at the next boundary", id=id)
                if self.status == "forming" and self.change is None:
                    self._reply(id, True, "the job had not begun")
                    self.status = "stopped"
                    self._tale("stopped", "stopped before the first step", step=0)
                    self._close("the job is stopped")
                    return
                self._reply(id, True, "the job stops at its next step boundary")
                for uid in self._living(self._seated(self.change)):
                    self._tell(uid, Stop())

    def _next(self) -> bool:
        """Begin the first replacement that waits, when its standbys are there; whether there was one."""
        while self.queue:
            wish = self.queue[0]
            request = wish.request
            machines = [self.machines[name] for name in request.machines]
            if not all(machine.state == "cast" for machine in machines):
                self.queue.popleft()
                self._reply(wish.id, True, "no longer needed: the machine has been replaced after a failure")
                continue
            if request.standbys and not all(self.machines[name].state == "standby" for name in request.standbys):
                self.queue.popleft()
                self._reply(wish.id, False, f"standby {' or '.join(request.standbys)} is gone; ask for another one")
                continue
            chosen = self._choose(wish)
            if chosen is None:
                coming = sum(machine.state == "standby" for machine in self.machines.values()) + self.wanted
                if coming >= len(machines):
                    return False
                self.queue.popleft()
                self._reply(wish.id, False, "no standby is left; add one with: understudy standby add")
                continue
            self.queue.popleft()
            wish.attempts += 1
            self._begin(wish, machines, chosen)
            return True
        return False

    def _anticipate(self) -> None:
        """Those who come next rehearse while a change is under way."""
        if self.status != "training" or self.change is None:
            return
        taken, homes = set(self.change.places.values()), self._homes()
        for wish in self.queue:
            for number, name in enumerate(wish.request.machines):
                cell = homes.get(name)
                named = wish.request.standbys[number] if wish.request.standbys else ""
                machine = None if cell is None else self._suitable(cell, taken, named)
                if cell is not None and machine is not None:
                    taken.add(machine.name)
                    self._rehearse(self._workers({cell: machine.name}))

    def _choose(self, wish: Wish) -> list[Machine] | None:
        """A standby for each machine; None while not all are ready."""
        chosen: list[Machine] = []
        for number, name in enumerate(wish.request.machines):
            cell = self._homes()[name]
            named = wish.request.standbys[number] if wish.request.standbys else ""
            machine = self._stand_in(cell, {machine.name for machine in chosen}, named)
            if machine is None:
                return None
            chosen.append(machine)
        return chosen

    def _begin(self, wish: Wish, machines: list[Machine], chosen: list[Machine]) -> None:
        assert self.roster is not None
        homes = self._homes()
        places = {homes[old.name]: new.name for old, new in zip(machines, chosen, strict=True)}
        leaving = tuple(machine.name for machine in machines)
        self.change = Change("replace", places, self._workers(places), leaving=leaving, wish=wish)
        for machine in machines:
            machine.state = "leaving"
        moves = ", ".join(f"{old.name} → {new.name}" for old, new in zip(machines, chosen, strict=True))
        self._tale("change", moves, change=wish.id)
        self._phase(self.change, "rehearse")
        if wish.request.stop_the_world:
            self._halt(f"{moves}, with the world stopped")
        else:
            self._rehearse(self.change.joiners)

    def _rehearse(self, joiners: dict[int, str]) -> None:
        for role, uid in joiners.items():
            actor = self.actors[uid]
            if actor.rehearsed != role and actor.rehearsing != role:
                actor.role, actor.rehearsing, actor.rehearsed = role, role, None
                self._tell(uid, Rehearse(role))

    def _propose(self, change: Change) -> None:
        assert self.roster is not None
        seats = self.roster.seats
        change.roster = self._next_roster(change.places, fresh=False)
        change.moves = tuple(self._move(role, str(seats[role]), uid) for role, uid in change.joiners.items())
        change.waiting = {*self._seated(change)}
        self._phase(change, "prepare")
        for uid in sorted(change.waiting):
            self._tell(uid, Prepare(change.roster, change.moves))

    def _unprepared(self, change: Change, actor: Actor, why: str) -> None:
        if not change.planned:
            self._halt(f"{self._name(actor)}: {why}")
        elif change.phase in ("prepare", "armed"):
            self._cancel(f"{self._name(actor)}: {why}")

    def _cancel(self, why: str) -> None:
        """Give a planned change up, unless it turns out that the vote was faster."""
        change = self.change
        assert change is not None
        if change.phase == "cancel":
            change.waiting = set(self._living(change.waiting))
            return
        change.failed = why
        change.waiting = set() if change.roster is None else set(self._living(self._seated(change)))
        self._phase(change, "cancel")
        for uid in sorted(change.waiting):
            self._tell(uid, Cancel(change.generation))

    def _give_up(self, change: Change) -> None:
        self.change = None
        for name in change.leaving:
            if self.machines[name].state == "leaving":
                self.machines[name].state = "cast"
        self._tale("cancelled", change.failed, change=change.request)
        self._again(change, change.failed)

    def _again(self, change: Change, why: str) -> None:
        """The replacement did not come about: it waits for its next turn, if it has one."""
        wish = change.wish
        assert wish is not None
        free = sum(machine.state == "standby" for machine in self.machines.values()) + self.wanted
        if wish.attempts < ATTEMPTS and free >= len(change.leaving):
            request = msgspec.structs.replace(wish.request, standbys=())
            self.queue.appendleft(Wish(wish.id, request, wish.attempts))
        else:
            self._reply(change.request, False, f"{why}; training goes on as before")

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

    def _complete(self, change: Change) -> None:
        self._unsettled()
        self.change, self.settling = None, change
        self.status = "training"
        self._mark(change, "first step")
        for cell, name in change.places.items():
            self.machines[name].state = "cast"
            self._tale("seated", f"{name} plays {self._span(cell)}", machine=name, generation=change.generation)
        playing = {worker.machine for worker in change.roster.workers} if change.roster is not None else set()
        for machine in list(self.machines.values()):
            if machine.state not in ("leaving", "cast") or machine.name in playing:
                continue
            if machine.name in change.leaving:
                machine.state = "leaving"
            else:
                self._release(machine)
        for machine in self.machines.values():
            if machine.state == "standby" and any(actor.holds for actor in machine.actors):
                self._renew(machine)  # nobody may take what it holds for a role's state
        self._conclude()
        if self.stopping:
            for uid in self._living(self._seated(None)):
                self._tell(uid, Stop())

    def _unsettled(self) -> None:
        """The last change is over, whatever was measured of it."""
        change, self.settling = self.settling, None
        if change is None:
            return
        playing = set() if self.roster is None else {worker.machine for worker in self.roster.workers}
        for name in change.leaving:
            if self.machines[name].state == "leaving" and name not in playing:
                self._release(self.machines[name], change.request)
        if change.lost is None:
            self._reply(change.request, True, "done; what training lost by it could not be measured")

    def _release(self, machine: Machine, request: str = "") -> None:
        self._tale("released", f"{machine.name} is released", machine=machine.name, change=request)
        self._dismiss(machine, "it was replaced")

    def _settled(self, actor: Actor, generation: int, lost: float | None) -> None:
        """The first step of a generation is done somewhere; training has lost what the slowest has."""
        for change in (self.change, self.settling):
            if change is not None and change.generation == generation:
                change.losses[actor.uid] = lost
        self._conclude()

    def _conclude(self) -> None:
        """End the last change once everybody has made its first step."""
        change = self.settling
        if change is None or change.roster is None or len(change.losses) < len(change.roster.workers):
            return
        losses = [lost for lost in change.losses.values() if lost is not None]
        if change.lost is None and len(losses) == len(change.losses):
            change.lost = max(losses)
            said = f"training lost {change.lost:.3f} s"
            facts: dict[str, object] = {
                "lost": change.lost,
                "phases": change.phases(self._now),
                "bytes": sum(size for size, _, _ in change.moved.values()),
                "again": any(again for _, _, again in change.moved.values()),
            }
            self._tale("settled", said, change=change.request, **facts)
            self._reply(change.request, True, said, **facts)
        if self.status == "training":
            self._unsettled()

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

    # -- failure -------------------------------------------------------------------------------------------------------

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

    # -- the end -------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        if self.status not in ("training", "closing") or self.roster is None:
            return
        seated = [self.actors[uid] for uid in self.roster.seats if uid is not None]
        ends = [actor.done for actor in seated if actor.done is not None]
        if not ends and not any(actor.alive for actor in seated) and self.status == "closing":
            self._fail(f"{self.why}; nobody is left who has made all steps")
        if not ends or any(actor.alive and actor.done is None for actor in seated):
            return
        self.status = "stopped" if any(end.stopped for end in ends) else "finished"
        step = max(end.step for end in ends)
        self._tale(self.status, f"{self.status} after {step} steps", step=step)
        self._close(f"the job is {self.status}")

    def _fail(self, reason: str) -> None:
        if self.status in OVER:
            return
        self.status, self.reason = "failed", reason
        self._tale("failed", reason)
        self._close("the job has failed")

    def _close(self, why: str) -> None:
        self._unsettled()
        for change in (self.change, self._interrupted):
            if change is not None:
                self._reply(change.request, False, why)
        for wish in self.queue:
            self._reply(wish.id, False, why)
        self.queue.clear()
        for machine in self.machines.values():
            if machine.alive:
                self._dismiss(machine, why)

    def due(self) -> list[tuple[float, Overdue]]:
        """What must not take longer than until then."""
        wishes = [*self.queue, *([self.change.wish] if self.change is not None and self.change.wish else [])]
        return [(wish.request.by, Overdue(wish.id)) for wish in wishes if wish.request.by is not None]

    def _overdue(self, id: str) -> None:
        """A replacement was not done in time: it is no use any more where it has not begun to change anything."""
        for wish in [wish for wish in self.queue if wish.id == id]:
            self.queue.remove(wish)
            self._reply(id, False, "no standby was ready in time; training goes on as before")
        change = self.change
        if change is not None and change.request == id and change.planned and change.phase in ("rehearse", "prepare"):
            assert change.wish is not None
            change.wish.attempts = ATTEMPTS
            self._cancel("it was not done in time")
