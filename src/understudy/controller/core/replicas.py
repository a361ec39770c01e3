"""Model replicas: which roles make one up, how many there are to be, and what depends on how many are left.

A replica is one role of each kind of roles that hold the same state. A replica is missing only as a whole: if one of
its roles is vacant, the workers of its other roles park.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from understudy.masking.coverage import at_risk, wipe_out
from understudy.masking.placement import Placement, parse
from understudy.masking.policy import Surplus, surplus_replicas

from .machines import Machine, MachineState
from .state import JobState


def replicas(job: JobState) -> list[tuple[int, ...]]:
    """The roles of each replica; one replica with all roles if no role has a twin."""
    if not job.replica_cache:
        kinds = {tuple(sorted({role, *job.twins.get(role, ())})) for role in range(job.plan.roles)}
        job.replica_cache = [tuple(range(job.plan.roles))]
        if len(sizes := set(map(len, kinds))) == 1 and sum(map(len, kinds)) == job.plan.roles:
            job.replica_cache = [tuple(sorted(kind[n] for kind in kinds)) for n in range(sizes.pop())]
    return job.replica_cache


def note_twins(job: JobState, role: int, twins: tuple[int, ...]) -> None:
    """Keep which roles should hold the same state as this one, also for twins that die before they report."""
    if job.alike.get(role) == twins:
        return
    job.alike[role] = job.twins[role] = twins
    for other in twins:
        job.alike.setdefault(other, twins)
        job.twins.setdefault(other, twins)
    job.replica_cache = []


def known(job: JobState) -> bool:
    """Whether the twins of all roles are known, and with them the replicas."""
    return len(job.twins) == job.plan.roles


def whole(job: JobState, without: Iterable[int]) -> list[int]:
    """Numbers of the replicas that have none of these roles."""
    gone = set(without)
    return [number for number, roles in enumerate(replicas(job)) if gone.isdisjoint(roles)]


def count(job: JobState, without: Iterable[int] = ()) -> tuple[int, int]:
    """Number of replicas, and number of those that are whole if these roles are vacant."""
    return len(replicas(job)), len(whole(job, without))


def target(job: JobState) -> int:
    """Number of replicas that are to train."""
    if job.target_replicas is not None:
        return job.target_replicas
    opening = set(job.plan.opening)
    first = {role for role, cell in enumerate(job.plan.cells) if cell in opening}
    return sum(first.issuperset(roles) for roles in replicas(job))


def bundles(job: JobState) -> list[tuple[int, ...]]:
    """Numbers of replicas that share machines, and can therefore come and go only together."""
    found: list[tuple[set[int], set[int]]] = []
    for number, roles in enumerate(replicas(job)):
        cells, numbers = job.cells_of(roles), {number}
        for other in [other for other in found if not cells.isdisjoint(other[0])]:
            found.remove(other)
            cells, numbers = cells | other[0], numbers | other[1]
        found.append((cells, numbers))
    return [tuple(sorted(numbers)) for _, numbers in found]


def surplus(job: JobState) -> set[int]:
    """Numbers of the replicas that are not to train."""
    return set(surplus_for(job, target(job), job.leave_first).replicas)


def surplus_for(job: JobState, wanted: int, leave_first: Collection[int]) -> Surplus:
    """The replicas that would not train if this number were wanted, or why the others could not go on."""
    all_replicas = replicas(job)
    if wanted >= len(all_replicas) or not known(job):
        return Surplus()
    gone = set(job.vacant())
    vacant = [number for number, roles in enumerate(all_replicas) if not gone.isdisjoint(roles)]
    deserted = [n for n in vacant if all(occupant(job, cell) is None for cell in job.cells_of(all_replicas[n]))]
    return surplus_replicas(placement(job), bundles(job), wanted, vacant=vacant, deserted=deserted, sooner=leave_first)


def placement(job: JobState) -> Placement:
    """Which replicas hold which data shards."""
    return parse(job.plan.settings.masking.mask, len(replicas(job)))


def wiped_out(job: JobState, live: list[int]) -> str:
    """Why these replicas cannot compute the whole batch; empty: they can."""
    try:
        gone = wipe_out(placement(job), live)
    except ValueError as error:  # the workers say the same and end the job
        return str(error)
    return gone.reason if gone else ""


def risk(job: JobState, live: list[int]) -> str:
    """A warning if the loss of one more of these replicas could be a wipe-out."""
    found = at_risk(placement(job), live)
    return f"; {found.reason}" if found else ""


def occupant(job: JobState, cell: int) -> Machine | None:
    """The sound machine that has a role of a cell, or whose workers have parked in it."""
    if job.roster is None:
        return None
    names = [worker.machine for role in job.roles_of(cell) if (worker := job.roster.worker_of(role)) is not None]
    machine = job.machines.get([*names, job.parked.get(cell, "")][0])
    return machine if machine is not None and sound(job, machine) else None


def sound(job: JobState, machine: Machine) -> bool:
    """Whether a machine is active, not ill, and has not failed too often."""
    quarantine = job.plan.settings.recovery.quarantine
    return machine.state == MachineState.ACTIVE and not machine.ill and machine.failures < quarantine


def lies_idle(job: JobState, machine: Machine) -> bool:
    """Whether a role of an active machine is vacant."""
    cell = job.homes().get(machine.name)
    return cell is None or not set(job.roles_of(cell)).isdisjoint(job.vacant())


def to_fill(job: JobState) -> set[int]:
    """Vacant cells for which a machine has yet to be found."""
    vacant = set(job.vacant())
    if not vacant:
        return set()
    idle = surplus(job)
    wanted = {role for number, roles in enumerate(replicas(job)) if number not in idle for role in roles}
    taken = set() if job.change is None else set(job.change.places)
    return {cell for cell in job.cells_of(vacant & wanted) - taken if occupant(job, cell) is None}


def giver(job: JobState, role: int, load: dict[str, int]) -> str:
    """The worker that gives a joiner its state: the leaver of the role, or else the twin with the least to give."""
    assert job.roster is not None
    seats = job.roster.seats
    own = seats[role]
    if own is not None:
        return own
    live = [uid for twin in job.twins[role] if (uid := seats[twin]) is not None]
    chosen = min(live, key=lambda uid: (load.get(uid, 0), live.index(uid)))
    load[chosen] = load.get(chosen, 0) + 1
    return chosen
