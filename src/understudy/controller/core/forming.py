"""The beginning: machines register, and the first generation is formed of them."""

from __future__ import annotations

from .actions import activate, announce, dismiss, quarantine_if_due, renew, start_worker, want
from .change import Change, Kind
from .ending import fail
from .events import Registered
from .failure import resume
from .machines import Machine, MachineState, Worker
from .masked import announce_vacated
from .state import ATTEMPTS, FailureCause, JobState, JobStatus


def register(job: JobState, event: Registered) -> None:
    """Take a machine in, as one of the first if there is room and as a standby otherwise. Failures under an earlier
    incarnation of its agent still count."""
    places = len(job.plan.opening)
    has_room = len(job.machines) < places or len(job.in_state(MachineState.ACTIVE)) < places
    founder = job.status == JobStatus.FORMING and not event.standby and has_room
    state = MachineState.ACTIVE if founder else MachineState.STANDBY
    old = job.machines.get(event.machine)
    machine = Machine(event.machine, event.incarnation, state, labels=event.labels)
    job.machines[machine.name] = machine
    if old is not None:
        machine.history, machine.pardoned, machine.ill = old.history, old.pardoned, old.ill
    if job.over:
        dismiss(job, machine, f"the job is {job.status}")
        return
    job.refill_attempts = 0
    if not founder and job.wanted:
        job.wanted -= 1
    if old is not None and quarantine_if_due(job, machine):
        return
    said = f"{machine.name} has come" + ("" if founder else " as a standby")
    announce(job, "machine", said, machine=machine.name)
    for slot in range(job.plan.nproc):
        machine.workers.append(start_worker(job, machine, slot))


def could_not_start(job: JobState, name: str, why: str) -> None:
    """A machine that was expected will not come."""
    if job.status == JobStatus.FORMING and not job.restarts:
        fail(job, FailureCause.START, f"{name} could not start: {why}")
        return
    announce(job, "lost", f"{name} could not start: {why}", machine=name)
    job.wanted = max(0, job.wanted - 1)
    job.refusals += 1


def form(job: JobState) -> bool:
    """Form the first generation once all its workers listen; returns whether it was formed."""
    if job.missing_machines:
        _fill_places(job)
    if len(job.machines) < len(job.plan.opening) or _awaits_worker(job):
        return False
    founders, opening = job.in_state(MachineState.ACTIVE), job.plan.opening
    if len(founders) < len(opening) or not all(machine.whole for machine in founders):
        return False
    founders.sort(key=lambda machine: (len(machine.name), machine.name))
    places = {cell: machine.name for cell, machine in zip(opening, founders, strict=False)}
    vacant = tuple(role for role, cell in enumerate(job.plan.cells) if cell not in places)
    job.change = Change(Kind.FORM, places, {}, vacant=vacant, spared=vacant)
    if vacant:
        announce_vacated(job, vacant, f"the job begins with {len(opening)} of {job.plan.machines} machines")
    resume(job, job.change)
    return True


def _awaits_worker(job: JobState) -> bool:
    """Whether a living worker of the first generation does not listen yet."""
    for worker in job.starting.values():
        if worker.alive and job.machines[worker.machine].state == MachineState.ACTIVE:
            return True
    job.starting = {uid: worker for uid, worker in job.starting.items() if worker.alive}
    return False


def replace_founders(job: JobState, dead: list[Worker]) -> None:
    """Before the first generation: start dead workers again, or count their machines as missing."""
    for worker in dead:
        machine = job.machines[worker.machine]
        if machine.state == MachineState.ACTIVE and not quarantine_if_due(job, machine):
            machine.workers[worker.slot] = start_worker(job, machine, worker.slot)
    gone = {each.machine for each in dead if job.machines[each.machine].state != MachineState.ACTIVE}
    job.missing_machines += len(gone)


def _fill_places(job: JobState) -> None:
    """Give standbys the places of machines that are gone before the first step; ask for more if there are too few."""
    here = len(job.in_state(MachineState.ACTIVE))
    job.missing_machines = min(job.missing_machines, len(job.plan.opening) - here)
    ready_first = sorted(job.free_standbys(set()), key=lambda machine: not machine.whole)
    for machine in ready_first[: job.missing_machines]:
        activate(job, machine)
        job.missing_machines -= 1
        if any(worker.role is not None for worker in machine.workers):
            renew(job, machine)
    if not job.missing_machines:
        return
    lacking = f"{job.halt_reason}; the job has not begun, and there is no standby"
    if job.plan.settings.recovery.no_standby == "stop" or job.refusals >= ATTEMPTS:
        fail(job, FailureCause.NO_MACHINE, lacking)
        return
    if not job.waiting:
        job.waiting, job.waiting_since = lacking, job.now
        announce(job, "waiting", f"{job.waiting}: it waits for one; add one with: understudy standby add")
    if not job.wanted:
        want(job, job.missing_machines)
