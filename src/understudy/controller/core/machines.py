"""Machines and their workers, as the controller knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from understudy.protocol.frames import Order
from understudy.protocol.messages import Done, Halted, Stalled
from understudy.protocol.roster import WorkerAddress
from understudy.protocol.sessions import Inbox, Outbox


class MachineState(StrEnum):
    ACTIVE = "active"
    """The machine's workers have roles, or will have them when the job begins."""
    STANDBY = "standby"
    LEAVING = "leaving"
    """The machine has given its roles away, or is about to."""
    QUARANTINED = "quarantined"
    GONE = "gone"


class WorkerCondition(StrEnum):
    STARTING = "starting"
    """The process was ordered and does not listen yet."""
    IDLE = "idle"
    """The worker listens and has rehearsed nothing."""
    REHEARSING = "rehearsing"
    READY = "ready"
    """The worker waits at the first boundary of a role that it has rehearsed."""
    SEATED = "seated"
    """The worker has entered a generation, or has been told to."""
    PARKED = "parked"
    """The worker waits in its role because its replica is vacant."""
    DONE = "done"
    """The worker has made all steps."""


@dataclass
class Worker:
    """One training process."""

    uid: str
    machine: str
    slot: int
    started: float
    """When the controller ordered it."""
    address: WorkerAddress | None = None
    """Known once the worker listens."""
    pid: int = 0
    alive: bool = True
    role: int | None = None
    """The role it has, or has rehearsed last."""
    rehearsing: int | None = None
    rehearsed: int | None = None
    """The role whose first boundary it waits at."""
    also: tuple[int, ...] = ()
    """Further roles that it could take at once."""
    fixed: bool = False
    """Whether it can take no role but `rehearsed` and `also`."""
    entered: bool = False
    """Whether it has been in a generation: it can go on in its role then, but rehearse no other."""
    parked: bool = False
    """Whether it waits in its role because its replica is vacant."""
    holds: bool = False
    """Whether it holds the state of its role."""
    report: Halted | None = None
    """Its answer to the last halt."""
    done: Done | None = None
    stalled: Stalled | None = None
    """The operation in which it has waited for long."""

    @property
    def condition(self) -> WorkerCondition:
        """The condition of a living worker."""
        if self.done is not None:
            return WorkerCondition.DONE
        if self.address is None:
            return WorkerCondition.STARTING
        if self.parked:
            return WorkerCondition.PARKED
        if self.entered:
            return WorkerCondition.SEATED
        if self.rehearsing is not None:
            return WorkerCondition.REHEARSING
        return WorkerCondition.IDLE if self.rehearsed is None else WorkerCondition.READY

    @property
    def used(self) -> bool:
        """Whether a standby can do nothing else with it: it holds state, or has been in a generation."""
        return self.holds or self.entered


@dataclass
class Machine:
    name: str
    incarnation: str
    state: MachineState
    outbox: Outbox[Order] = field(default_factory=Outbox)
    inbox: Inbox = field(default_factory=Inbox)
    workers: list[Worker] = field(default_factory=list)
    """By slot; a dead worker stays until it is replaced."""
    warm_sets: list[list[Worker]] = field(default_factory=list)
    """Further sets of workers of a standby that have rehearsed other roles, by slot each."""
    rehearsal_seconds: dict[int, float] = field(default_factory=dict)
    """Cell → duration of the latest rehearsal of that cell."""
    history: list[tuple[float, str]] = field(default_factory=list)
    """Time and text of each failure, earlier incarnations included."""
    pardoned: int = 0
    """Number of failures that do not count any more."""
    ill: bool = False
    """Whether an operator or a health checker has reported a fault of this machine."""
    notice: float | None = None
    """When it goes, replaced or not."""
    labels: dict[str, str] = field(default_factory=dict)
    why: str = ""
    """Why it is gone, quarantined, or has to go."""

    @property
    def failures(self) -> int:
        return len(self.history) - self.pardoned

    @property
    def place(self) -> tuple[str, str]:
        """Key of what this agent keeps: it is gone with the incarnation."""
        return (self.name, self.incarnation)

    @property
    def alive(self) -> bool:
        return self.state != MachineState.GONE

    @property
    def whole(self) -> bool:
        """Whether all its workers live and listen."""
        return self.alive and all(worker.alive and worker.address is not None for worker in self.workers)

    @property
    def sets(self) -> list[list[Worker]]:
        """All sets of workers; the first is the one that has roles, or would get them."""
        return [self.workers, *self.warm_sets]

    @property
    def all_workers(self) -> list[Worker]:
        return [worker for each in self.sets for worker in each]

    def bring_forward(self, workers: list[Worker]) -> None:
        """Make this set of a standby's workers the one that would get roles."""
        if workers is not self.workers:
            self.warm_sets = [each for each in self.sets if each is not workers]
            self.workers = workers


def unused(workers: Sequence[Worker]) -> bool:
    """Whether these workers listen and hold no state."""
    return all(worker.alive and worker.address is not None and not worker.holds for worker in workers)


def fits(workers: Sequence[Worker], roles: Sequence[int]) -> bool:
    """Whether these workers could take these roles, rehearsed or not."""
    return unused(workers) and all(
        worker.role == role if worker.entered else not worker.fixed or role in (worker.rehearsed, *worker.also)
        for worker, role in zip(workers, roles, strict=True)
    )


def ready(worker: Worker, role: int) -> bool:
    """Whether a worker could take a role at once."""
    return worker.rehearsing is None and worker.rehearsed is not None and role in (worker.rehearsed, *worker.also)


def warmth(workers: Sequence[Worker], roles: Sequence[int]) -> int:
    """How soon these workers could take these roles: the higher, the sooner."""
    return min(_warmth(worker, role) for worker, role in zip(workers, roles, strict=True))


def _warmth(worker: Worker, role: int) -> int:
    if ready(worker, role):
        return 5 if worker.rehearsed == role else 4
    if worker.rehearsing is not None:
        return 3 if worker.rehearsing == role else 0
    return 1 if worker.rehearsed is None else 2
