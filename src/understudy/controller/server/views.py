"""The controller's state as operators see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from understudy.controller.core.cast import Machine, ready
from understudy.controller.core.change import QueuedReplacement
from understudy.controller.core.director import Director
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
    """The last copies that are complete, and what the slowest of them took."""

    step: int
    bytes: int
    """Of one role's."""
    seconds: float
    waited: float
    """For how much of that training had to wait."""


class ReplicasView(msgspec.Struct, frozen=True):
    """Of the model, where they may come and go."""

    live: int
    most: int
    target: int


class WaitingView(msgspec.Struct, frozen=True):
    """A request for planned replacement that is not over."""

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
    """Per step, lately."""
    values: dict[str, float]
    change: ChangeView | None
    standbys: int
    digests: dict[int, str]
    """Of each role's final state, once the job is over."""
    vacant: tuple[int, ...] = ()
    """Roles of replicas that are gone, without which training goes on."""
    copies: CopiesView | None = None
    """Where copies of the state are kept in memory."""
    replicas: ReplicasView | None = None
    """With masking, once it is known how the model is replicated."""
    wanted: int = 0
    """Machines that were asked for and have not come."""
    queue: tuple[WaitingView, ...] = ()
    """Machines that are to be replaced: what is under way, then what waits, in its order."""
    stragglers: tuple[Straggler, ...] = ()
    """Who is slower than others that do the same, the worst first."""


class MachineView(msgspec.Struct, frozen=True):
    name: str
    state: str
    roles: tuple[int, ...]
    workers: tuple[str, ...]
    pids: tuple[int, ...]
    why: str = ""
    failures: int = 0
    """That count; those from before it was readmitted do not."""
    history: tuple[tuple[float, str], ...] = ()
    """When, and what has gone wrong on it."""
    rehearsed: tuple[int, ...] = ()
    """Roles that a standby could take at once."""
    tour: dict[int, float] = {}
    """Role → seconds that a standby's worker has rehearsed it for; others of the same kind take as long."""
    labels: dict[str, str] = {}
    goes: float | None = None
    """When it leaves, replaced or not, where that is known."""


class RoleView(msgspec.Struct, frozen=True):
    role: int
    places: dict[str, int]
    worker: str | None
    machine: str | None
    twins: tuple[int, ...] = ()
    """Roles with identical copies of its state, where that is known."""


def job_view(name: str, director: Director, beats: Mapping[str, Beat], stragglers: Sequence[Straggler] = ()) -> JobView:
    change = director.change
    beat = max(beats.values(), key=lambda beat: (beat.step, beat.primary), default=Beat())
    telling = [beat for beat in beats.values() if beat.values]  # in a pipeline only the last stage knows the loss
    told = max(telling, key=lambda beat: (beat.primary, beat.step), default=beat)
    seats = () if director.roster is None else director.roster.seats
    ends = {role: director.actors[uid].done for role, uid in enumerate(seats) if uid is not None}
    for role in director.vacant():  # what it would hold, others do
        ends[role] = next((ends[twin] for twin in director.twins.get(role, ()) if ends.get(twin) is not None), None)
    return JobView(
        name,
        director.status,
        director.reason or director.waiting or director.absent(),
        0 if director.roster is None else director.roster.generation,
        max([beat.step, *(end.step for end in ends.values() if end is not None)]),
        beat.seconds,
        told.values,
        None
        if change is None
        else ChangeView(change.kind, change.phase, change.generation, change.leaving, tuple(change.places.values())),
        sum(machine.state == "standby" for machine in director.machines.values()),
        {role: end.digest for role, end in ends.items() if end is not None},
        () if director.status == "forming" else tuple(role for role, uid in enumerate(seats) if uid is None),
        _copies([beat.copied for beat in beats.values() if beat.copied is not None]),
        _replicas(director),
        director.wanted,
        queue_view(director),
        tuple(stragglers),
    )


def _replicas(director: Director) -> ReplicasView | None:
    if not director.plan.mask or not director.known or director.roster is None:
        return None
    most, live = director.replicas(director.vacant())
    return ReplicasView(live, most, director.target())


def queue_view(director: Director) -> tuple[WaitingView, ...]:
    """Who is to go, in the order in which they do."""
    change = director.change
    found = []
    if change is not None and change.wish is not None:
        found.append(_waiting(change.wish, f"under way: {change.phase}"))
    for wish, outlook in director.prospects():
        found.append(_waiting(wish, outlook.reason))
    return tuple(found)


def _waiting(wish: QueuedReplacement, state: str) -> WaitingView:
    return WaitingView(wish.id, wish.request.machines, wish.request.by, wish.request.why, state)


def state_of(director: Director, id: str) -> str:
    """Of a request that is not over; empty where nobody knows of one."""
    return "; ".join(view.state for view in queue_view(director) if view.id == id)


def _copies(told: list[Copied]) -> CopiesView | None:
    if not told:
        return None
    step = max(copied.step for copied in told)
    last = [copied for copied in told if copied.step == step]
    return CopiesView(
        step,
        max(copied.bytes for copied in last),
        max(copied.seconds for copied in last),
        max(copied.waited for copied in last),
    )


def machines_view(director: Director) -> list[MachineView]:
    roster = director.roster
    return [
        MachineView(
            machine.name,
            "parked" if machine.state == "cast" and machine.name in director.parked.values() else machine.state,
            tuple(
                role
                for actor in machine.actors
                if roster is not None and (role := roster.role_of(actor.uid)) is not None
            ),
            tuple(actor.uid for actor in machine.everybody if actor.alive),
            tuple(actor.pid for actor in machine.everybody if actor.alive),
            machine.why,
            machine.failures,
            tuple(machine.history),
            _at_once(director, machine),
            _tour(director, machine),
            machine.labels,
            machine.notice if machine.alive else None,
        )
        for machine in director.machines.values()
    ]


def _at_once(director: Director, machine: Machine) -> tuple[int, ...]:
    if machine.state != "standby":
        return ()
    roles = range(director.plan.roles)
    return tuple(role for role in roles if any(actor.alive and ready(actor, role) for actor in machine.everybody))


def _tour(director: Director, machine: Machine) -> dict[int, float]:
    cells = director.plan.cells
    tour = machine.tour if machine.state == "standby" else {}
    return {role: tour[cell] for role, cell in enumerate(cells) if cell in tour}


def roster_view(director: Director, mesh: Mesh) -> list[RoleView]:
    roster = director.roster
    if roster is None:
        return []
    views = []
    for role in range(len(roster.seats)):
        worker = roster.player(role)
        views.append(
            RoleView(
                role,
                coordinates(mesh, role),
                None if worker is None else worker.uid,
                None if worker is None else worker.machine,
                director.twins.get(role, ()),
            )
        )
    return views
