"""The controller's state as operators see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from understudy.controller.core.machines import Machine, MachineState, ready
from understudy.controller.core.replicas import count, known, target
from understudy.controller.core.sources import source_of
from understudy.controller.core.state import JobState, JobStatus
from understudy.controller.core.turns import prospects
from understudy.protocol.frames import Beat
from understudy.protocol.mesh import Mesh, coordinates
from understudy.protocol.messages import Copied
from understudy.steward.stragglers import Straggler


class ChangeView(msgspec.Struct, frozen=True):
    kind: str
    phase: str
    generation: int
    leaving: tuple[str, ...]
    coming: tuple[str, ...]


class CopiesView(msgspec.Struct, frozen=True):
    """The last complete copies of the state in memory, and the time that the slowest took."""

    step: int
    bytes: int
    """Size of the largest role's copy."""
    seconds: float
    waited: float
    """Seconds of that for which training had to wait."""


class ReplicasView(msgspec.Struct, frozen=True):
    """Numbers of model replicas in a job with masking."""

    live: int
    most: int
    target: int


class WaitingView(msgspec.Struct, frozen=True):
    """A planned replacement that is not over."""

    id: str
    machines: tuple[str, ...]
    by: float | None
    why: str
    state: str


class JobView(msgspec.Struct, frozen=True):
    job: str
    status: str
    reason: str
    generation: int
    step: int
    seconds: float
    """Recent duration of a step."""
    values: dict[str, float]
    change: ChangeView | None
    standbys: int
    digests: dict[int, str]
    """Role → digest of its final state, once the job is over."""
    vacant: tuple[int, ...] = ()
    """Roles that no worker has."""
    copies: CopiesView | None = None
    """None: the job keeps no copies of its state in memory."""
    replicas: ReplicasView | None = None
    """None: the job has no masking, or its replicas are not known yet."""
    wanted: int = 0
    """Machines that were asked for and have not come."""
    queue: tuple[WaitingView, ...] = ()
    """Replacements: the one under way, then those that wait, in their order."""
    stragglers: tuple[Straggler, ...] = ()
    """Machines that are slower than others with the same work, the slowest first."""


class MachineView(msgspec.Struct, frozen=True):
    name: str
    state: str
    roles: tuple[int, ...]
    workers: tuple[str, ...]
    pids: tuple[int, ...]
    why: str = ""
    failures: int = 0
    """Number of failures since the machine was last readmitted."""
    history: tuple[tuple[float, str], ...] = ()
    """Time and text of each failure."""
    rehearsed: tuple[int, ...] = ()
    """Roles that a standby could take at once."""
    rehearsal_seconds: dict[int, float] = {}
    """Role → duration of a standby's rehearsal of that role, in seconds; roles of the same kind take as long."""
    labels: dict[str, str] = {}
    goes: float | None = None
    """When the machine leaves, replaced or not; None: it has not given notice."""


class RoleView(msgspec.Struct, frozen=True):
    role: int
    places: dict[str, int]
    worker: str | None
    machine: str | None
    twins: tuple[int, ...] = ()
    """Roles that can give its state."""
    source: str = ""
    """The source of its state if its machine were lost."""


def job_view(name: str, job: JobState, beats: Mapping[str, Beat], stragglers: Sequence[Straggler] = ()) -> JobView:
    change = job.change
    beat = max(beats.values(), key=lambda beat: (beat.step, beat.primary), default=Beat())
    telling = [beat for beat in beats.values() if beat.values]  # in a pipeline, only the last stage knows the loss
    told = max(telling, key=lambda beat: (beat.primary, beat.step), default=beat)
    seats = () if job.roster is None else job.roster.seats
    ends = {role: job.workers[uid].done for role, uid in enumerate(seats) if uid is not None}
    for role in job.vacant():  # its twins hold the same state
        ends[role] = next((ends[twin] for twin in job.twins.get(role, ()) if ends.get(twin) is not None), None)
    return JobView(
        job=name,
        status=job.status,
        reason=job.reason or job.waiting or job.absent(),
        generation=0 if job.roster is None else job.roster.generation,
        step=max([beat.step, *(end.step for end in ends.values() if end is not None)]),
        seconds=beat.seconds,
        values=told.values,
        change=None
        if change is None
        else ChangeView(change.kind, change.phase, change.generation, change.leaving, tuple(change.places.values())),
        standbys=sum(machine.state == MachineState.STANDBY for machine in job.machines.values()),
        digests={role: end.digest for role, end in ends.items() if end is not None},
        vacant=() if job.status == JobStatus.FORMING else tuple(role for role, uid in enumerate(seats) if uid is None),
        copies=_copies([beat.copied for beat in beats.values() if beat.copied is not None]),
        replicas=_replicas(job),
        wanted=job.wanted,
        queue=queue_view(job),
        stragglers=tuple(stragglers),
    )


def _replicas(job: JobState) -> ReplicasView | None:
    if not job.plan.settings.masking.mask or not known(job) or job.roster is None:
        return None
    most, live = count(job, job.vacant())
    return ReplicasView(live, most, target(job))


def queue_view(job: JobState) -> tuple[WaitingView, ...]:
    """Replacements in their order."""
    change = job.change
    found = [(item, outlook.reason) for item, outlook in prospects(job)]
    if change is not None and change.item is not None:
        found.insert(0, (change.item, f"under way: {change.phase}"))
    return tuple(
        WaitingView(item.id, item.request.machines, item.request.by, item.request.why, state) for item, state in found
    )


def state_of(job: JobState, id: str) -> str:
    """The state of a request that is not over; empty: there is no such request."""
    return "; ".join(view.state for view in queue_view(job) if view.id == id)


def _copies(told: list[Copied]) -> CopiesView | None:
    if not told:
        return None
    step = max(copied.step for copied in told)
    last = [copied for copied in told if copied.step == step]
    slowest = max(copied.seconds for copied in last), max(copied.waited for copied in last)
    return CopiesView(step, max(copied.bytes for copied in last), *slowest)


def machines_view(job: JobState) -> list[MachineView]:
    return [_machine_view(job, machine) for machine in job.machines.values()]


def _machine_view(job: JobState, machine: Machine) -> MachineView:
    parked = machine.state == MachineState.ACTIVE and machine.name in job.parked.values()
    roles = [None if job.roster is None else job.roster.role_of(worker.uid) for worker in machine.workers]
    living = [worker for worker in machine.all_workers if worker.alive]
    standby = machine.state == MachineState.STANDBY
    durations = machine.rehearsal_seconds if standby else {}
    return MachineView(
        name=machine.name,
        state="parked" if parked else machine.state,
        roles=tuple(role for role in roles if role is not None),
        workers=tuple(worker.uid for worker in living),
        pids=tuple(worker.pid for worker in living),
        why=machine.why,
        failures=machine.failures,
        history=tuple(machine.history),
        rehearsed=tuple(r for r in range(job.plan.roles) if standby and any(ready(worker, r) for worker in living)),
        rehearsal_seconds={role: durations[cell] for role, cell in enumerate(job.plan.cells) if cell in durations},
        labels=machine.labels,
        goes=machine.notice if machine.alive else None,
    )


def roster_view(job: JobState, mesh: Mesh) -> list[RoleView]:
    views = []
    for role, uid in enumerate(() if job.roster is None else job.roster.seats):
        machine = None if uid is None else job.workers[uid].machine
        twins, source = job.twins.get(role, ()), source_of(job, role)
        views.append(RoleView(role, coordinates(mesh, role), uid, machine, twins, source))
    return views
