"""The director dispatches events to the stories and takes the steps that have become possible. No clock, no socket, no
file: the same events have the same effects, so a controller that restarts replays its ledger and knows its job."""

from __future__ import annotations

from operator import is_

from understudy.protocol.frames import Relayed
from understudy.protocol.messages import Cancelled, Gave, Prepared, Saved, Settled, Switched

from . import ending, failure, forming, planned, requests, scaling, settling, signals, standbys, turns
from .actions import announce
from .change import Change, Phase
from .effects import Effect
from .events import Asked, Event, Expired, Lost, Noted, Overdue, Registered, Rejected, Reported, Slipping
from .reports import reported
from .state import JobPlan, JobState, JobStatus

COUNTED = (Prepared, Cancelled, Switched, Gave, Settled, Saved)
"""Messages that each worker sends in every change, or often: most of them are only counted."""


class Director:
    """The controller's decisions: events in, effects out. Orders to agents are in the machines' outboxes."""

    def __init__(self, plan: JobPlan) -> None:
        self.job = JobState(plan)

    def feed(self, event: Event, now: float = 0.0) -> list[Effect]:
        """Take an event in and return its effects."""
        job = self.job
        job.now, job.effects = now, []
        job.story.append(event)
        before = _outline(job)
        _dispatch(job, event)
        counted = (
            isinstance(event, Reported)
            and isinstance(event.report, Relayed)
            and isinstance(event.report.message, COUNTED)
        )
        _advance(job, brief=counted and all(map(is_, _outline(job), before)))
        return job.effects

    def due(self) -> list[tuple[float, Overdue | Slipping | Expired]]:
        """All limits and deadlines that run, with the time at which each passes."""
        return signals.due(self.job)


def _dispatch(job: JobState, event: Event) -> None:
    match event:
        case Registered(name, incarnation):
            old = job.machines.get(name)
            if old is not None and old.incarnation == incarnation:
                return
            if old is not None and old.alive:
                signals.lose(job, old, "its agent was started again", "agent")
            forming.register(job, event)
        case Rejected(name, _, why):
            announce(job, "refused", why, machine=name)
        case Lost(name, incarnation, why, source):
            machine = job.machines.get(name)
            if machine is None:
                forming.could_not_start(job, name, why)
            elif machine.incarnation == incarnation and machine.alive:
                signals.lose(job, machine, why, source)
        case Reported(name, incarnation, number, report):
            machine = job.machines.get(name)
            known = machine is not None and machine.incarnation == incarnation and machine.alive
            if machine is not None and known and machine.inbox.take(number):
                reported(job, machine, report)
        case Asked(id, request):
            requests.ask(job, id, request)
        case Overdue(id):
            requests.overdue(job, id)
        case Slipping():
            pass  # after every event it is announced what will be late
        case Expired():
            signals.expired(job, event)
        case Noted(kind, text, data):
            announce(job, kind, text, **data)


def _outline(job: JobState) -> tuple[object, ...]:
    """The parts of the state by which an event is seen to have changed something."""
    return (job.status, job.change, job.settling, job.roster, len(job.queue))


def _advance(job: JobState, *, brief: bool) -> None:
    """Take all steps that have become possible; `brief`: only those that wait for a counted message."""
    while not job.over and _step(job, brief=brief):
        brief = False
    if not brief:
        standbys.anticipate(job)
        turns.foresee(job)
    ending.finish(job)


def _step(job: JobState, *, brief: bool) -> bool:
    """Take one step; returns whether there was one."""
    change = job.change
    if job.status == JobStatus.HALTING and not job.unreported:
        failure.decide(job)
        return job.status != JobStatus.HALTING
    if change is not None:
        return _step_in(job, change, brief=brief)
    if brief:
        return False
    if job.status == JobStatus.FORMING:
        return forming.form(job)
    return job.status == JobStatus.TRAINING and requests.start_next(job)


def _step_in(job: JobState, change: Change, *, brief: bool) -> bool:
    """Bring the change under way into its next phase, if all have done what the present one asks of them."""
    if change.phase == Phase.REHEARSE:
        if not all(job.workers[uid].rehearsed == role for role, uid in change.joiners.items()):
            return False
        planned.propose(job, change) if change.planned else failure.resume(job, change)
        return True
    if change.phase == Phase.CANCEL and not brief:
        change.waiting = set(job.living(change.waiting))
    if change.waiting:
        return False
    match change.phase:
        case Phase.PREPARE:
            planned.arm(job, change)
        case Phase.CANCEL:
            planned.give_up(job, change)
        case Phase.SWITCH:
            _complete(job, change)
        case _:
            return False
    return True


def _complete(job: JobState, change: Change) -> None:
    """End a change to which all have switched, and see to what has come up meanwhile."""
    settling.complete(job, change)
    turns.replace_ill(job, {name for name in change.places.values() if job.machines[name].ill})
    signals.heed_notices(job)
    settling.conclude(job)
    ending.stop_joiners(job)
    scaling.announce_replicas(job, change)
