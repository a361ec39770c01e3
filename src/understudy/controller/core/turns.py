"""The queue of replacements: objections, order, estimates of when each turn ends, and outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from understudy.steward.drains import Drain, Outlook, deadline, outlooks

from .actions import announce, reply, want
from .change import Change, QueuedReplacement, TurnOutcome, summary
from .events import Overdue, Replace, Slipping
from .machines import Machine, MachineState
from .standbys import claimed, expected
from .state import ATTEMPTS, JobState, JobStatus


def objection(job: JobState, request: Replace) -> str:
    """Why a replacement cannot be done, now or later; empty: it can."""
    return _wrong_machines(job, request) or _wrong_terms(job, request) or _too_few(job, request) or _late(job, request)


def _wrong_machines(job: JobState, request: Replace) -> str:
    if not request.machines:
        return "name the machines to replace"
    leaving = {name for item in job.queue for name in item.request.machines}
    if job.change is not None:
        leaving |= set(job.change.leaving)
    for name in request.machines:
        machine = job.machines.get(name)
        if machine is None:
            return f"there is no machine {name}; machines with roles: {job.names_in(MachineState.ACTIVE)}"
        if machine.state == MachineState.STANDBY:
            return f"{name} is a standby and has no role; remove it with: understudy standby remove {name}"
        if not machine.alive:
            return f"{name} is gone already: {machine.why}"
        if machine.state == MachineState.LEAVING or name in leaving:
            return f"{name} is being replaced already"
    if len(set(request.machines)) != len(request.machines):
        return "a machine is named twice"
    return ""


def _wrong_terms(job: JobState, request: Replace) -> str:
    if request.by is not None and not request.by > job.now:
        return f"the deadline has passed {job.now - request.by:.0f} s ago; name a later one, or none"
    if len(set(request.standbys)) != len(request.standbys):
        return "a standby is named twice; name one for each machine"
    if request.standbys and len(request.standbys) != len(request.machines):
        return f"{len(request.machines)} machines but {len(request.standbys)} standbys; name one for each or none"
    for name in request.standbys:
        machine = job.machines.get(name)
        if machine is None or machine.state != MachineState.STANDBY:
            return f"{name} is not a standby; standbys: {job.names_in(MachineState.STANDBY)}"
    return ""


def _too_few(job: JobState, request: Replace) -> str:
    free, needed = max(0, expected(job) - claimed(job)), len(request.machines)
    if free >= needed:
        return ""
    lacking = f"{needed} standby machines are needed and there are {free}"
    if needed == 1:
        lacking = "a standby machine is needed and none is free"
    return f"{lacking}; add {'one' if needed - free == 1 else 'some'} with: understudy standby add"


def _late(job: JobState, request: Replace) -> str:
    """An objection if even turns as short as the shortest of late would end after the deadline."""
    asked = QueuedReplacement("asked", request).drain
    drains = [*(item.drain for item in job.queue), asked]
    for outlook in _outlooks(job, drains, min(job.durations, default=None)):
        if outlook.id == asked.id and outlook.excuse:
            return f"it cannot be done in time: {outlook.excuse}; name a later deadline, or none"
    return ""


def usual_duration(job: JobState) -> float | None:
    """Median duration of the last replacements in seconds; None: there was none."""
    return median(job.durations) if job.durations else None


def _busy(job: JobState, turn: float | None) -> float:
    """Remaining seconds of the change under way, if a turn takes this long."""
    began = None if job.change is None else job.change.clock.get("rehearse")
    return 0.0 if began is None else max(0.0, (turn or 0.0) - (job.now - began))


def _outlooks(job: JobState, drains: Iterable[Drain], turn: float | None) -> list[Outlook]:
    free = len(job.free_standbys(job.joining_machines()))
    return outlooks(list(drains), free, job.plan.settings.replacement.at_once, job.now, turn, _busy(job, turn))


def prospects(job: JobState) -> list[tuple[QueuedReplacement, Outlook]]:
    """The queue in its order, with what is to be expected of each replacement."""
    waiting = sorted(job.queue, key=lambda item: deadline(item.drain))
    found = _outlooks(job, (item.drain for item in waiting), usual_duration(job))
    return list(zip(waiting, found, strict=True))


def foresee(job: JobState) -> None:
    """Announce once of each replacement that it will be late, as soon as that is known."""
    for item, outlook in prospects(job) if job.status == JobStatus.TRAINING else ():
        if outlook.excuse and not item.warned:
            item.warned = True
            names = item.request.machines
            announce(job, "late", f"{', '.join(names)}: {outlook.reason}", id=item.id, machines=list(names))


def deadlines(job: JobState) -> list[tuple[float, Overdue | Slipping]]:
    """When the deadline of each replacement and of each notice passes, and when a replacement must have begun."""
    found: list[tuple[float, Overdue | Slipping]] = []
    change = job.change
    for item in (*job.queue, *([change.item] if change is not None and change.item else [])):
        if item.request.by is not None and not item.forced:
            found.append((item.request.by, Overdue(item.id)))
    for machine in job.machines.values():
        if machine.alive and machine.notice is not None:
            found.append((machine.notice, Overdue(notice_id(machine))))
    begins = job.now + _busy(job, usual_duration(job))
    for item, outlook in prospects(job):
        if outlook.ends is not None and item.request.by is not None and not item.warned:
            last = item.request.by - (outlook.ends - begins)
            found.append((last, Slipping(item.id, last)))
    return found


def notice_id(machine: Machine) -> str:
    """The id of the replacement that a machine's notice leads to."""
    return f"notice-{machine.incarnation}"


def try_again(job: JobState, change: Change, why: str) -> None:
    """Queue the replacement of a change that did not come about, or close it after too many attempts."""
    item = change.item
    if item is None:
        return
    needed = 1 if item.request.in_turns else len(change.leaving)
    if item.forced or (item.attempts < ATTEMPTS and expected(job) >= needed):
        request = item.request  # a rebalance names which standby goes where: no other will do
        request = request if request.keep else msgspec.structs.replace(request, standbys=())
        job.queue.appendleft(QueuedReplacement(item.id, request, item.attempts, item.forced, item.warned))
    else:
        close(job, item, False, f"{why}; training goes on as before")


def close(job: JobState, item: QueuedReplacement | None, ok: bool, text: str, **data: object) -> None:
    """Keep the outcome of a turn of a request; the last turn answers the request."""
    if item is None or not item.id:
        return
    item.closed = True
    job.outcomes.setdefault(item.id, []).append(TurnOutcome(item.request.machines, ok, text, data))
    under_way = [change.item for change in (job.change, job.interrupted, job.settling) if change is not None]
    if any(other.id == item.id and not other.closed for other in (*job.queue, *filter(None, under_way))):
        return
    whole = summary(job.outcomes.pop(item.id))
    reply(job, item.id, whole.ok, whole.text, **whole.data)


def replace_ill(job: JobState, names: set[str]) -> None:
    """Queue the replacement of machines that still work but are ill, and ask for standbys if there are none."""
    waiting = {name for item in job.queue for name in item.request.machines}
    taken = job.joining_machines()
    for name in sorted(names - waiting):
        if job.machines[name].state == MachineState.ACTIVE:
            if len(job.free_standbys(taken)) + job.wanted <= len(job.queue):
                want(job, 1)
            job.queue.append(QueuedReplacement("", Replace((name,))))
