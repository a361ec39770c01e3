"""Who keeps the copy of a role's state, as pure functions of the roster."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .roster import Roster


def buddy_of(roster: Roster, role: int, twins: Collection[int] = ()) -> str | None:
    """The worker that keeps this role's copy: the one in the same place on the next machine, in the order of roles.

    None where nobody has to, because a role with the same state (`twins`) plays on another machine; and where nobody
    can, because there is no other machine or nobody plays the role."""
    player = roster.player(role)
    if player is None:
        return None
    if any(twin is not None and twin.machine != player.machine for twin in map(roster.player, twins)):
        return None
    machines: dict[str, list[str]] = {}
    for seat in range(len(roster.seats)):
        if (worker := roster.player(seat)) is not None:
            machines.setdefault(worker.machine, []).append(worker.uid)
    if len(machines) < 2:
        return None
    names = list(machines)
    following = machines[names[(names.index(player.machine) + 1) % len(names)]]
    return following[machines[player.machine].index(player.uid) % len(following)]


def wards_of(roster: Roster, uid: str, twins: Mapping[int, Collection[int]]) -> tuple[int, ...]:
    """The roles whose copies this worker keeps; `twins` has those of every role, none where it has no entry."""
    return tuple(role for role in range(len(roster.seats)) if buddy_of(roster, role, twins.get(role, ())) == uid)
