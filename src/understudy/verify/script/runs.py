"""The runs of a check: role classes, which machine is disturbed when, and the result of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from understudy.controller.core.state import FailureCause
from understudy.protocol.messages import ScriptFailure
from understudy.protocol.sentences import named

from .observation import Observation

FIRST = 4
"""Steps before the first disturbance: more than a joiner rehearses, so that no counter is right by accident."""
BETWEEN = 2
"""Steps from one disturbance to the next."""
LEAST = FIRST + BETWEEN
"""Fewer steps than this show nothing."""

DisturbanceKind = Literal["replace", "kill"]
WORDS: dict[DisturbanceKind, str] = {"replace": "a planned replacement", "kill": "kill -9"}


class Disturbance(msgspec.Struct, frozen=True):
    """A planned replacement, or the death, of the machine that has a role."""

    kind: DisturbanceKind
    role: int
    """The role by which the machine is found."""
    roles: tuple[int, ...]
    """All roles of the machine."""
    classes: tuple[int, ...] = ()
    """Numbers of the role classes that are tested by it."""
    orphans: bool = False
    """Whether no other machine has a live copy of a role's state."""
    step: int = 0
    """The step before which training was held for it; 0: it has not begun."""


class Run(msgspec.Struct, frozen=True):
    """One run of the script, from its beginning to its end."""

    name: str
    observations: list[Observation]
    status: str = "finished"
    """The controller's status of the job, or `stuck`."""
    reason: str = ""
    cause: ScriptFailure | None = None
    """How the script has failed, if the job failed by the script."""
    failure: str = ""
    """The controller's cause of a failure, see `FailureCause`."""
    interference: str = ""
    """A death that the check has not caused: of a machine that was silent for too long, or of a process."""
    options: tuple[str, ...] = ()
    """Options of this run that the job, as its user describes it, does not have."""
    disturbances: tuple[Disturbance, ...] = ()
    """The disturbances that were begun, in their order."""
    seconds: float = 0.0
    applied: int = 0
    """Number of applied steps, by the controller: a script that breaks off has no observation of its last boundary."""

    @property
    def steps(self) -> int:
        """Number of steps that all roles have made."""
        if self.applied:
            return self.applied
        last: dict[int, int] = {}
        for each in self.observations:
            last[each.role] = max(each.step, last.get(each.role, 0))
        return min(last.values(), default=0)

    @property
    def whole(self) -> bool:
        """Whether the script came to its end."""
        return self.status == "finished"

    def after(self, disturbances: int) -> list[Observation]:
        """Observations of the time in which this number of disturbances had begun."""
        return [each for each in self.observations if each.disturbances == disturbances]

    def before_disturbances(self) -> list[Observation]:
        return self.after(0)

    @property
    def state_lost(self) -> bool:
        """Whether the job has failed because no live worker, copy or checkpoint has the state of a role."""
        return self.failure == FailureCause.STATE_LOST


def classes_of(observations: Iterable[Observation]) -> list[tuple[int, ...]]:
    """The role classes: roles that hold identical copies of state. A role without a twin is a class of its own."""
    twins = {each.role: each.twins or (each.role,) for each in observations}
    return sorted({tuple(sorted({role, *twins[role]})) for role in twins})


def machines_of(observations: Iterable[Observation]) -> list[tuple[int, ...]]:
    """The roles of each machine of an undisturbed run."""
    found: dict[str, set[int]] = {}
    for each in observations:
        found.setdefault(each.machine, set()).add(each.role)
    return sorted(tuple(sorted(roles)) for roles in found.values())


def primary_of(observations: Iterable[Observation]) -> int | None:
    """The primary role of an undisturbed run."""
    return next((each.role for each in observations if each.primary), None)


def plan(
    classes: Sequence[tuple[int, ...]], machines: Sequence[tuple[int, ...]], primary: int | None
) -> list[Disturbance]:
    """For every role class a planned replacement and the death of a machine, of as few machines as possible; and both
    for the machine with the primary role.

    If there is a choice, the machine with the primary role is replaced first and dies last.
    """
    number = {role: index for index, roles in enumerate(classes) for role in roles}
    main = [roles for roles in machines if primary in roles]
    others = [roles for roles in machines if primary not in roles]
    found = []
    for kind in WORDS:
        chosen = _cover([*main, *others[::-1]] if kind == "replace" else [*others, *main], number)
        for roles in dict.fromkeys([*chosen, *main]):
            left = {role for other in machines if other != roles for role in other}
            orphans = kind == "kill" and any(not left & set(classes[number[role]]) for role in roles)
            tested = tuple(sorted({number[role] for role in roles}))
            found.append(Disturbance(kind, roles[0], roles, tested, orphans))
    return found


def _cover(machines: Sequence[tuple[int, ...]], number: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Machines that have roles of all classes, chosen greedily: the one with the most missing classes comes first."""
    missing = set(number.values())
    found = []
    while missing:
        best = max(machines, key=lambda roles: len({number[role] for role in roles} & missing))
        found.append(best)
        missing -= {number[role] for role in best}
    return found


def rounds(wanted: Sequence[Disturbance], steps: int) -> list[tuple[Disturbance, ...]]:
    """Disturbances for each run: as many as `steps` steps have room for, in runs of about the same size."""
    room = max(1, (steps - FIRST) // BETWEEN)
    count = -(-len(wanted) // room)
    return [tuple(wanted[number::count]) for number in range(count)]


def held_at(number: int) -> int:
    """The step before which training is to be held for disturbance `number`, counted from 0."""
    return FIRST + BETWEEN * number


def left_over(wanted: Sequence[Disturbance], run: Run) -> list[Disturbance]:
    """Disturbances that a run had no steps left for, because earlier ones took more steps than usual."""
    return list(wanted[len(run.disturbances) :]) if run.whole and run.disturbances else []


def settled(observations: Iterable[Observation], disturbances: Sequence[Disturbance]) -> list[Observation]:
    """The observations, each with the number of disturbances that could have had an effect on it.

    Workers that are held know of a disturbance that is about to happen; it has no effect on their state yet.
    `observations` has those of each worker in their order, `disturbances` those that have begun.
    """
    floor: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    found = []
    for each in observations:
        who = (each.uid, each.role)
        if who not in last or each.step <= last[who]:  # a joiner, or a step that is repeated
            floor[who] = each.disturbances
        last[who] = each.step
        past = sum(disturbance.step < each.step for disturbance in disturbances)
        found.append(msgspec.structs.replace(each, disturbances=max(floor[who], min(each.disturbances, past))))
    return found


def described(disturbance: Disturbance) -> str:
    done = "replaced as planned" if disturbance.kind == "replace" else "killed"
    return f"the machine with {named('role', disturbance.roles)} is {done}"
