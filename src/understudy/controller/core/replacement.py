"""What operators ask for: planned replacement from the request to the vote."""

from __future__ import annotations

from collections import Counter

from understudy.protocol.frames import KeepCopy
from understudy.protocol.messages import Cancel, Prepare, Stop
from understudy.protocol.provisioning import ReleaseMachine

from .cast import Machine, Worker, free, ready
from .change import Change, QueuedReplacement
from .company import OVER
from .events import (
    AddStandby,
    Expired,
    Overdue,
    Readmit,
    RemoveStandby,
    Replace,
    ReportFault,
    Request,
    Scale,
    Slipping,
    StopJob,
    TakeBack,
)
from .turns import Turns


class Replacement(Turns):
    def _ask(self, id: str, request: Request) -> None:
        if self.status in OVER:
            self._reply(id, False, f"the job is {self.status}")
            return
        match request:
            case Replace():
                problem = self.objection(request)
                if problem:
                    self._reply(id, False, problem)
                else:
                    self._tale("asked", self._asked(request), id=id, **({"why": request.why} if request.why else {}))
                    self.queue.append(QueuedReplacement(id, request))
                    self._foresee()  # its turn may come at once
            case TakeBack(name):
                self._take_back(id, name)
            case AddStandby(count) if count < 1:
                self._reply(id, False, f"{count} standbys cannot be added; ask for at least one")
            case AddStandby(count):
                self._want(count)
                self._reply(id, True, f"{count} more asked for")
            case RemoveStandby(name, why):
                machine = self.machines.get(name)
                if machine is None or machine.state != "standby":
                    self._reply(id, False, f"{name} is not a standby; standbys: {self._names('standby')}")
                elif self.change is not None and name in self.change.places.values():
                    self._reply(id, False, f"{name} is about to play; wait until the replacement is over")
                else:
                    self._dismiss(machine, why)
                    self._out.append(ReleaseMachine(name, self._now))
                    self._tale("released", f"{name} is dismissed", machine=name)
                    self._reply(id, True, f"{name} is dismissed")
            case Scale():
                self._scale(id, request)
            case ReportFault(name, why, fatal):
                self._reported_ill(id, name, why, fatal)
            case Readmit(name):
                machine = self.machines.get(name)
                if machine is None or machine.state != "quarantined":
                    self._reply(id, False, f"{name} is not in quarantine; those that are: {self._names('quarantined')}")
                else:
                    machine.state, machine.ill, machine.pardoned = "standby", False, len(machine.history)
                    machine.why = ""
                    self._tale("machine", f"{name} is out of quarantine and a standby", machine=name)
                    machine.actors = [self._start(machine, slot) for slot in range(self.plan.nproc)]
                    self._reply(id, True, f"{name} is a standby again")
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

    def _asked(self, request: Replace) -> str:
        said = f"{'drain' if request.in_turns else 'replace'} {', '.join(request.machines)}"
        said += "" if request.by is None else f" within {request.by - self._now:.0f} s"
        return f"{said}: {request.why}" if request.why else said

    def _anticipate(self) -> None:
        """Those who come next rehearse while a change is under way; other standbys, what may be needed one day."""
        if self.status != "training":
            return
        self._line_up()
        taken, homes = set() if self.change is None else set(self.change.places.values()), self._homes()
        for wish in self.queue:
            for number, name in enumerate(wish.request.machines):
                cell = homes.get(name)
                named = wish.request.standbys[number] if wish.request.standbys else ""
                machine = None if cell is None else self._suitable(cell, taken, named)
                if cell is not None and machine is not None:
                    taken.add(machine.name)
                    self._rehearse(self._workers({cell: machine.name}))
        if self.settling is None and not self._recording_under_way():
            self._warm_up(taken)
            if self.change is None and self.recordings:
                self._keep_copies()

    def _keep_copies(self) -> None:
        """Recordings are to outlive the machines that have made them."""
        staying = [machine for machine in self.machines.values() if machine.notice is None]
        standbys, others = ([each.place for each in staying if each.state == state] for state in ("standby", "cast"))
        for (name, _), recorded in self.recordings.to_copy(standbys, others, self._is_there):
            self._order(self.machines[name], KeepCopy(recorded))

    def _recording_under_way(self) -> bool:
        """Whether those who record the first steps are still at it."""
        if not self.plan.records or self.roster is None or self.roster.generation > 1:
            return False
        known: set[int] = set()
        for role, same in sorted(self.twins.items()):
            if role in known:
                continue
            if role not in self.recordings:  # the first of its kind
                return True
            known.update(same)
        return False

    def _warm_up(self, taken: set[str]) -> None:
        """Standbys rehearse before they are needed: each kind of role in turn, and then the one in which they wait,
        each in another one than the others where it can."""
        idle = self._free(taken) if self.plan.warm else []
        if not idle:
            return
        kinds = self._kinds()
        homes: Counter[int] = Counter()
        restless: list[tuple[Machine, list[Worker]]] = []
        for machine in idle:
            if len(machine.sets) < min(self.plan.warm, self.plan.machines) and self._is_warm(machine):
                machine.wings.append([self._start(machine, slot) for slot in range(self.plan.nproc)])
            for actors in filter(free, machine.sets):
                cells = {self.plan.cells[actor.rehearsed] for actor in actors if actor.rehearsed is not None}
                ready_to_wait = len(cells) == 1 and all(actor.rehearsed is not None for actor in actors)
                stays = actors is not machine.actors or any(actor.fixed for actor in actors)
                if ready_to_wait and (stays or not self._unknown(machine, kinds)):
                    homes.update(cells)
                else:
                    restless.append((machine, actors))
        for machine, actors in restless:
            home = self._home(machine, actors, kinds, homes)
            homes[home] += 1
            ahead = [kind[0] for kind in self._unknown(machine, kinds) if home not in kind]
            cell = ahead[0] if ahead and actors is machine.actors else home
            if not any(actor.rehearsing is not None for actor in actors):
                self._rehearse({role: actor.uid for role, actor in zip(self._roles(cell), actors, strict=True)})

    def _unknown(self, machine: Machine, kinds: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The kinds of roles that a machine's workers have not rehearsed."""
        return [kind for kind in kinds if not machine.tour.keys() & set(kind)]

    def _home(self, machine: Machine, actors: list[Worker], kinds: list[tuple[int, ...]], homes: Counter[int]) -> int:
        """The cell in which these workers are to wait: of the most common kind, in proportion to who waits there."""
        for actor in actors:
            if actor.fixed and actor.rehearsed is not None:
                return self.plan.cells[actor.rehearsed]
        others = {cell for each in machine.sets if each is not actors for cell in self._coverage(each)}
        ranked = []
        for kind in kinds:
            crowd = sum(homes[each] for each in kind) / len(kind)
            ranked.append(min((cell in others, crowd, homes[cell], -len(kind), cell) for cell in kind))
        return min(ranked)[-1]

    def _kinds(self) -> list[tuple[int, ...]]:
        """Cells whose roles hold the same state, machine by machine: they run the same program on the same shapes."""
        kinds: list[list[int]] = []
        likely: dict[int, list[tuple[list[int], list[set[int]]]]] = {}
        """First role of a cell → kinds whose first role holds the same, with what each role of theirs is like."""
        for cell, roles in sorted(self.plan.roles_in.items()):
            for kind, like in likely.get(roles[0], ()):
                if all(role in same for role, same in zip(roles, like, strict=True)):
                    kind.append(cell)
                    break
            else:
                new, like = [cell], [set(self.twins.get(role, ())) for role in roles]
                kinds.append(new)
                for twin in like[0]:
                    likely.setdefault(twin, []).append((new, like))
        return [tuple(kind) for kind in kinds]

    def _coverage(self, actors: list[Worker]) -> set[int]:
        """The cells that these workers could take at once, or will be able to."""
        going = {self.plan.cells[actor.rehearsing] for actor in actors if actor.rehearsing is not None}
        known = {self.plan.cells[role] for role in (actors[0].rehearsed, *actors[0].also) if role is not None}
        return going | {cell for cell in known if all(map(ready, actors, self._roles(cell)))}

    def _is_warm(self, machine: Machine) -> bool:
        return all(actor.alive and actor.rehearsed is not None for actor in machine.everybody)

    def _begin(self, wish: QueuedReplacement, machines: list[Machine], chosen: list[Machine], reason: str) -> None:
        assert self.roster is not None
        homes = self._homes()
        places = {homes[old.name]: new.name for old, new in zip(machines, chosen, strict=True)}
        leaving = tuple(machine.name for machine in machines)
        self.change = Change("replace", places, self._workers(places), leaving=leaving, wish=wish)
        for machine in machines:
            machine.state = "leaving"
        moves = ", ".join(f"{old.name} → {new.name}" for old, new in zip(machines, chosen, strict=True))
        self._tale("change", f"{moves} ({reason})" if reason else moves, change=wish.id)
        self._phase(self.change, "rehearse")
        if wish.request.stop_the_world:
            self._halt(f"{moves}, with the world stopped")
        else:
            self._rehearse(self.change.joiners)

    def _propose(self, change: Change) -> None:
        assert self.roster is not None
        load: dict[str, int] = {}
        change.moves = tuple(self._move(role, self._giver(role, load), uid) for role, uid in change.joiners.items())
        all_links = change.wish is not None and change.wish.request.all_links
        change.roster = self._next_roster(change.places, fresh=all_links, vacant=change.vacant)
        change.waiting = {*self._seated(change)}
        self._phase(change, "prepare")
        for uid in sorted(change.waiting):
            self._tell(uid, Prepare(change.roster, change.moves))

    def _unprepared(self, change: Change, actor: Worker, why: str) -> None:
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

    def due(self) -> list[tuple[float, Overdue | Slipping | Expired]]:
        """What must not take longer than until then."""
        if self.status in OVER:
            return []
        change = self.change
        found: list[tuple[float, Overdue | Slipping | Expired]] = [*self._deadlines()]
        found += [
            (actor.started + self.plan.rehearsal_limit, Expired("start", int(actor.uid[1:])))
            for actor in self._late_starters()
        ]
        if self.status == "halting" and self.halted:
            found.append((self.halted_at + self.plan.answer_limit, Expired("answer", self.halts)))
        elif self.waiting and (self.status == "halting" or (self.status == "forming" and self.vacancies)):
            found.append((self.waiting_since + self.plan.patience, Expired("patience", self.halts)))
        if self.closing_at:
            found.append((self.closing_at + self.plan.limit, Expired("end", self.halts)))
        if change is None:
            return found
        if change.phase == "rehearse":
            found.append(
                (change.clock["rehearse"] + self.plan.rehearsal_limit, Expired("rehearse", self._attempt(change)))
            )
        elif change.phase == "cancel":
            found.append((change.clock["cancel"] + self.plan.answer_limit, Expired("cancel", change.generation)))
        elif not change.planned and "open" in change.clock:
            found.append((change.clock["open"] + self.plan.limit, Expired("switch", change.generation)))
        return found
