"""How a change ends: machines take their new states, and what the change cost training is measured and announced."""

from __future__ import annotations

from .actions import activate, announce, end_workers, mark, recycle, release, renew, retire, stand_by
from .change import Change, Kind
from .machines import MachineState, Worker
from .state import JobState, JobStatus
from .turns import close


def complete(job: JobState, change: Change) -> None:
    """All workers have switched: the machines that joined are active, the others leave or become standbys."""
    unsettle(job)
    job.change, job.settling = None, change
    job.status, job.waiting = JobStatus.TRAINING, ""
    mark(job, change, "first step")
    if change.kind == Kind.REPLACE:
        job.durations.append(job.now - change.clock["rehearse"])
    elif change.kind == Kind.REFILL:
        job.refill_attempts = 0
    elif change.kind == Kind.SHRINK:
        job.shrink_attempts = 0
    for cell, name in change.places.items():
        job.parked.pop(cell, None)
        activate(job, job.machines[name])
        announce(job, "seated", f"{name} has {job.span(cell)}", machine=name, generation=change.generation)
    _announce_primary(job)
    _part_with_leavers(job, change)
    _renew_used_standbys(job)


def _announce_primary(job: JobState) -> None:
    """Announce the primary role when the job begins, and whenever another role becomes it."""
    primary = job.primary()
    if primary is not None and primary != job.announced_primary:
        job.announced_primary = primary
        announce(job, "primary", f"role {primary} is the primary role: job.is_primary is true there", role=primary)


def _part_with_leavers(job: JobState, change: Change) -> None:
    active = {worker.machine for worker in change.roster.workers} if change.roster is not None else set()
    staying = {*active, *job.parked.values()}
    for machine in list(job.machines.values()):
        if machine.state not in (MachineState.LEAVING, MachineState.ACTIVE) or machine.name in staying:
            continue
        if machine.name in change.leaving:
            machine.state = MachineState.LEAVING
        elif change.planned:
            release(job, machine, change)
        else:
            retire(job, machine)


def _renew_used_standbys(job: JobState) -> None:
    """End standbys' workers that hold state, so that no later halt takes it for the state of a role."""
    for machine in job.in_state(MachineState.STANDBY):
        for workers in [workers for workers in machine.warm_sets if any(worker.used for worker in workers)]:
            end_workers(job, workers)
            machine.warm_sets.remove(workers)
        if any(worker.used for worker in machine.workers):
            renew(job, machine)


def unsettle(job: JobState) -> None:
    """End the last change, measured or not: its leavers go."""
    recycle(job)
    change, job.settling = job.settling, None
    if change is None:
        return
    active = set() if job.roster is None else {worker.machine for worker in job.roster.workers}
    for name in change.leaving:
        machine = job.machines[name]
        if machine.state == MachineState.LEAVING and name not in active:
            kept = change.keep or (change.item is not None and change.item.request.keep)
            stand_by(job, machine) if kept else release(job, machine, change)
    recycle(job)
    if change.lost is None:
        close(job, change.item, True, "done; what training lost by it could not be measured")


def first_step_made(job: JobState, worker: Worker, generation: int, lost: float | None) -> None:
    """A worker has made the first step of a generation, and says what training has lost by its measure."""
    job.begun = True
    for change in (job.change, job.settling):
        if change is not None and change.generation == generation:
            change.losses[worker.uid] = lost
    conclude(job)


def conclude(job: JobState) -> None:
    """End the last change once all workers have made its first step; training has lost what the slowest has."""
    change = job.settling
    if change is None or change.roster is None or len(change.losses) < len(change.roster.workers):
        return
    losses = [lost for lost in change.losses.values() if lost is not None]
    if change.lost is None and len(losses) == len(change.losses):
        change.lost = max(losses)
        said = f"training lost {change.lost:.3f} s"
        facts: dict[str, object] = {
            "lost": change.lost,
            "phases": change.phases(job.now),
            "links": change.links(),
            "bytes": sum(size for size, _, _ in change.moved.values()),
            "again": any(again for _, _, again in change.moved.values()),
        }
        announce(job, "settled", said, change=change.request, **facts)
        speeds = [size / seconds for size, seconds, _ in change.moved.values() if size > 1 << 20 and seconds]
        job.rate = min(speeds, default=job.rate)
        close(job, change.item, True, said, **facts)
    if job.status == JobStatus.TRAINING:
        unsettle(job)
