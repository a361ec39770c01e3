"""The cost of a death, from the marks that the training scripts wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from understudy_bench.harness.bench import median
from understudy_bench.harness.dip import QUIET
from understudy_bench.harness.marks import Mark, gaps

ALONE = 20
"""Steps without the dead worker, at most, that give the survivors' speed; at least half of them are needed."""
NEVER = 25
"""If survivors complete so many steps after full strength and none is new, all work before the death is forgotten."""


@dataclass(frozen=True)
class Outage:
    """What the survivors observed; of several survivors, the one that stalled longest. Seconds from the death."""

    step_s: float
    """An undisturbed step, before the death."""
    stall_s: float
    """To the next completed step, less an undisturbed one. Negative: the worker died late in a step that the
    survivors completed."""
    full_strength_s: float
    """To the end of the first step in which the dead worker's place takes part again."""
    new_step_s: float | None
    """To the end of the first step that had not been completed before; None: all steps are repeated."""
    repeated: int
    """Steps that were begun again, the one in flight included."""
    dropped: int
    """Steps without effect: no update came of their data."""
    restarted: bool
    """Whether the survivors' processes were restarted."""


def outage(marks: Sequence[Mark], place: int, at: float) -> Outage | None:
    """The cost of the death of the worker at `place` at the time `at`; None: not known yet."""
    back = _back(marks, place, at)
    if back is None:
        return None
    seen = [_seen([mark for mark in marks if mark.place == other], at, back) for other in _others(marks, place)]
    known = [each for each in seen if each is not None]
    return max(known, key=lambda each: each.stall_s) if len(known) == len(seen) else None


def _back(marks: Sequence[Mark], place: int, at: float) -> float | None:
    """When a new process of the dead worker's place ended a step in which all places took part."""
    dead = max((mark for mark in marks if mark.place == place and mark.at <= at), key=lambda mark: mark.at).pid
    ends = (mark for mark in marks if mark.place == place and mark.at > at and mark.kind == "end")
    return next((mark.at for mark in ends if mark.pid != dead and mark.full), None)


def _others(marks: Sequence[Mark], place: int) -> list[int]:
    return sorted({mark.place for mark in marks} - {place})


def _ends(marks: Sequence[Mark], place: int, at: float) -> tuple[list[Mark], list[Mark]]:
    """The ends of a place's steps: up to the time `at`, and after it."""
    ends = [mark for mark in marks if mark.place == place and mark.kind == "end"]
    before = [mark for mark in ends if mark.at <= at]
    return before, ends[len(before) :]


def _late(marks: Sequence[Mark], at: float) -> int:
    """The index, among a survivor's steps after the death, of the step that the death delayed: 0 or 1.

    `marks` are one survivor's, ordered by time. A step that needs nothing more from the dead worker ends undisturbed;
    then the next step is the delayed one. If the survivor computed more micro-shards than before, it stood in for the
    dead worker. Otherwise the delayed step is the one that was begun more than once; if there is none, the longer one.
    """
    before, after = _ends(marks, marks[0].place, at)
    around = [before[-1], *after[:2]]
    if len(around[1].shards) > len(around[0].shards):
        return 0
    places = [marks.index(end) for end in around]
    begun = [sum(mark.kind == "begin" for mark in marks[one:other]) for one, other in pairwise(places)]
    if max(begun) > 1:
        return int(begun[0] <= 1)
    first, second = gaps(end.at for end in around)
    return int(second > first)


def _seen(marks: Sequence[Mark], at: float, back: float) -> Outage | None:
    """The outage as one survivor observed it, from its marks ordered by time."""
    before, after = _ends(marks, marks[0].place, at)
    if len(after) < 2:
        return None
    late = _late(marks, at)
    step_s = median(gaps(mark.at for mark in before[-QUIET - 1 :]))
    pid = before[-1].pid  # an earlier process may have numbered its steps otherwise
    known = max(mark.step for mark in [*before, *after[:late]] if mark.pid == pid)
    new = next((mark.at for mark in after[late:] if mark.step > known), None)
    if new is None and sum(mark.at > back for mark in after) < NEVER:
        return None
    over = back if new is None else max(back, new)
    begun = {mark.step for mark in marks if mark.kind == "begin" and mark.at <= at and mark.pid == pid}
    since = [mark for mark in marks if at < mark.at <= over]
    return Outage(
        step_s=step_s,
        stall_s=after[late].at - at - step_s,
        full_strength_s=back - at,
        new_step_s=None if new is None else new - at,
        repeated=sum(mark.kind == "begin" and mark.step in begun for mark in since),
        dropped=sum(mark.kind == "drop" for mark in since),
        restarted=after[late].pid != pid,
    )


def degraded(marks: Sequence[Mark], place: int, at: float) -> float | None:
    """Micro-shards per second without the worker at `place`, as a share of those before its death.

    None: the survivors completed too few steps without it.
    """
    full, alone = [], []
    back = _back(marks, place, at)
    for each in sorted({mark.place for mark in marks}):
        mine = [mark for mark in marks if mark.place == each]
        before, after = _ends(mine, each, at)
        full.append(before[-QUIET - 1 :])
        if each != place:
            if len(after) < 2:
                return None
            since = after[_late(mine, at) :]
            steps = [mark for mark in since if mark.pid == before[-1].pid and (back is None or mark.at < back)]
            alone.append(steps[: ALONE + 1])
    if min(map(len, alone)) <= ALONE // 2:
        return None
    return _speed(alone) / _speed(full)


def _speed(places: Sequence[Sequence[Mark]]) -> float:
    """Micro-shards per second of all places together, from the ends of each place's steps."""
    computed = sum(median(len(mark.shards) for mark in ends[1:]) for ends in places)
    return computed / median(median(gaps(mark.at for mark in ends)) for ends in places)


def recomputed(marks: Sequence[Mark], place: int, at: float) -> int:
    """Micro-shards that one survivor computed after another survivor had, in the steps around the death.

    A survivor that was restarted itself has no mark of its last step.
    """
    found: list[tuple[int, int]] = []
    for other in _others(marks, place):
        before, after = _ends(marks, other, at)
        known = [mark for mark in before[-QUIET:] if mark.pid == before[-1].pid]
        found += [(mark.step, number) for mark in [*known, *after[:QUIET]] for number in mark.shards]
    return len(found) - len(set(found))
