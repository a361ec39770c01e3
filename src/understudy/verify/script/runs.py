"""A rehearsal's runs: which roles hold the same, who is disturbed when, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from .observation import Observation

FIRST = 4
"""Steps before the first disturbance: more than a newcomer rehearses, so that no counter is right by accident."""
APART = 2
"""Steps from one disturbance to the next."""
LEAST = FIRST + APART
"""Fewer steps than this show nothing."""

Deed = Literal["replace", "kill"]
WORDS: dict[Deed, str] = {"replace": "a planned replacement", "kill": "kill -9"}


class Disturbance(msgspec.Struct, frozen=True):
    """Something happens to the machine that plays a role."""

    kind: Deed
    role: int
    """Whose machine it is."""
    roles: tuple[int, ...]
    """All that it plays."""
    classes: tuple[int, ...] = ()
    """The role classes that are shown by it, by number."""
    orphans: bool = False
    """Whether nobody else holds the state of one of them: it comes from a copy in another machine's memory."""


class Run(msgspec.Struct, frozen=True):
    """One performance of the script, from its beginning to its end."""

    name: str
    observations: list[Observation]
    status: str = "finished"
    """As the controller has it, or `stuck`."""
    reason: str = ""
    disturbances: tuple[Disturbance, ...] = ()
    """Those that were begun, in their order."""
    seconds: float = 0.0
    applied: int = 0
    """Steps, as the controller has it: a script that breaks off comes to no last boundary."""

    @property
    def steps(self) -> int:
        """How many were made by everybody."""
        if self.applied:
            return self.applied
        last: dict[int, int] = {}
        for observation in self.observations:
            last[observation.role] = max(observation.step, last.get(observation.role, 0))
        return min(last.values(), default=0)

    @property
    def whole(self) -> bool:
        return self.status == "finished"


def classes_of(observations: Iterable[Observation]) -> list[tuple[int, ...]]:
    """The role classes: roles that hold identical copies of state; where there are none, each role by itself."""
    twins = {observation.role: observation.twins or (observation.role,) for observation in observations}
    return sorted({tuple(sorted({role, *twins[role]})) for role in twins})


def machines_of(observations: Iterable[Observation]) -> list[tuple[int, ...]]:
    """The roles of each machine of an undisturbed run."""
    found: dict[str, set[int]] = {}
    for observation in observations:
        found.setdefault(observation.machine, set()).add(observation.role)
    return sorted(tuple(sorted(roles)) for roles in found.values())


def plan(classes: Sequence[tuple[int, ...]], machines: Sequence[tuple[int, ...]]) -> list[Disturbance]:
    """For every role class a planned replacement, and the death of a machine. As few machines as there can be; where
    there is a choice, the last ones are replaced and the first ones die."""
    number = {role: index for index, roles in enumerate(classes) for role in roles}
    found = []
    kinds: tuple[Deed, ...] = ("replace", "kill")
    for kind in kinds:
        for roles in _cover(machines[::-1] if kind == "replace" else machines, number):
            left = {role for other in machines if other != roles for role in other}
            orphans = kind == "kill" and any(not left & set(classes[number[role]]) for role in roles)
            shown = tuple(sorted({number[role] for role in roles}))
            found.append(Disturbance(kind, roles[0], roles, shown, orphans))
    return found


def _cover(machines: Sequence[tuple[int, ...]], number: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Machines that play roles of all classes, greedily: the one with the most that are missing comes first."""
    missing = set(number.values())
    found = []
    while missing:
        best = max(machines, key=lambda roles: len({number[role] for role in roles} & missing))
        found.append(best)
        missing -= {number[role] for role in best}
    return found


def rounds(wanted: Sequence[Disturbance], steps: int) -> list[tuple[Disturbance, ...]]:
    """As many at a time as so many steps have room for, in runs of about the same size."""
    room = max(1, (steps - FIRST) // APART)
    count = -(-len(wanted) // room)
    return [tuple(wanted[number::count]) for number in range(count)]


def held_at(number: int) -> int:
    """The step before which everybody is held for a disturbance, counted from 0."""
    return FIRST + APART * number


def settled(observations: Iterable[Observation], disturbances: int) -> list[Observation]:
    """The same, each with the number of disturbances that could have had an effect on it. One that is about to happen
    is known to workers while they are held, and has no effect on what they hold then. Of each worker in its order."""
    floor: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    found = []
    for observation in observations:
        who = (observation.uid, observation.role)
        if who not in last or observation.step <= last[who]:  # a newcomer, or a step that is begun again
            floor[who] = observation.disturbances
        last[who] = observation.step
        past = sum(held_at(number) < observation.step for number in range(disturbances))
        found.append(
            msgspec.structs.replace(observation, disturbances=max(floor[who], min(observation.disturbances, past)))
        )
    return found


def said(disturbance: Disturbance) -> str:
    roles = ", ".join(map(str, disturbance.roles))
    many = "roles" if len(disturbance.roles) > 1 else "role"
    if disturbance.kind == "replace":
        return f"the machine that plays {many} {roles} is replaced by plan"
    return f"the machine that plays {many} {roles} is killed"
