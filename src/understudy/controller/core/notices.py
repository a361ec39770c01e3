"""Notices: machines that will go at a given time, whatever happens. They are replaced before that, if possible."""

from __future__ import annotations

from understudy.protocol.frames import Leaving

from .actions import announce, dismiss, want
from .change import Phase, QueuedReplacement
from .events import Replace
from .machines import Machine, MachineState
from .signals import lose, signal
from .state import JobState, JobStatus
from .turns import notice_id


def notified(job: JobState, machine: Machine, leaving: Leaving) -> None:
    """A machine reports that it goes soon."""
    if machine.notice is not None:
        return
    machine.notice, machine.why = job.now + leaving.seconds, leaving.why
    said = f"{machine.name} goes in {leaving.seconds:g} s: {leaving.why}"
    announce(job, "notice", said, machine=machine.name, seconds=leaving.seconds)
    heed_notices(job)


def heed_notices(job: JobState) -> None:
    """Drain active machines that have to go, and dismiss the others."""
    for machine in [machine for machine in job.machines.values() if machine.notice is not None]:
        if machine.state in (MachineState.STANDBY, MachineState.QUARANTINED):
            _let_go(job, machine)
        elif machine.state in (MachineState.ACTIVE, MachineState.LEAVING):
            _drain(job, machine)


def _let_go(job: JobState, machine: Machine) -> None:
    """Dismiss a standby, unless it is needed; during a halt it may hold state that others have lost."""
    joins = machine.name in job.joining_machines()
    if job.status in (JobStatus.HALTING, JobStatus.RECOVERING) or (joins and not job.pending()):
        return
    living = [worker for worker in machine.all_workers if worker.alive]
    announce(job, "machine", f"{machine.name} is dismissed", machine=machine.name)
    dismiss(job, machine, machine.why)
    signal(job, "agent", living, f"{machine.name} goes: {machine.why}")


def _drain(job: JobState, machine: Machine) -> None:
    """Queue the replacement of a machine that has to go, and ask for a standby if there is none."""
    if any(machine.name in item.request.machines and item.forced for item in job.queue):
        return
    lacking = len(job.free_standbys(job.joining_machines())) + job.wanted <= len(job.queue)
    request = Replace((machine.name,), by=machine.notice, why=machine.why)
    job.queue.append(QueuedReplacement(notice_id(machine), request, forced=True))
    if not lacking or machine.state != MachineState.ACTIVE:
        return
    then = "training waits for one then"
    if job.plan.settings.masking.mask:
        then = "its replica is given up then, and training goes on with the others"
    said = f"{machine.name} goes, and no standby is free: without one, {then}"
    announce(job, "late", said, machine=machine.name)
    if job.plan.settings.recovery.no_standby != "stop":
        want(job, 1)


def time_is_up(job: JobState, machine: Machine) -> None:
    """The time of a notice has come; nothing is to be done if the machine's place is as good as taken."""
    change = job.change
    going = change is not None and machine.name in change.leaving and change.phase in (Phase.ARMED, Phase.SWITCH)
    seated = job.roster is not None and machine.name in job.homes()
    left = machine.state == MachineState.LEAVING and not seated
    if not going and not left:
        lose(job, machine, f"its time was up: {machine.why}", "agent")
