"""The state of a job in the controller: data, queries, and the invariants that hold after every event."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from understudy.protocol.mesh import Mesh, primary_of
from understudy.protocol.messages import EarlyReading
from understudy.protocol.roster import Roster
from understudy.protocol.settings import Settings
from understudy.steward.drains import deadline

from .change import DIRECT_COURSE, PLANNED_COURSE, Change, Phase, QueuedReplacement, TurnOutcome
from .effects import Effect, Reply
from .events import Event
from .machines import Machine, MachineState, Worker
from .recordings import Recordings

PLAN = "plan.json"
"""Name of the file beside a ledger that holds the plan of its job."""
ATTEMPTS = 3
"""How often a replacement is tried with another standby, and how many machines in a row may be refused."""
STUBBORN = 8
"""How often the same thing may fail before the job gives it up."""
FIRST_STEPS = 2
"""Steps after which roles know by comparison which others can give their state."""
RECENT = 5
"""Number of recent replacements by whose duration the next one is estimated."""
STORY = 12
"""Number of recent events that an error shows."""


class JobStatus(StrEnum):
    FORMING = "forming"
    TRAINING = "training"
    HALTING = "halting"
    """All workers stop and report, or training waits for a machine."""
    RECOVERING = "recovering"
    CLOSING = "closing"
    """The last workers finish, or write a last checkpoint."""
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


OVER = (JobStatus.FINISHED, JobStatus.STOPPED, JobStatus.FAILED)


class FailureCause(StrEnum):
    """Why a job has failed."""

    START = "start"
    """A machine or a worker could not start, before the job had begun."""
    SCRIPT = "script"
    """The training script failed, or ended too early."""
    DISAGREEMENT = "disagreement"
    """The roles do not run the same operations."""
    NO_MACHINE = "no-machine"
    """No machine was left for a role."""
    STATE_LOST = "state-lost"
    """No live worker, copy or checkpoint has the state of a role."""
    DIED_AGAIN = "died-again"
    """The machines of a cell died again and again in one step."""
    UNFINISHED = "unfinished"
    """All workers that had made the last step are gone."""


@dataclass(frozen=True)
class JobPlan:
    """What the controller must know of a job before it begins."""

    machines: int
    nproc: int
    settings: Settings = field(default_factory=Settings)
    first: tuple[int, ...] = ()
    """Cells with which the job begins, the roles of the others being vacant; empty: all."""
    mesh: Mesh = ()
    """The job's mesh; empty: one dimension."""

    @property
    def records(self) -> bool:
        """Whether one role of each kind records its first steps, for standbys to rehearse with."""
        return self.settings.standbys.recording_bytes > 0 and self.machines > 1

    @property
    def roles(self) -> int:
        return self.machines * self.nproc

    @cached_property
    def cells(self) -> tuple[int, ...]:
        """The cell of each role."""
        return tuple(role // self.nproc for role in range(self.roles))

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """Cells that have machines in the first generation."""
        return self.first or tuple(range(self.machines))

    @cached_property
    def roles_in(self) -> dict[int, tuple[int, ...]]:
        """The roles of each cell."""
        return {cell: tuple(range(cell * self.nproc, (cell + 1) * self.nproc)) for cell in range(self.machines)}


class Violation(Exception):
    """An invariant of the job's state does not hold."""


@dataclass
class JobState:
    """All that the controller knows of a running job. Only the functions of this package change it."""

    plan: JobPlan
    now: float = 0.0
    """Time of the event that is being handled."""
    effects: list[Effect] = field(default_factory=list)
    """Effects of the event that is being handled."""
    story: deque[Event] = field(default_factory=lambda: deque(maxlen=STORY))
    """The latest events, for errors to show."""

    # -- the job
    status: JobStatus = JobStatus.FORMING
    reason: str = ""
    """Why the job has failed, in words."""
    failure: FailureCause | None = None
    lost_role: int | None = None
    """The role whose state was lost, if the job has failed by that."""
    begun: bool = False
    """Whether a step has been made since the job began."""
    stopping: bool = False
    """Whether an operator has asked the job to stop at its next boundary."""
    restarts: int = 0
    """How often the job has begun anew because no step had been made."""
    missing_machines: int = 0
    """Machines that are missing before the first generation is formed."""
    closing_at: float = 0.0
    """When the first worker ended, or the last checkpoint was ordered; 0: not yet."""
    closing_reason: str = ""
    """Why the job ends after a last checkpoint."""
    closing_step: int = 0
    """Step of the last checkpoint."""
    closing_workers: set[str] = field(default_factory=set)
    """Workers that write the last checkpoint."""

    # -- machines, workers and roles
    machines: dict[str, Machine] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    starting: dict[str, Worker] = field(default_factory=dict)
    """Workers that were started and do not listen yet; some may have died."""
    roster: Roster | None = None
    """The latest roster to which at least one worker has switched."""
    generations: int = 0
    """Number of the latest generation that was proposed."""
    parked: dict[int, str] = field(default_factory=dict)
    """Vacant cell → the machine that is to take it again."""
    retired: list[str] = field(default_factory=list)
    """Machines without roles that become standbys once the others have made their next step."""
    wanted: int = 0
    """Machines that were asked for and have not come."""
    refusals: int = 0
    """Machines in a row that were asked for and could not start."""
    addressed: dict[str, None] = field(default_factory=dict)
    """Machines that were given orders since the server last sent them out."""

    # -- what workers have reported
    twins: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Role → roles that can give its state, itself included: by a comparison, or at first as `alike`."""
    alike: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Role → roles that run the same program on the same shapes, by how their objects were made."""
    own: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Role → tracked objects in which it differs from its twins, which know what it holds."""
    compared: set[int] = field(default_factory=set)
    """Roles that have compared their state with that of the others."""
    named_differences: set[tuple[str, tuple[tuple[int, ...], ...]]] = field(default_factory=set)
    """(object, roles by what they hold) of the differences that were announced."""
    announced_sources: str = ""
    """What was last announced about the sources of all roles' states."""
    replica_cache: list[tuple[int, ...]] = field(default_factory=list)
    """The roles of each replica, found by `twins`; empty: not found yet."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Role → bytes of its state."""
    rate: float = 1e9
    """Bytes of state that are handed over in a second, by the latest measurement."""
    saves: dict[int, set[int]] = field(default_factory=dict)
    """Role → steps of which its part of a checkpoint is on disk."""
    recordings: Recordings = field(default_factory=Recordings)
    early_readings: set[EarlyReading] = field(default_factory=set)
    """What scripts have evaluated too early, as far as it was announced."""
    announced_primary: int | None = None
    """The primary role that was last announced."""

    # -- changes
    change: Change | None = None
    """The change under way."""
    settling: Change | None = None
    """The last change, until all workers have made its first step; until then its leavers stay, and go on if a joiner
    dies."""
    interrupted: Change | None = None
    """The change that was under way when training halted."""
    refill_attempts: int = 0
    """Refills begun since the last one that succeeded."""
    shrink_attempts: int = 0
    """Shrinks begun since the last one that succeeded."""

    # -- a halt
    halts: int = 0
    """Number of the latest halt."""
    halt_reason: str = ""
    halted_at: float = 0.0
    involved: set[str] = field(default_factory=set)
    """Workers that the latest halt concerns."""
    unreported: set[str] = field(default_factory=set)
    """Workers that must report before anything is decided."""
    waiting: str = ""
    """What training waits for; empty: it does not wait."""
    waiting_since: float = 0.0
    script_failures: dict[int, str] = field(default_factory=dict)
    """Role → error of its script, since the last decision."""
    failed_before: set[tuple[int, int]] = field(default_factory=set)
    """(role, step) in which a script has failed."""
    deaths: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(cell, step) → how often the cell was lost in that step."""
    announced_choice: tuple[int, str] = (0, "")
    """The halt for which the choice between masking and replacing was last announced, and the announcement."""

    # -- requests
    queue: deque[QueuedReplacement] = field(default_factory=deque)
    """Replacements that have been asked for and not begun."""
    requests: set[str] = field(default_factory=set)
    """Ids of all requests so far."""
    answers: dict[str, Reply] = field(default_factory=dict)
    """Request → its answer."""
    outcomes: dict[str, list[TurnOutcome]] = field(default_factory=dict)
    """Request → outcomes of its turns so far."""
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Seconds of the last replacements, from the rehearsal to the first step."""
    target_replicas: int | None = None
    """Number of replicas that an operator wants; None: as many as at the beginning."""
    leave_first: frozenset[int] = frozenset()
    """Replicas that leave first if fewer are wanted."""
    keep_leavers: bool = False
    """Whether machines of replicas that leave become standbys."""

    _homes: tuple[Roster | None, dict[str, int]] = (None, {})
    """A roster, and the cell of each of its machines."""

    # -- queries -----------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self.status in OVER

    def roles_of(self, cell: int) -> tuple[int, ...]:
        return self.plan.roles_in[cell]

    def cells_of(self, roles: Iterable[int]) -> set[int]:
        return {self.plan.cells[role] for role in roles}

    def span(self, cell: int) -> str:
        """The roles of a cell, in words."""
        roles = self.roles_of(cell)
        return f"role {roles[0]}" if len(roles) == 1 else f"roles {roles[0]} to {roles[-1]}"

    def homes(self) -> dict[str, int]:
        """Machine → its cell, for all machines that have roles."""
        assert self.roster is not None
        if self._homes[0] is not self.roster:
            seated = [(cell, self.roster.worker_of(role)) for role, cell in enumerate(self.plan.cells)]
            self._homes = (self.roster, {worker.machine: cell for cell, worker in seated if worker is not None})
        return self._homes[1]

    def primary(self) -> int | None:
        """The role that logs and saves, `job.is_primary` in scripts; None if it is not known."""
        if self.roster is None:
            return None
        return primary_of(self.plan.mesh or (("dp", self.plan.roles),), self.roster.seats)

    def vacant(self) -> tuple[int, ...]:
        """Roles that no worker has."""
        return () if self.roster is None else self.roster.vacant

    def seated(self, change: Change | None) -> set[str]:
        """Workers that have roles, in the present roster or in the next one of this change."""
        seats = [] if self.roster is None else [uid for uid in self.roster.seats if uid is not None]
        if change is not None and change.roster is not None:
            seats += [uid for uid in change.roster.seats if uid is not None]
        return set(seats)

    def role_of(self, uid: str) -> int | None:
        """The role that a worker has, or is about to have."""
        role = None if self.roster is None else self.roster.role_of(uid)
        if role is None and self.change is not None and self.change.roster is not None:
            role = self.change.roster.role_of(uid)
        return role

    def has_role(self, uid: str) -> bool:
        """Whether the job needs this worker; a joiner of a planned change is needed only once a worker has switched."""
        change = self.change
        coming = None if change is None or change.planned else change.roster
        return any(roster is not None and roster.role_of(uid) is not None for roster in (self.roster, coming))

    def workers_of(self, places: dict[int, str]) -> dict[int, str]:
        """Role → worker, if these machines take these cells."""
        return {
            role: self.machines[name].workers[slot].uid
            for cell, name in places.items()
            for slot, role in enumerate(self.roles_of(cell))
        }

    def living(self, uids: Iterable[str]) -> list[str]:
        """The living workers among these, in an order that a replay of the ledger repeats."""
        return sorted(uid for uid in uids if self.workers[uid].alive)

    def in_state(self, state: MachineState) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.state == state]

    def names_in(self, state: MachineState) -> str:
        return ", ".join(machine.name for machine in self.in_state(state)) or "none"

    def free_standbys(self, taken: set[str], named: str = "") -> list[Machine]:
        """Standbys that may take a place: not taken, not about to go, and the one that is named, if one is."""
        return [
            machine
            for machine in self.machines.values()
            if machine.state == MachineState.STANDBY
            and machine.notice is None
            and machine.name not in taken
            and named in ("", machine.name)
        ]

    def joining_machines(self) -> set[str]:
        """Machines that take places in the change under way."""
        return set() if self.change is None else set(self.change.places.values())

    def pending(self) -> bool:
        """Whether a planned change is under way to which no worker has switched."""
        return self.change is not None and self.change.planned and self.change.phase != Phase.SWITCH

    def is_here(self, place: tuple[str, str]) -> bool:
        """Whether an agent's incarnation is still part of the job."""
        machine = self.machines[place[0]]
        return machine.alive and machine.place == place

    def latest_checkpoint(self) -> int | None:
        """The latest step of which all roles have written their part."""
        written = [self.saves.get(role, set()) for role in range(self.plan.roles)]
        return max(set.intersection(*written), default=None)

    def describe(self, worker: Worker) -> str:
        """A worker by its role, its uid and its machine, for messages."""
        role = self.role_of(worker.uid)
        if role is None:
            role = worker.rehearsed if worker.rehearsed is not None else worker.rehearsing
            return f"{worker.uid} on {worker.machine}" + ("" if role is None else f" (rehearsing role {role})")
        return f"role {role} ({worker.uid} on {worker.machine})"

    def absent(self) -> str:
        """Machines that a job waits for that has never begun, in words; empty: none."""
        here = [machine.name for machine in self.in_state(MachineState.ACTIVE)]
        founders = len(self.plan.opening)
        missing = founders - len(here)
        if self.status != JobStatus.FORMING or missing <= 0:
            return ""
        return f"waits for {missing} more of {founders} machines; here: {', '.join(here) or 'none'}"

    def line_up(self) -> None:
        """Sort the queue: the earliest deadline first."""
        self.queue = deque(sorted(self.queue, key=lambda item: deadline(item.drain)))

    # -- invariants --------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check the invariants of docs/protocol.md; a violation raises and shows the latest events."""
        broken = [said for holds, said in self._invariants() if not holds]
        if broken:
            raise Violation(f"{'; '.join(broken)}; the latest events: {self.tell_story()}")

    def tell_story(self) -> str:
        return " | ".join(repr(event) for event in self.story)

    def _invariants(self) -> Iterable[tuple[bool, str]]:
        """(whether it holds, the sentence if it does not) of each invariant."""
        status, change, roster = self.status, self.change, self.roster
        yield change is None or status != JobStatus.HALTING, "a change is under way while the workers halt"
        yield change is not None or status != JobStatus.RECOVERING, "the job recovers without a change"
        yield roster is not None or status != JobStatus.TRAINING, "the job trains without a roster"
        yield self.interrupted is None or change is None, "a change is both interrupted and under way"
        ended = status == JobStatus.CLOSING or self.over
        yield self.interrupted is None or status == JobStatus.HALTING or ended, "an interrupted change was forgotten"
        yield not self.over or not self.unanswered(), "the job is over and a request has no answer"
        if roster is not None:
            seats = {role: uid for role, uid in enumerate(roster.seats) if uid is not None}
            yield len(seats) == len(set(seats.values())), "a worker has two roles"
            yield roster.generation <= self.generations, "the roster is newer than the latest generation"
            pairs = {(self.workers[uid].machine, self.plan.cells[role]) for role, uid in seats.items()}
            yield len(pairs) == len({name for name, _ in pairs}), "a machine has roles of two cells"
        for machine in self.machines.values():
            ended = machine.alive or not any(worker.alive for worker in machine.all_workers)
            yield ended, f"{machine.name} is gone, and a worker of it lives"
            warm = machine.state == MachineState.STANDBY or not machine.alive or not machine.warm_sets
            yield warm, f"{machine.name} is {machine.state} and keeps further rehearsed workers"
        if change is not None:
            yield from self._invariants_of(change)

    def _invariants_of(self, change: Change) -> Iterable[tuple[bool, str]]:
        course = PLANNED_COURSE if change.planned else DIRECT_COURSE
        yield change.phase in course, f"a change of kind {change.kind} is in phase {change.phase}"
        early = change.phase == Phase.REHEARSE or (change.phase == Phase.CANCEL and not change.waiting)
        yield early or change.roster is not None, f"a change is in phase {change.phase} without a roster"
        yield change.phase != Phase.SWITCH or change.roster is self.roster, "a change switches to another roster"
        yield change.waiting <= self.workers.keys(), "a change waits for an unknown worker"
        beside = self.status in (JobStatus.TRAINING, JobStatus.CLOSING) or self.over
        direct = self.status in (JobStatus.FORMING, JobStatus.RECOVERING) or self.over
        fits = beside if change.planned else direct
        yield fits, f"a change of kind {change.kind} is under way while the job is {self.status}"
        seats = () if change.roster is None else change.roster.seats
        strangers = {uid for role, uid in change.joiners.items() if seats and seats[role] != uid}
        yield not strangers, f"the joiners {sorted(strangers)} have no role in the next roster"

    def unanswered(self) -> set[str]:
        """Requests for replacements that have no answer yet."""
        under_way = (change.item for change in (self.change, self.interrupted, self.settling) if change is not None)
        items = (*self.queue, *(item for item in under_way if item is not None and not item.closed))
        return {item.id for item in items if item.id} - self.answers.keys()
