"""What agents report: messages of workers, and the ends of their processes. `SPEAKERS` says in
which states a worker may send a message, `COURSE` what a message means in each phase of a change. A message that the
tables rule out raises with the story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from understudy.protocol import messages
from understudy.protocol.frames import Exited, KeptCopy, Leaving, Relayed, Report, Stopped
from understudy.protocol.sentences import listed

from .actions import UnexpectedEvent, announce, enter, mark
from .change import Change, Kind, Phase
from .failure import halt
from .machines import Machine, Worker, WorkerCondition
from .masked import announce_vacated
from .planned import cancel
from .replicas import note_twins
from .settling import first_step_made
from .signals import exited, give_up_on, halted, notified, script_failed, signal, stalled
from .sources import note_comparison
from .state import JobState


def reported(job: JobState, machine: Machine, report: Report) -> None:
    """Take in an agent's report."""
    match report:
        case Leaving():
            notified(job, machine, report)
        case KeptCopy(recorded):
            job.recordings.copied(machine.place, recorded)
            if recorded.url:
                said = f"{machine.name} keeps a copy of the recording of role {recorded.role}"
                announce(job, "copied", said, machine=machine.name, role=recorded.role)
        case Exited(uid):
            if job.workers[uid].alive:
                exited(job, job.workers[uid], report)
        case Stopped(uid, seconds):
            if job.workers[uid].alive:
                give_up_on(job, [uid], f"has been stopped by a signal for {seconds:.0f} s")
        case Relayed(uid, message):
            if isinstance(message, messages.Saved):  # the file outlives the worker that wrote it
                job.saves.setdefault(message.role, set()).add(message.step)
            if job.workers[uid].alive:
                _said(job, job.workers[uid], message)


def _said(job: JobState, worker: Worker, message: messages.FromWorker) -> None:
    if worker.condition not in SPEAKERS.get(type(message), ANY):
        raise UnexpectedEvent(job, f"{job.describe(worker)} is {worker.condition} and says {type(message).__name__}")
    match message:
        case messages.Here(address, pid):
            worker.address, worker.pid = address, pid
            job.starting.pop(worker.uid, None)
        case messages.Tracked(role, twins, size):
            worker.holds, job.sizes[role] = True, size
            note_twins(job, role, twins)
        case messages.Compared():
            note_comparison(job, message)
        case messages.Parked(role):
            if role == worker.rehearsing:
                worker.rehearsed, worker.rehearsing = role, None
        case messages.Recorded():
            _recorded(job, worker, message)
        case messages.Rehearsed():
            _rehearsed(job, worker, message)
        case messages.Prepared() | messages.Unprepared() | messages.Cancelled() | messages.Switched() | messages.Gave():
            _about_change(job, worker, message)
        case messages.Settled(generation, _, lost):
            first_step_made(job, worker, generation, lost)
        case messages.Halted():
            halted(job, worker, message)
        case messages.Done():
            worker.done = message
            job.closing_at = job.closing_at or job.now
            job.unreported.discard(worker.uid)
        case messages.Stalled():
            stalled(job, worker, message)
        case messages.Faulty(reason, fatal):
            signal(job, "script", [worker], f"{job.describe(worker)}: {reason}", dead=False, trusted=not fatal)
        case messages.Failed(step, error, _, cause):
            if job.has_role(worker.uid):
                script_failed(job, worker, f"{job.describe(worker)} failed in step {step}: {error}", cause)
            else:
                announce(job, "rehearsal", f"{job.describe(worker)} failed: {error}", uid=worker.uid)


def _recorded(job: JobState, worker: Worker, recorded: messages.Recorded) -> None:
    job.recordings.made(job.machines[worker.machine].place, recorded)
    if recorded.url:
        role, steps, size = recorded.role, recorded.steps, recorded.bytes
        what = f"{steps} steps" if steps else "how the model is built"
        said = f"role {role} has recorded {what} for joiners to rehearse with: {size / 1e6:.3g} MB"
        announce(job, "recorded", said, role=role, bytes=size)


def _rehearsed(job: JobState, worker: Worker, message: messages.Rehearsed) -> None:
    role = message.role
    if role != worker.rehearsing:
        return  # superseded: the worker has been asked to rehearse another role meanwhile
    worker.rehearsed, worker.rehearsing = role, None
    worker.also, worker.fixed = message.also, message.fixed
    if message.diverged:
        text = f"{job.describe(worker)} does something else than its recording: {message.diverged}"
        announce(job, "rehearsal", text, uid=worker.uid)
    for reading in message.early:
        if reading not in job.early_readings:
            job.early_readings.add(reading)
            _announce_early(job, worker, reading)
    durations, cell = job.machines[worker.machine].rehearsal_seconds, job.plan.cells[role]
    durations[cell] = message.seconds or durations.get(cell, 0.0)


def _announce_early(job: JobState, worker: Worker, reading: messages.EarlyReading) -> None:
    flag, value, file, line = reading.flag, reading.value, reading.file, reading.line
    text = (
        f"{file} line {line} evaluates {flag} before the first step: it is {value} in a rehearsal and can be "
        f"{not value} once this standby has a role (role {job.primary()} is the primary one); keep the flag itself, as "
        f"in flag = {flag}, and test it where it is used"
    )
    announce(job, "rehearsal", text, uid=worker.uid, flag=flag, value=value, file=file, line=line)


IN_ROLE = frozenset({WorkerCondition.SEATED, WorkerCondition.PARKED})
ANY = frozenset(WorkerCondition)

SPEAKERS: dict[type, frozenset[WorkerCondition]] = {
    messages.Here: frozenset({WorkerCondition.STARTING}),
    messages.Rehearsed: frozenset({WorkerCondition.REHEARSING}),
    messages.Parked: IN_ROLE,
    messages.Tracked: IN_ROLE,
    messages.Compared: IN_ROLE,
    messages.Recorded: IN_ROLE,
    messages.Settled: IN_ROLE,
    messages.Stalled: IN_ROLE | {WorkerCondition.READY, WorkerCondition.DONE},  # sent by another thread than the others
    messages.Done: IN_ROLE,
    messages.Halted: ANY - {WorkerCondition.STARTING},  # the answer to a halt, whatever the worker does
}
"""Message → the states in which a worker may send it; a message that is not listed may come in any state."""


def _about_change(
    job: JobState,
    worker: Worker,
    message: messages.Prepared | messages.Unprepared | messages.Cancelled | messages.Switched | messages.Gave,
) -> None:
    if isinstance(message, messages.Switched):
        worker.entered, worker.parked = True, False
    change = job.change
    if change is None or change.generation != message.generation:
        return  # stale: about a change that is over
    handler = COURSE.get((change.phase, type(message)))
    if handler is None:
        name = type(message).__name__
        raise UnexpectedEvent(job, f"{job.describe(worker)} says {name} in phase {change.phase} of a {change.kind}")
    handler(job, change, worker, message)


def _links_opened(job: JobState, change: Change, worker: Worker, message: messages.Prepared) -> None:
    change.opened[worker.uid] = message.seconds
    change.waiting.discard(worker.uid)


def _links_measured(job: JobState, change: Change, worker: Worker, message: messages.Prepared) -> None:
    change.opened[worker.uid] = message.seconds


def _links_missing(job: JobState, change: Change, worker: Worker, message: messages.Unprepared) -> None:
    why = f"{job.describe(worker)}: {message.why}"
    cancel(job, why) if change.planned else halt(job, why)


def _switching_without_links(job: JobState, change: Change, worker: Worker, message: messages.Unprepared) -> None:
    if not change.planned:
        _links_missing(job, change, worker, message)


def _done(job: JobState, change: Change, worker: Worker, message: messages.Cancelled | messages.Gave) -> None:
    change.waiting.discard(worker.uid)


def switched(job: JobState, change: Change, worker: Worker, message: messages.Switched) -> None:
    """A worker has switched; the first report makes the change's roster the present one."""
    assert change.roster is not None
    first = change.phase != Phase.SWITCH
    if first:
        change.waiting = {uid for uid in change.roster.seats if uid is not None} | {m.giver.uid for m in change.moves}
        job.roster = change.roster
        enter(job, change, Phase.SWITCH)
        if change.kind == Kind.SHRINK:
            announce_vacated(job, change.vacant, f"from here on without {listed(change.leaving)}")
    if "hand-over" not in change.clock and any(each.giver.uid == worker.uid for each in change.moves):
        mark(job, change, "hand-over")
    if change.roster.role_of(worker.uid) is not None:
        change.waiting.discard(worker.uid)
        if message.bytes:
            change.moved[worker.uid] = (message.bytes, message.seconds, message.again)
        took = bool(change.back) or any(each.taker.uid == worker.uid for each in change.moves)
        worker.holds = worker.holds or took
    if first and any(not job.workers[uid].alive for uid in change.waiting):  # a later death is a signal of its own
        halt(job, change.failed or "a worker died before it could switch")


def _late(job: JobState, change: Change, worker: Worker, message: object) -> None:
    """The message was sent before the change came into this phase: nothing depends on it any more."""


Handler = Callable[[JobState, Change, Worker, Any], None]

COURSE: dict[tuple[Phase, type], Handler] = {
    (Phase.PREPARE, messages.Prepared): _links_opened,
    (Phase.PREPARE, messages.Unprepared): _links_missing,
    (Phase.PREPARE, messages.Switched): switched,
    (Phase.ARMED, messages.Unprepared): _links_missing,
    (Phase.ARMED, messages.Switched): switched,
    (Phase.CANCEL, messages.Prepared): _links_measured,
    (Phase.CANCEL, messages.Unprepared): _late,
    (Phase.CANCEL, messages.Cancelled): _done,
    (Phase.CANCEL, messages.Switched): switched,
    (Phase.OPEN, messages.Prepared): _links_measured,
    (Phase.OPEN, messages.Unprepared): _links_missing,
    (Phase.OPEN, messages.Switched): switched,
    (Phase.SWITCH, messages.Prepared): _links_measured,
    (Phase.SWITCH, messages.Unprepared): _switching_without_links,
    (Phase.SWITCH, messages.Cancelled): _late,
    (Phase.SWITCH, messages.Switched): switched,
    (Phase.SWITCH, messages.Gave): _done,
}
"""(phase of the change, message about it) → handler. A message about a change that is over never gets here."""
