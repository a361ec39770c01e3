"""Who keeps the copy of a role's state, as a pure function of the roster."""

from __future__ import annotations

from collections.abc import Collection

from understudy.protocol.roster import Roster


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
