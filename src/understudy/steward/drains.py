"""In which order machines are drained, how many at once, and whether each will be free in time: pure, with reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Drain(msgspec.Struct, frozen=True):
    """Machines of one request that wait for standbys to take their places."""

    id: str
    machines: tuple[str, ...]
    by: float | None = None
    """When they must be free."""
    in_turns: bool = True
    """Whether they may go one after the other; else all go at one boundary."""


class Turn(msgspec.Struct, frozen=True):
    """Whose places are taken at the next boundary; nobody's while standbys are missing."""

    machines: tuple[str, ...]
    reason: str


class Outlook(msgspec.Struct, frozen=True):
    """What is to be expected of a drain."""

    id: str
    turns: int
    ends: float | None
    """When it is likely to be over; None where no replacement has been measured yet."""
    late: bool
    reason: str
    excuse: str = ""
    """Of one that will be late: by how much."""


def deadline(drain: Drain) -> float:
    return math.inf if drain.by is None else drain.by


def in_order(waiting: Sequence[Drain]) -> list[Drain]:
    """The earliest deadline first; without one, or with the same, as they were asked for."""
    return sorted(waiting, key=deadline)


def next_turn(drain: Drain, ready: Sequence[str], limit: int = 0) -> Turn:
    """Which of a drain's machines go now: `ready` are those for which a standby is at hand, `limit` is how many may go
    at once (0: any number)."""
    able = tuple(name for name in drain.machines if name in ready)
    count = len(drain.machines)
    if not drain.in_turns:
        if len(able) < count:
            return Turn((), f"waits for {count - len(able)} more of {count} standbys: all go at one boundary")
        return Turn(able, "all at one boundary")
    if not able:
        return Turn((), "waits for a standby")
    chosen = able[:limit] if limit else able
    if len(chosen) == count:
        return Turn(chosen, "all that are left")
    if len(chosen) < len(able):
        return Turn(chosen, f"{len(chosen)} of {count}: no more than {limit} at once")
    return Turn(chosen, f"{len(chosen)} of {count}: a standby is ready for {'it' if len(chosen) == 1 else 'them'}")


def turns_of(drain: Drain, standbys: int, limit: int = 0) -> int:
    """In how many turns a drain is done at least, with so many standbys there."""
    count = len(drain.machines)
    if not drain.in_turns:
        return 1
    by_limit = math.ceil(count / limit) if limit else 1
    return max(by_limit, 2 if 0 < standbys < count else 1)


def outlooks(
    waiting: Sequence[Drain], standbys: int, limit: int, now: float, lately: float | None, busy: float = 0.0
) -> list[Outlook]:
    """Whether each can be met, going by what a turn took lately; `busy` is for how long the turn under way lasts."""
    found, ends, left = [], now + busy, standbys
    for drain in in_order(waiting):
        turns = turns_of(drain, left, limit)
        short = max(0, len(drain.machines) - max(0, left))
        left -= len(drain.machines)
        ends += turns * (lately or 0.0)
        late = lately is not None and drain.by is not None and ends > drain.by
        reason, excuse = "waits for a standby" if short else "waits for its turn", ""
        if late:
            assert drain.by is not None
            assert lately is not None
            many = f"{turns} turns of about {lately:.2g} s end" if turns > 1 else f"a turn of about {lately:.2g} s ends"
            excuse = f"{many} {ends - drain.by:.2g} s after the deadline"
            reason += f", and will be late: {excuse}"
        found.append(Outlook(drain.id, turns, None if lately is None else ends, late, reason, excuse))
    return found
