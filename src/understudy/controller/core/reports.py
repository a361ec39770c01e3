"""What agents report: messages of workers, and the ends of their processes. `SPEAKERS` says in
which states a worker may send a message, `COURSE` what a message means in each phase of a change. A message that the
tables rule out raises with the story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from understudy.protocol.frames import Exited, KeptCopy, Leaving, Relayed, Report, Stopped
from understudy.protocol.messages import (
    Cancelled,
    Done,
    Failed,
    Faulty,
    FromWorker,
    Gave,
    Halted,
    Here,
    Parked,
    Prepared,
    Recorded,
    Rehearsed,
    Saved,
    Settled,
    Stalled,
    Switched,
    Tracked,
    Unprepared,
)

from .actions import UnexpectedEvent, announce, change_in
from .change import Change, Phase
from .failure import halt
from .machines import Machine, Worker, WorkerCondition
from .notices import notified
from .planned import cancel
from .replicas import note_twins
from .settling import first_step_made
from .signals import exited, give_up_on, halted, script_failed, signal, stalled
from .state import JobState
from .switching import switched


def reported(job: JobState, machine: Machine, report: Report) -> None:
    """Take in an agent's report."""
    match report:
        case Leaving():
            notified(job, machine, report)
        case KeptCopy(recorded):
            _copied(job, machine, recorded)
        case Exited(uid):
            if job.workers[uid].alive:
                exited(job, job.workers[uid], report)
        case Stopped(uid, seconds):
            if job.workers[uid].alive:
                give_up_on(job, [uid], f"has been stopped by a signal for {seconds:.0f} s")
        case Relayed(uid, message):
            if isinstance(message, Saved):  # the file outlives the worker that wrote it
                job.saves.setdefault(message.role, set()).add(message.step)
            if job.workers[uid].alive:
                _said(job, job.workers[uid], message)


def _copied(job: JobState, machine: Machine, recorded: Recorded) -> None:
    job.recordings.copied(machine.place, recorded)
    if recorded.url:
        said = f"{machine.name} keeps a copy of the recording of role {recorded.role}"
        announce(job, "copied", said, machine=machine.name, role=recorded.role)


def _said(job: JobState, worker: Worker, message: FromWorker) -> None:
    if worker.condition not in SPEAKERS.get(type(message), ANY):
        raise UnexpectedEvent(job, f"{job.describe(worker)} is {worker.condition} and says {type(message).__name__}")
    match message:
        case Here(address, pid):
            worker.address, worker.pid = address, pid
            job.starting.pop(worker.uid, None)
        case Tracked(role, twins, size):
            worker.holds, job.sizes[role] = True, size
            note_twins(job, role, twins)
        case Parked(role):
            if role == worker.rehearsing:
                worker.rehearsed, worker.rehearsing = role, None
        case Recorded():
            _recorded(job, worker, message)
        case Rehearsed():
            _rehearsed(job, worker, message)
        case Prepared() | Unprepared() | Cancelled() | Switched() | Gave():
            _about_change(job, worker, message)
        case Settled(generation, _, lost):
            first_step_made(job, worker, generation, lost)
        case Halted():
            halted(job, worker, message)
        case Done():
            worker.done = message
            job.closing_at = job.closing_at or job.now
            job.unreported.discard(worker.uid)
        case Stalled():
            stalled(job, worker, message)
        case Faulty(reason, fatal):
            signal(job, "script", [worker], f"{job.describe(worker)}: {reason}", dead=False, trusted=not fatal)
        case Failed(step, error, _, cause):
            if job.has_role(worker.uid):
                script_failed(job, worker, f"{job.describe(worker)} failed in step {step}: {error}", cause)
            else:
                announce(job, "rehearsal", f"{job.describe(worker)} failed: {error}", uid=worker.uid)


def _recorded(job: JobState, worker: Worker, recorded: Recorded) -> None:
    job.recordings.made(job.machines[worker.machine].place, recorded)
    if recorded.url:
        role, steps, size = recorded.role, recorded.steps, recorded.bytes
        said = f"role {role} has recorded {steps} steps for joiners to rehearse with: {size / 1e6:.3g} MB"
        announce(job, "recorded", said, role=role, bytes=size)


def _rehearsed(job: JobState, worker: Worker, message: Rehearsed) -> None:
    role = message.role
    if role != worker.rehearsing:
        return  # superseded: the worker has been asked to rehearse another role meanwhile
    worker.rehearsed, worker.rehearsing = role, None
    worker.also, worker.fixed = message.also, message.fixed
    if message.diverged:
        text = f"{job.describe(worker)} does something else than its recording: {message.diverged}"
        announce(job, "rehearsal", text, uid=worker.uid)
    durations, cell = job.machines[worker.machine].rehearsal_seconds, job.plan.cells[role]
    durations[cell] = message.seconds or durations.get(cell, 0.0)


IN_ROLE = frozenset({WorkerCondition.SEATED, WorkerCondition.PARKED})
ANY = frozenset(WorkerCondition)

SPEAKERS: dict[type, frozenset[WorkerCondition]] = {
    Here: frozenset({WorkerCondition.STARTING}),
    Rehearsed: frozenset({WorkerCondition.REHEARSING}),
    Parked: IN_ROLE,
    Tracked: IN_ROLE,
    Recorded: IN_ROLE,
    Settled: IN_ROLE,
    Stalled: IN_ROLE | {WorkerCondition.READY, WorkerCondition.DONE},  # sent by another thread than the others
    Done: IN_ROLE,
    Halted: IN_ROLE | {WorkerCondition.REHEARSING, WorkerCondition.READY, WorkerCondition.DONE},
}
"""Message → the states in which a worker may send it; a message that is not listed may come in any state."""


# -- the change under way --------------------------------------------------------------------------------------------


def _about_change(job: JobState, worker: Worker, message: Prepared | Unprepared | Cancelled | Switched | Gave) -> None:
    if isinstance(message, Switched):
        worker.entered, worker.parked = True, False
    change = change_in(job, message.generation)
    if change is None:
        return  # stale: about a change that is over
    handler = COURSE.get((change.phase, type(message)))
    if handler is None:
        name = type(message).__name__
        raise UnexpectedEvent(job, f"{job.describe(worker)} says {name} in phase {change.phase} of a {change.kind}")
    handler(job, change, worker, message)


def _links_opened(job: JobState, change: Change, worker: Worker, message: Prepared) -> None:
    _links_measured(job, change, worker, message)
    change.waiting.discard(worker.uid)


def _links_measured(job: JobState, change: Change, worker: Worker, message: Prepared) -> None:
    change.opened[worker.uid] = message.seconds


def _links_missing(job: JobState, change: Change, worker: Worker, message: Unprepared) -> None:
    why = f"{job.describe(worker)}: {message.why}"
    cancel(job, why) if change.planned else halt(job, why)


def _switching_without_links(job: JobState, change: Change, worker: Worker, message: Unprepared) -> None:
    if not change.planned:
        _links_missing(job, change, worker, message)


def _done(job: JobState, change: Change, worker: Worker, message: Cancelled | Gave) -> None:
    change.waiting.discard(worker.uid)


def _late(job: JobState, change: Change, worker: Worker, message: object) -> None:
    """The message was sent before the change came into this phase: nothing depends on it any more."""


Handler = Callable[[JobState, Change, Worker, Any], None]

COURSE: dict[tuple[Phase, type], Handler] = {
    (Phase.PREPARE, Prepared): _links_opened,
    (Phase.PREPARE, Unprepared): _links_missing,
    (Phase.PREPARE, Switched): switched,
    (Phase.ARMED, Unprepared): _links_missing,
    (Phase.ARMED, Switched): switched,
    (Phase.CANCEL, Prepared): _links_measured,
    (Phase.CANCEL, Unprepared): _late,
    (Phase.CANCEL, Cancelled): _done,
    (Phase.CANCEL, Switched): switched,
    (Phase.OPEN, Prepared): _links_measured,
    (Phase.OPEN, Unprepared): _links_missing,
    (Phase.OPEN, Switched): switched,
    (Phase.SWITCH, Prepared): _links_measured,
    (Phase.SWITCH, Unprepared): _switching_without_links,
    (Phase.SWITCH, Cancelled): _late,
    (Phase.SWITCH, Switched): switched,
    (Phase.SWITCH, Gave): _done,
}
"""(phase of the change, message about it) → handler. A message about a change that is over never gets here."""
