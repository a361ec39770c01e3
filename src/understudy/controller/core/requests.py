"""Requests of operators and of the steward: they are answered at once, or queued until their turn comes."""

from __future__ import annotations

from understudy.steward.drains import next_turn

from . import ending, scaling, standbys
from .actions import announce, reply
from .change import Phase, QueuedReplacement
from .events import AddStandby, Readmit, RemoveStandby, Replace, ReportFault, Request, Scale, StopJob, TakeBack
from .machines import Machine, MachineState
from .masked import refill
from .planned import begin, cancel
from .replicas import lies_idle
from .signals import reported_ill, time_is_up
from .state import ATTEMPTS, JobState
from .turns import close, foresee, notice_id, objection


def ask(job: JobState, id: str, request: Request) -> None:
    """Take a request in."""
    job.requests.add(id)
    if job.over:
        reply(job, id, False, f"the job is {job.status}")
        return
    match request:
        case Replace():
            _replace(job, id, request)
        case TakeBack(name):
            _take_back(job, id, name)
        case AddStandby(count):
            standbys.add(job, id, count)
        case RemoveStandby(name, why):
            standbys.remove(job, id, name, why)
        case Readmit(name):
            standbys.readmit(job, id, name)
        case Scale():
            scaling.scale(job, id, request)
        case ReportFault(name, why, fatal):
            reported_ill(job, id, name, why, fatal=fatal)
        case StopJob():
            ending.stop(job, id)


def _replace(job: JobState, id: str, request: Replace) -> None:
    if problem := objection(job, request):
        reply(job, id, False, problem)
        return
    said = f"{'drain' if request.in_turns else 'replace'} {', '.join(request.machines)}"
    said += "" if request.by is None else f" within {request.by - job.now:.0f} s"
    because = {"why": request.why} if request.why else {}
    announce(job, "asked", f"{said}: {request.why}" if request.why else said, id=id, **because)
    job.queue.append(QueuedReplacement(id, request))
    foresee(job)  # before its turn comes, which may be at once


def _take_back(job: JobState, id: str, name: str) -> None:
    """Withdraw the replacement of a machine whose turn has not come."""
    waiting = [item for item in job.queue if item.id and name in item.request.machines]
    machine = job.machines.get(name)
    if machine is not None and machine.notice is not None:
        reply(job, id, False, f"{name} has to leave by itself; that cannot be taken back here")
    elif job.change is not None and name in job.change.leaving:
        reply(job, id, False, f"{name} is being replaced already; that cannot be taken back")
    elif not waiting:
        queued = ", ".join(each for item in job.queue if item.id for each in item.request.machines)
        reply(job, id, False, f"{name} does not wait to be replaced; machines that do: {queued or 'none'}")
    else:
        for item in waiting:
            job.queue.remove(item)
            rest = tuple(each for each in item.request.machines if each != name)
            if rest and item.request.in_turns:
                job.queue.append(item.part(rest))
            close(job, item.part((name,)), False, "an operator has taken it back")
        announce(job, "asked", f"{name} stays: taken back", id=id)
        reply(job, id, True, f"{name} stays")


def start_next(job: JobState) -> bool:
    """Begin the next planned change: a shrink, a refill, or the first replacement whose standbys are ready; returns
    whether there is one."""
    if scaling.shrink(job) or refill(job):
        return True
    job.line_up()
    while job.queue:
        item = _still_wanted(job, job.queue.popleft())
        if item is None:
            continue
        if any(lies_idle(job, job.machines[name]) for name in item.request.machines):
            job.queue.appendleft(item)
            return False  # until its replica is whole again
        chosen = _choose(job, item)
        turn, reason = next_turn(item.drain, list(chosen), job.plan.settings.replacement.at_once)
        if turn:
            rest = tuple(name for name in item.request.machines if name not in turn)
            if rest:  # the others wait for their own turn
                job.queue.appendleft(item.part(rest))
                item = item.part(turn)
            item.attempts += 1
            begin(job, item, [job.machines[name] for name in turn], [chosen[name] for name in turn], reason)
            return True
        needed = 1 if item.request.in_turns else len(item.request.machines)
        if item.forced or standbys.expected(job) >= needed:
            job.queue.appendleft(item)
            return False
        close(job, item, False, "no standby is left; add one with: understudy standby add")
    return False


def _still_wanted(job: JobState, item: QueuedReplacement) -> QueuedReplacement | None:
    """The rest of a replacement whose turn has come; None: nothing is left to do, and its outcome is closed."""
    request = item.request
    here = tuple(name for name in request.machines if job.machines[name].state == MachineState.ACTIVE)
    if not here or (len(here) < len(request.machines) and not request.in_turns):
        close(job, item, True, "no longer needed: the machine has no role any more")
        return None
    if request.standbys and not all(job.machines[name].state == MachineState.STANDBY for name in request.standbys):
        close(job, item, False, f"standby {' or '.join(request.standbys)} is gone; ask for another one")
        return None
    return item if len(here) == len(request.machines) else item.part(here)


def _choose(job: JobState, item: QueuedReplacement) -> dict[str, Machine]:
    """Machine → the standby that is ready to take its place, for the machines that have one."""
    chosen: dict[str, Machine] = {}
    homes = job.homes()
    for number, name in enumerate(item.request.machines):
        named = item.request.standbys[number] if item.request.standbys else ""
        machine = standbys.stand_in(job, homes[name], {other.name for other in chosen.values()}, named)
        if machine is not None:
            chosen[name] = machine
        elif not item.request.in_turns:
            break
    return chosen


def overdue(job: JobState, id: str) -> None:
    """The deadline of a request or a notice has passed: a replacement that has changed nothing yet is given up."""
    for machine in job.machines.values():
        if machine.alive and machine.notice is not None and id == notice_id(machine):
            time_is_up(job, machine)
            return
    late = [item for item in job.queue if item.id == id]
    for item in late:
        job.queue.remove(item)
    for item in late:
        close(job, item, False, "no standby was ready in time; training goes on as before")
    change = job.change
    if change is None or change.item is None or change.request != id or not change.planned:
        return
    if change.phase in (Phase.REHEARSE, Phase.PREPARE):
        change.item.attempts = ATTEMPTS
        cancel(job, "it was not done in time")
