"""Who is there and who plays: machines, workers and the roster, and how the controller speaks to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from understudy.protocol.frames import Dismiss, EndWorker, Order, StartWorker, Tell
from understudy.protocol.messages import Move, ToWorker
from understudy.protocol.roster import Roster, WorkerAddress
from understudy.protocol.settings import NoStandby

from .cast import Machine, Worker, suit, warmth
from .change import Change, QueuedReplacement
from .events import Output, Replace, Reply, Tale

Status = Literal["forming", "training", "halting", "recovering", "closing", "finished", "stopped", "failed"]
OVER = ("finished", "stopped", "failed")
PLAN = "plan.json"
"""The file beside a ledger with what its controller knew of the job."""
ATTEMPTS = 3
"""How often a replacement is tried with another standby, and a standby's worker started again."""


@dataclass(frozen=True)
class JobPlan:
    """What the controller must know of a job."""

    machines: int
    nproc: int
    answer_limit: float = 10.0
    """Seconds in which a worker answers the controller, whatever it computes."""
    limit: float = 300.0
    """Seconds that may lie between two things that all workers do together."""
    rehearsal_limit: float = 900.0
    """Seconds in which a worker comes to life, and in which a newcomer has rehearsed."""
    patience: float = 600.0
    """Seconds to wait for a machine where no standby is left."""
    scarcity: NoStandby = "wait"
    """What to do then: ask for a machine and wait, stop, or go on without the replica."""
    quarantine: int = 3
    """Failures after which a machine is not used any more."""
    warm: int = 1
    """For how many machines' roles a standby keeps rehearsed workers, before any is needed."""
    records: bool = False
    """Whether one role of each kind records its first steps, for standbys to rehearse with."""
    mask: str = ""
    """Whether training goes on without a replica that is gone, and which data the others have; empty: it does not."""
    first: tuple[int, ...] = ()
    """Cells with which the job begins, the roles of the others being vacant; empty: all."""
    at_once: int = 0
    """How many machines are drained at one boundary, at most; 0: all of a request."""

    @property
    def roles(self) -> int:
        return self.machines * self.nproc

    @cached_property
    def cells(self) -> tuple[int, ...]:
        return tuple(role // self.nproc for role in range(self.roles))

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """Cells that are played in the first generation."""
        return self.first or tuple(range(self.machines))

    @cached_property
    def roles_in(self) -> dict[int, tuple[int, ...]]:
        """The roles of each cell."""
        found: dict[int, list[int]] = {}
        for role, cell in enumerate(self.cells):
            found.setdefault(cell, []).append(role)
        return {cell: tuple(roles) for cell, roles in found.items()}


class Company:
    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.status: Status = "forming"
        self.machines: dict[str, Machine] = {}
        self.actors: dict[str, Worker] = {}
        self.roster: Roster | None = None
        """The latest that somebody is known to play in."""
        self.generations = 0
        self.change: Change | None = None
        """What is under way."""
        self.queue: deque[QueuedReplacement] = deque()
        """Replacements that have been asked for and not begun."""
        self.wanted = 0
        """Standbys that were asked for and have not come."""
        self.spent: list[str] = []
        """Machines that have lost their roles, and become standbys once the others have made their next step."""
        self.halted: set[str] = set()
        """Who must report before anything is decided."""
        self.saves: dict[int, set[int]] = {}
        """Role → steps of which its part of a checkpoint is on disk."""
        self.requests: set[str] = set()
        """Ids of all that was ever asked for."""
        self.answers: dict[str, Reply] = {}
        """To requests, by their ids."""
        self.addressed: dict[str, None] = {}
        """Machines that were given orders since somebody last looked, so that nobody has to look at all of them."""
        self._now = 0.0
        self._out: list[Output] = []
        self._starting: dict[str, Worker] = {}
        """Workers that were started and have not said that they are there; some may have died."""
        self._at_home: tuple[Roster | None, dict[str, int]] = (None, {})
        """A roster, and the cell that each machine plays in it."""

    # -- the roster --------------------------------------------------------------------------------------------------

    def _roles(self, cell: int) -> tuple[int, ...]:
        return self.plan.roles_in[cell]

    def _span(self, cell: int) -> str:
        roles = self._roles(cell)
        return f"role {roles[0]}" if len(roles) == 1 else f"roles {roles[0]} to {roles[-1]}"

    def _homes(self) -> dict[str, int]:
        """The cell that each machine plays."""
        assert self.roster is not None
        if self._at_home[0] is not self.roster:
            players = [(cell, self.roster.player(role)) for role, cell in enumerate(self.plan.cells)]
            homes = {worker.machine: cell for cell, worker in players if worker is not None}
            self._at_home = (self.roster, homes)
        return self._at_home[1]

    def _seated(self, change: Change | None) -> set[str]:
        """Everyone who plays, or is about to without a vote."""
        seats = [] if self.roster is None else [uid for uid in self.roster.seats if uid is not None]
        if change is not None and change.roster is not None:
            seats += [uid for uid in change.roster.seats if uid is not None]
        return set(seats)

    def _seat(self, uid: str) -> int | None:
        role = None if self.roster is None else self.roster.role_of(uid)
        if role is None and self.change is not None and self.change.roster is not None:
            role = self.change.roster.role_of(uid)
        return role

    def _plays(self, uid: str) -> bool:
        """Whether the job needs this worker; a newcomer is only needed once the others have agreed on it."""
        change = self.change
        coming = None if change is None or change.planned else change.roster
        return any(roster is not None and roster.role_of(uid) is not None for roster in (self.roster, coming))

    def _workers(self, places: dict[int, str]) -> dict[int, str]:
        """Who plays the roles of these cells if these machines take them."""
        return {
            role: self.machines[name].actors[slot].uid
            for cell, name in places.items()
            for slot, role in enumerate(self._roles(cell))
        }

    def _next_roster(self, places: dict[int, str], *, fresh: bool, vacant: Iterable[int] = ()) -> Roster:
        """The roster in which these machines take these cells, and nobody these roles."""
        self.generations += 1
        workers: dict[int, WorkerAddress | None]
        workers = {role: self.actors[uid].address for role, uid in self._workers(places).items()}
        workers |= dict.fromkeys(vacant)
        if self.roster is None:
            pairs = [(role, worker.uid) for role, worker in workers.items() if worker is not None]
            listed = [worker for worker in workers.values() if worker is not None]
            return Roster.of(self.generations, pairs, listed, roles=self.plan.roles, cells=self.plan.cells)
        return self.roster.successor(workers, generation=self.generations, fresh=fresh)

    def _move(self, role: int, giver: str, taker: str, part: int = 0, parts: int = 1, copy_of: int = -1) -> Move:
        source, target = self.actors[giver].address, self.actors[taker].address
        assert source is not None
        assert target is not None
        return Move(role, source, target, part, parts, copy_of)

    def _latest_checkpoint(self) -> int | None:
        """The latest step of which all roles have written their part."""
        written = [self.saves.get(role, set()) for role in range(self.plan.roles)]
        return max(set.intersection(*written), default=None)

    # -- machines and workers ----------------------------------------------------------------------------------------

    def _start(self, machine: Machine, slot: int) -> Worker:
        actor = Worker(f"w{len(self.actors)}", machine.name, slot, started=self._now)
        self.actors[actor.uid] = self._starting[actor.uid] = actor
        self._order(machine, StartWorker(actor.uid, slot))
        return actor

    def _late_starters(self) -> list[Worker]:
        """Living workers that have not said yet that they are there."""
        self._starting = {uid: actor for uid, actor in self._starting.items() if actor.alive and actor.address is None}
        return list(self._starting.values())

    def _dismiss(self, machine: Machine, reason: str, *, again: bool = False) -> None:
        self._order(machine, Dismiss(reason, again))
        machine.state, machine.why = "gone", reason
        for actor in machine.everybody:
            actor.alive = False

    def _restaff(self, actor: Worker) -> None:
        """A standby whose worker has died gets another one, a few times."""
        machine = self.machines[actor.machine]
        if machine.state != "standby" or self.status in OVER:
            return
        for wing in [wing for wing in machine.wings if actor in wing]:
            self._end_workers(wing)
            machine.wings.remove(wing)
        change = self.change
        coming = change is not None and change.phase != "cancel" and machine.name in change.places.values()
        if actor not in machine.actors or coming:
            return
        if not self._quarantined(machine):
            machine.tour.clear()
            machine.actors[actor.slot] = self._start(machine, actor.slot)

    def _blemish(self, machine: Machine, why: str) -> None:
        """Something has gone wrong on a machine."""
        machine.history.append((self._now, why))

    def _quarantined(self, machine: Machine) -> bool:
        """Whether a machine fails too often to be used; it is put aside then."""
        if machine.failures < self.plan.quarantine and not machine.ill:
            return False
        last = machine.history[-1][1]
        why = last if machine.ill else f"{machine.failures} failures, the last one: {last}"
        self._tale("quarantined", f"{machine.name} is in quarantine: {why}", machine=machine.name)
        machine.state, machine.why = "quarantined", why
        self._end_workers(machine.everybody)
        machine.actors.clear()
        machine.wings.clear()
        return True

    def _end_workers(self, actors: Iterable[Worker]) -> None:
        for actor in actors:
            if actor.alive:
                actor.alive = False
                self._order(self.machines[actor.machine], EndWorker(actor.uid))
            self.halted.discard(actor.uid)

    def _recycle(self) -> None:
        """Machines that have lost their roles by a failure, but not their agents, become standbys."""
        spent, self.spent = [self.machines[name] for name in self.spent], []
        for machine in spent:
            if machine.state == "leaving" and self.status not in OVER and machine.notice is not None:
                self._dismiss(machine, "it had to leave")
            elif machine.state == "leaving" and self.status not in OVER and not self._quarantined(machine):
                machine.state = "standby"
                self._tale("machine", f"{machine.name} is a standby again", machine=machine.name)
                self._renew(machine)

    def _expected(self) -> int:
        """Standbys that are there, or will be."""
        here = sum(machine.state == "standby" and machine.notice is None for machine in self.machines.values())
        return here + self.wanted + len(self.spent)

    def _claimed(self) -> int:
        """Of these, those that others take who have asked before, and do not give back."""
        wishes = [wish for wish in self.queue if not wish.request.keep]
        claimed = sum(len(wish.request.machines) for wish in wishes)
        if self.change is not None:
            claimed += sum(self.machines[name].state == "standby" for name in self.change.places.values())
            if self.change.wish is not None and self.change.wish.request.keep:
                claimed -= len(self.change.leaving)
        return claimed

    def _renew(self, machine: Machine) -> None:
        """Start a machine's workers anew: what they hold is not wanted."""
        machine.tour.clear()
        for actor in list(machine.actors):
            if actor.alive:
                self._order(machine, EndWorker(actor.uid))
            actor.alive = False
            machine.actors[actor.slot] = self._start(machine, actor.slot)

    def _stand_in(self, cell: int, taken: set[str], named: str = "") -> Machine | None:
        """A standby for a cell; None while none is ready. Where none could ever, one is started anew."""
        found = self._suitable(cell, taken, named)
        free = self._free(taken, named)
        if found is None and free and all(machine.whole for machine in free):
            self._renew(free[0])
        return found

    def _suitable(self, cell: int, taken: set[str], named: str = "") -> Machine | None:
        """A standby that can take a cell, one that has rehearsed it where there is one. Its workers that have are those
        that would play."""
        roles = self._roles(cell)
        found = [
            (machine, actors)
            for machine in self._free(taken, named)
            for actors in machine.sets
            if suit(actors, roles) and not any(actor.holds for actor in machine.actors)
        ]
        if not found:
            return None
        machine, actors = max(found, key=lambda pair: warmth(pair[1], roles))
        machine.bring_forward(actors)
        return machine

    def _free(self, taken: set[str], named: str = "") -> list[Machine]:
        return [
            machine
            for machine in self.machines.values()
            if machine.state == "standby"
            and machine.notice is None
            and machine.name not in taken
            and named in ("", machine.name)
        ]

    def _living(self, uids: Iterable[str]) -> list[str]:
        """In an order that a controller which comes back finds again."""
        return sorted(uid for uid in uids if self.actors[uid].alive)

    def _names(self, state: str) -> str:
        return ", ".join(m.name for m in self.machines.values() if m.state == state) or "none"

    def _condemn(self, actor: Worker, why: str) -> None:
        """End a worker that may still live; what it says from now on is not heard."""
        machine = self.machines[actor.machine]
        self._order(machine, EndWorker(actor.uid))
        actor.alive = False
        if why:
            self._blemish(machine, why)

    def absent(self) -> str:
        """Whom a job waits for that has never begun; empty where it waits for nobody."""
        here = [machine.name for machine in self.machines.values() if machine.state == "cast"]
        founders = len(self.plan.opening)
        missing = founders - len(here)
        if self.status != "forming" or missing <= 0:
            return ""
        return f"waits for {missing} more of {founders} machines; here: {', '.join(here) or 'none'}"

    def _name(self, actor: Worker) -> str:
        role = self._seat(actor.uid)
        if role is None:
            role = actor.rehearsed if actor.rehearsed is not None else actor.rehearsing
            return f"{actor.uid} on {actor.machine}" + ("" if role is None else f" (rehearsing role {role})")
        return f"role {role} ({actor.uid} on {actor.machine})"

    def objection(self, request: Replace) -> str:
        """Why this cannot be done, now or later."""
        if not request.machines:
            return "name the machines to replace"
        leaving = {name for wish in self.queue for name in wish.request.machines}
        if self.change is not None:
            leaving |= set(self.change.leaving)
        for name in request.machines:
            machine = self.machines.get(name)
            if machine is None:
                return f"there is no machine {name}; machines that play: {self._names('cast')}"
            if machine.state == "standby":
                return f"{name} is a standby and plays no role; remove it with: understudy standby remove {name}"
            if not machine.alive:
                return f"{name} is gone already: {machine.why}"
            if machine.state == "leaving" or name in leaving:
                return f"{name} is being replaced already"
        if len(set(request.machines)) != len(request.machines):
            return "a machine is named twice"
        if request.by is not None and not request.by > self._now:
            return f"the deadline has passed {self._now - request.by:.0f} s ago; name a later one, or none"
        if len(set(request.standbys)) != len(request.standbys):
            return "a standby is named twice; name one for each machine"
        if request.standbys and len(request.standbys) != len(request.machines):
            return f"{len(request.machines)} machines but {len(request.standbys)} standbys; name one for each or none"
        for name in request.standbys:
            machine = self.machines.get(name)
            if machine is None or machine.state != "standby":
                return f"{name} is not a standby; standbys: {self._names('standby')}"
        free, needed = max(0, self._expected() - self._claimed()), len(request.machines)
        if free >= needed:
            return ""
        lacking = f"{needed} standby machines are needed and there are {free}"
        if needed == 1:
            lacking = "a standby machine is needed and none is free"
        return f"{lacking}; add {'one' if needed - free == 1 else 'some'} with: understudy standby add"

    # -- words -------------------------------------------------------------------------------------------------------

    def _tell(self, uid: str, message: ToWorker) -> None:
        actor = self.actors[uid]
        if actor.alive:
            self._order(self.machines[actor.machine], Tell(uid, message))

    def _order(self, machine: Machine, order: Order) -> None:
        machine.outbox.put(order)
        self.addressed[machine.name] = None

    def _tale(self, kind: str, text: str, **data: object) -> None:
        self._out.append(Tale(kind, text, self._now, data))

    def _reply(self, id: str, ok: bool, text: str, **data: object) -> None:
        if id:
            self.answers[id] = Reply(id, ok, text, self._now, data)
            self._out.append(self.answers[id])
