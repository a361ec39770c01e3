"""The switch to the next roster, which all changes share: the workers report it one by one."""

from __future__ import annotations

from understudy.protocol.messages import Switched
from understudy.protocol.sentences import listed

from .actions import enter, mark
from .change import Change, Kind, Phase
from .failure import halt
from .machines import Worker
from .masked import announce_vacated
from .state import JobState


def switched(job: JobState, change: Change, worker: Worker, message: Switched) -> None:
    """A worker has switched; the first report makes the change's roster the present one."""
    assert change.roster is not None
    first = change.phase != Phase.SWITCH
    if first:
        _begin(job, change)
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


def _begin(job: JobState, change: Change) -> None:
    assert change.roster is not None
    seats = {uid for uid in change.roster.seats if uid is not None}
    change.waiting = seats | {each.giver.uid for each in change.moves}
    job.roster = change.roster
    enter(job, change, Phase.SWITCH)
    if change.kind == Kind.SHRINK:
        announce_vacated(job, change.vacant, f"from here on without {listed(change.leaving)}")
