"""Replicas come and go as operators ask. The mesh says how many there can be. Replicas that come are refilled like lost
ones; replicas that leave do so at a boundary on which all workers agree by vote, so no worker halts and no step is
repeated."""

from __future__ import annotations

from understudy.protocol.sentences import counted, listed, named

from .actions import announce, enter, release, reply, stand_by
from .change import Change, Kind, Phase
from .events import Scale
from .machines import MachineState
from .planned import cancel
from .replicas import bundles, count, known, replicas, risk, surplus, surplus_for, target, whole
from .state import STUBBORN, JobState


def scale(job: JobState, id: str, request: Scale) -> None:
    problem = _no_scaling(job) or _objection(job, request)
    if problem:
        reply(job, id, False, problem)
        return
    job.target_replicas, job.keep_leavers = request.replicas, request.keep
    job.leave_first = frozenset(_replicas_on(job, request.without))
    job.shrink_attempts = job.refill_attempts = job.refusals = 0
    number, live = count(job, job.vacant())
    announce(job, "asked", f"{request.replicas} of {number} replicas; {live} train now", id=id)
    _reconsider(job)
    reply(job, id, True, _outlook(number, live, request), replicas=request.replicas, live=live)


def _no_scaling(job: JobState) -> str:
    """Why replicas cannot come and go in this job, or not yet; empty: they can."""
    if not job.plan.settings.masking.mask:
        return "this job needs all its replicas; run it with --mask anywhere to let them come and go"
    if not job.begun or not known(job):
        return "the number of replicas is known when the first step is made; ask again then"
    return ""


def _objection(job: JobState, request: Scale) -> str:
    """Why the request makes no sense in this job, or the other replicas could not go on; empty: neither."""
    most, wanted = len(replicas(job)), request.replicas
    if wanted < 1:
        return f"{wanted} replicas cannot train; ask for at least 1, or end the job with: understudy stop"
    if wanted > most:
        return f"the mesh has {counted(most, 'replica')}, the most there can be; {wanted} need a larger mesh"
    if len(set(request.without)) != len(request.without):
        return "--without: a machine is named twice"
    for name in request.without:
        machine = job.machines.get(name)
        if machine is None or machine.state != MachineState.ACTIVE:
            return f"--without: {name} has no role; machines with roles: {job.names_in(MachineState.ACTIVE)}"
    going, them = _replicas_on(job, request.without), listed(request.without)
    if len(going) > most - wanted:
        many = counted(len(going), "replica")
        return f"--without: {them} have {many}, more than are to go; ask for at most {most - len(going)}"
    found = surplus_for(job, wanted, going)
    if found.problem:
        return f"{wanted} of {most} replicas are not possible: {found.problem}"
    lost = going - set(found.replicas)
    return f"--without: training needs data that only {them} have; name other machines" if lost else ""


def _replicas_on(job: JobState, names: tuple[str, ...]) -> set[int]:
    """Numbers of the replicas that need these machines, and of those that share machines with them."""
    if job.roster is None:
        return set()
    homes = job.homes() | {name: cell for cell, name in job.parked.items()}
    cells = {homes[name] for name in names if name in homes}
    touched = {number for number, roles in enumerate(replicas(job)) if not cells.isdisjoint(job.cells_of(roles))}
    return {number for bundle in bundles(job) if not touched.isdisjoint(bundle) for number in bundle}


def _reconsider(job: JobState) -> None:
    """Cancel the change under way if its result is no longer wanted."""
    change = job.change
    if change is None or change.kind not in (Kind.REFILL, Kind.SHRINK) or not job.pending():
        return
    idle = {role for number in surplus(job) for role in replicas(job)[number]}
    going = set(change.vacant) - set(job.vacant())
    if idle & set(change.joiners) if change.kind == Kind.REFILL else going - idle:
        cancel(job, f"the target is {target(job)} now")


def _outlook(number: int, live: int, request: Scale) -> str:
    wanted = request.replicas
    if wanted == live:
        return f"{live} of {number} replicas train, as asked for"
    if wanted > live:
        return f"{live} of {number} replicas train; {wanted - live} more as soon as machines are ready"
    how = "become standbys" if request.keep else "are released"
    return f"{live} of {number} replicas train; {live - wanted} go at a boundary, their machines {how}"


def shrink(job: JobState) -> bool:
    """Begin to let replicas go that are too many; returns whether there are any."""
    if not job.plan.settings.masking.mask or not known(job) or job.settling is not None or job.stopping:
        return False
    all_replicas, vacant, idle = replicas(job), set(job.vacant()), surplus(job)
    if not idle:
        return False
    _send_parked_away(job, [cell for number in sorted(idle) for cell in sorted(job.cells_of(all_replicas[number]))])
    too_many = len(whole(job, vacant)) - target(job)
    going: list[int] = []
    for bundle in filter(idle.issuperset, bundles(job)):
        training = [number for number in bundle if vacant.isdisjoint(all_replicas[number])]
        going += training if len(going) + len(training) <= too_many else []  # else others have to come first
    if not going or job.shrink_attempts >= STUBBORN:
        return False
    homes = {cell: name for name, cell in job.homes().items()}
    roles = sorted(role for number in going for role in all_replicas[number])
    leaving = tuple(homes[cell] for cell in sorted(job.cells_of(roles)))
    job.shrink_attempts += 1
    rest = tuple(sorted(vacant | set(roles)))
    change = job.change = Change(Kind.SHRINK, {}, {}, leaving=leaving, keep=job.keep_leavers, vacant=rest)
    for name in leaving:
        job.machines[name].state = MachineState.LEAVING
    live = whole(job, change.vacant)
    said = f"shrink: without {listed(leaving)} ({named('role', roles)})"
    said += f", {len(live)} of {len(all_replicas)} replicas go on{risk(job, live)}"
    announce(job, "change", said, kind=change.kind)
    enter(job, change, Phase.REHEARSE)
    return True


def announce_replicas(job: JobState, change: Change) -> None:
    """Announce how many replicas train after a change of their number."""
    if change.kind in (Kind.REFILL, Kind.SHRINK):
        number, live = count(job, change.vacant)
        said = f"{live} of {number} replicas train (target {target(job)})"
        announce(job, "replicas", said, live=live, target=target(job))


def _send_parked_away(job: JobState, cells: list[int]) -> None:
    """Release or keep machines whose workers have parked in these cells, since the cells stay vacant."""
    for cell in cells:
        machine = job.machines.get(job.parked.get(cell, ""))
        if machine is None or set(job.roles_of(cell)) - set(job.vacant()):
            continue
        del job.parked[cell]
        if machine.state == MachineState.ACTIVE:
            machine.state = MachineState.LEAVING
            stand_by(job, machine) if job.keep_leavers else release(job, machine)
