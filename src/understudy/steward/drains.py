"""The order of drains, the machines that leave at each boundary, and whether drains will be in time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Drain(msgspec.Struct, frozen=True):
    """The machines of one request that wait to be replaced by standbys."""

    id: str
    machines: tuple[str, ...]
    by: float | None = None
    """When the machines must be free."""
    in_turns: bool = True
    """Whether the machines may leave one after the other; else all leave at one boundary."""


class Outlook(msgspec.Struct, frozen=True):
    """The expected course of a drain."""

    id: str
    ends: float | None
    """Expected end; None: no replacement has been measured yet."""
    reason: str
    excuse: str = ""
    """By how much the drain will be late; empty: it will be in time."""


def deadline(drain: Drain) -> float:
    """The deadline of a drain; infinite if it has none."""
    return math.inf if drain.by is None else drain.by


def next_turn(drain: Drain, ready: Sequence[str], limit: int = 0) -> tuple[tuple[str, ...], str]:
    """The machines of a drain that leave now, and why not more of them do. `ready`: machines with an available standby;
    `limit`: the largest number that may leave at once (0: no limit)."""
    able = tuple(name for name in drain.machines if name in ready)
    count = len(drain.machines)
    if not drain.in_turns:
        return able if len(able) == count else (), ""
    chosen = able[:limit] if limit else able
    if len(chosen) in (0, count):
        return chosen, ""
    why = f"a standby is ready for {'it' if len(chosen) == 1 else 'them'}"
    if len(chosen) < len(able):
        why = f"no more than {limit} at once"
    return chosen, f"{len(chosen)} of {count}: {why}"


def turns_of(drain: Drain, standbys: int, limit: int = 0) -> int:
    """Smallest number of turns of a drain with this number of standbys."""
    count = len(drain.machines)
    if not drain.in_turns:
        return 1
    by_limit = math.ceil(count / limit) if limit else 1
    return max(by_limit, 2 if 0 < standbys < count else 1)


def outlooks(
    waiting: Sequence[Drain], standbys: int, limit: int, now: float, lately: float | None, busy: float = 0.0
) -> list[Outlook]:
    """The expected course of each drain, by deadline and then by order of request. `lately`: recent duration of a turn;
    `busy`: remaining time of the current turn."""
    found, ends, left = [], now + busy, standbys
    for drain in sorted(waiting, key=deadline):
        turns = turns_of(drain, left, limit)
        reason, excuse = "waits for a standby" if len(drain.machines) > max(0, left) else "waits for its turn", ""
        left -= len(drain.machines)
        ends += turns * (lately or 0.0)
        if lately is not None and drain.by is not None and ends > drain.by:
            many = f"{turns} turns of about {lately:.2g} s end" if turns > 1 else f"a turn of about {lately:.2g} s ends"
            excuse = f"{many} {ends - drain.by:.2g} s after the deadline"
            reason += f", and will be late: {excuse}"
        found.append(Outlook(drain.id, None if lately is None else ends, reason, excuse))
    return found
