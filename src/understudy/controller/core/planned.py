"""A planned change, made while training goes on: `begin`, the rehearsals of the joiners, `propose`, `arm`, and then the
vote of the workers and the switch; or `cancel` and `give_up`. Replacements, refills and shrinks all take this way."""

from __future__ import annotations

from understudy.protocol.messages import Arm, Cancel, Prepare

from .actions import announce, enter, move, next_roster, tell
from .change import Change, Kind, Phase, QueuedReplacement
from .failure import halt, take_leavers_back
from .machines import Machine, MachineState
from .replicas import giver
from .standbys import rehearse
from .state import JobState
from .turns import try_again


def begin(job: JobState, item: QueuedReplacement, leavers: list[Machine], joining: list[Machine], reason: str) -> None:
    """Begin a replacement: each joining machine takes the cell of one leaver."""
    homes = job.homes()
    places = {homes[old.name]: new.name for old, new in zip(leavers, joining, strict=True)}
    leaving = tuple(machine.name for machine in leavers)
    change = job.change = Change(Kind.REPLACE, places, job.workers_of(places), leaving=leaving, item=item)
    for machine in leavers:
        machine.state = MachineState.LEAVING
    pairs = ", ".join(f"{old.name} → {new.name}" for old, new in zip(leavers, joining, strict=True))
    announce(job, "change", f"{pairs} ({reason})" if reason else pairs, kind=change.kind, change=item.id)
    enter(job, change, Phase.REHEARSE)
    if change.stops_the_world:
        halt(job, f"{pairs}, with the world stopped")
    else:
        rehearse(job, change.joiners)


def propose(job: JobState, change: Change) -> None:
    """Propose the next roster to all workers, stayers and joiners; they open the links that change beside training."""
    load: dict[str, int] = {}
    change.moves = tuple(move(job, role, giver(job, role, load), uid) for role, uid in change.joiners.items())
    all_links = change.item is not None and change.item.request.all_links
    change.roster = next_roster(job, change.places, fresh=all_links, vacant=change.vacant)
    change.waiting = job.seated(change)
    enter(job, change, Phase.PREPARE)
    for uid in sorted(change.waiting):
        tell(job, uid, Prepare(change.roster, change.moves))


def arm(job: JobState, change: Change) -> None:
    """Allow the givers of state to vote for the switch, since all workers have opened their links."""
    enter(job, change, Phase.ARMED)
    for each in change.moves:
        tell(job, each.giver.uid, Arm(change.generation))


def cancel(job: JobState, why: str) -> None:
    """Give a planned change up, unless the vote turns out to have been faster."""
    change = job.change
    assert change is not None
    if change.phase == Phase.CANCEL:
        change.waiting = set(job.living(change.waiting))
        return
    change.failed = why
    change.waiting = set() if change.roster is None else set(job.living(job.seated(change)))
    enter(job, change, Phase.CANCEL)
    for uid in sorted(change.waiting):
        tell(job, uid, Cancel(change.generation))


def give_up(job: JobState, change: Change) -> None:
    """End a cancelled change: all workers have confirmed that they have not switched."""
    job.change = None
    take_leavers_back(job, change)
    announce(job, "cancelled", change.failed, change=change.request)
    try_again(job, change, change.failed)
