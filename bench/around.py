"""How fast training is around an interruption, as a share of what it was before: the dip.

A step's work is spread evenly over the time from the end of the step before, so that the area that is missing is the
work that is. Work that had been done before and is done again counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from understudy_bench.harness import median
from understudy_bench.outage import QUIET, Mark

BEFORE_S, AFTER_S, EVERY_S = 3.0, 15.0, 0.1
CELLS = round((BEFORE_S + AFTER_S) / EVERY_S)

Stretch = tuple[float, float, float]
"""From, to, and how fast; seconds count from the interruption."""
Curve = list[float | None]
"""How fast, in each cell of time; None where nobody has looked."""


def sampled(stretches: Iterable[Stretch], since: float, until: float) -> Curve:
    """The mean of what the stretches add up to in each cell of time, of those that were wholly seen."""
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
    """The mean of several interruptions, each as far as it was watched, at least half of them; ready for a row."""
    found: Curve = []
    for values in zip(*curves, strict=True):
        known = [value for value in values if value is not None]
        found.append(round(sum(known) / len(known), 3) if 2 * len(known) >= len(values) and known else None)
    return {"from_s": -BEFORE_S, "every_s": EVERY_S, "share": found}


def around_row(system: str, kind: Mapping[str, object], curves: Sequence[Curve]) -> dict[str, Any]:
    return {"part": "around", "system": system, **kind, "interruptions": len(curves), "series": together(curves)}


def of_marks(marks: Sequence[Mark], at: float, until: float, *, counted_alike: bool = True) -> Curve:
    """Around a death. `counted_alike`: a step has the same number whoever does it, and so it is known to be done again.
    torchft's processes count their batches for themselves, and never repeat one."""
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
    """How many of a step's micro-shards nobody had done before."""
    work = {(mark.step, number) for number in mark.shards}
    fresh = work - known if counted_alike else work
    known |= work
    return len(fresh)


def _begun(marks: Sequence[Mark], end: Mark) -> float:
    """When the process that ended a step began it."""
    begins = [m.at for m in marks if m.kind == "begin" and m.pid == end.pid and m.step == end.step and m.at <= end.at]
    return max(begins, default=end.at)


def of_ends(ends: Sequence[float], at: float, usual_s: float) -> Curve:
    """Around an interruption of a job whose steps ended then."""
    shares = [(start - at, end - at, usual_s / (end - start)) for start, end in pairwise(ends)]
    return sampled(shares, ends[0] - at, ends[-1] - at)
