"""The dip: how fast training is around an interruption, as a share of its speed before.

A step's work is spread evenly over the time since the end of the step before it, so that the missing area is the
missing work. Work that is repeated counts only the first time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from understudy_bench.harness.bench import median
from understudy_bench.harness.marks import Mark

BEFORE_S, AFTER_S, EVERY_S = 3.0, 15.0, 0.1
CELLS = round((BEFORE_S + AFTER_S) / EVERY_S)
QUIET = 12
"""Steps before an interruption that give the usual speed."""

Stretch = tuple[float, float, float]
"""Begin and end in seconds from the interruption, and the speed between them."""
Curve = list[float | None]
"""The speed in each cell of 0.1 s; None: not measured."""


def sampled(stretches: Iterable[Stretch], since: float, until: float) -> Curve:
    """The mean of the stretches' summed speed in each cell that lies between `since` and `until`."""
    found = [0.0] * CELLS
    for start, end, speed in stretches:
        first, last = max(0, int((start + BEFORE_S) / EVERY_S)), min(CELLS - 1, int((end + BEFORE_S) / EVERY_S))
        for cell in range(first, last + 1):
            left = cell * EVERY_S - BEFORE_S
            found[cell] += speed * max(0.0, min(end, left + EVERY_S) - max(start, left)) / EVERY_S
    edges = [cell * EVERY_S - BEFORE_S for cell in range(CELLS)]
    seen = [since <= left + 1e-9 and left + EVERY_S <= until + 1e-9 for left in edges]
    return [value if known else None for value, known in zip(found, seen, strict=True)]


def together(curves: Sequence[Curve]) -> dict[str, Any]:
    """The mean of several curves, ready for a row; None in cells that fewer than half of them have."""
    found: Curve = []
    for values in zip(*curves, strict=True):
        known = [value for value in values if value is not None]
        found.append(round(sum(known) / len(known), 3) if 2 * len(known) >= len(values) and known else None)
    return {"from_s": -BEFORE_S, "every_s": EVERY_S, "share": found}


def around_row(system: str, kind: Mapping[str, object], curves: Sequence[Curve]) -> dict[str, Any]:
    """A row with the mean dip of a system's interruptions of one kind."""
    return {"part": "around", "system": system, **kind, "interruptions": len(curves), "series": together(curves)}


def of_marks(marks: Sequence[Mark], at: float, until: float, *, counted_alike: bool = True) -> Curve:
    """The curve around a death at the time `at`.

    `counted_alike`: a step has the same number in every process, so that a repeated one is recognised. torchft's
    processes number their batches independently and never repeat one.
    """
    stretches: list[Stretch] = []
    usual = 0.0
    known: set[tuple[int, int]] = set()
    ends = sorted((mark for mark in marks if mark.kind == "end" and mark.at <= until), key=lambda mark: mark.at)
    news = {id(mark): _new(mark, known, counted_alike) for mark in ends}
    for place in sorted({mark.place for mark in ends}):
        mine = [mark for mark in ends if mark.place == place]
        for before, mark in pairwise(mine):
            start = before.at if before.pid == mark.pid else _begun(marks, mark)
            if mark.at > start:
                stretches.append((start - at, mark.at - at, news[id(mark)] / (mark.at - start)))
        quiet = [mark for mark in mine if mark.at <= at][-QUIET - 1 :]
        if len(quiet) > 1:
            usual += median(len(mark.shards) for mark in quiet) / median(b.at - a.at for a, b in pairwise(quiet))
    if not usual:
        return [None] * CELLS
    shares = [(start, end, speed / usual) for start, end, speed in stretches]
    places = {mark.place for mark in ends}
    last = min(max(mark.at for mark in ends if mark.place == place) for place in places)
    first = max(min(mark.at for mark in ends if mark.place == place) for place in places)
    return sampled(shares, first - at, last - at)


def _new(mark: Mark, known: set[tuple[int, int]], counted_alike: bool) -> int:
    """The number of the step's micro-shards that were computed for the first time."""
    work = {(mark.step, number) for number in mark.shards}
    fresh = work - known if counted_alike else work
    known |= work
    return len(fresh)


def _begun(marks: Sequence[Mark], end: Mark) -> float:
    """When the process that ended a step began it."""
    begins = [m.at for m in marks if m.kind == "begin" and m.pid == end.pid and m.step == end.step and m.at <= end.at]
    return max(begins, default=end.at)


def of_ends(ends: Sequence[float], at: float, usual_s: float) -> Curve:
    """The curve around an interruption at the time `at`, from the times at which steps ended."""
    shares = [(start - at, end - at, usual_s / (end - start)) for start, end in pairwise(ends)]
    return sampled(shares, ends[0] - at, ends[-1] - at)
