"""Every comparison that the results allow, and of them those in which Understudy is not ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from understudy_bench.folder import Results

OURS = ("understudy", "masking", "masking, standby", "recovery")
"""What the runtime is called in the rows; who has a technique switched off is another contestant."""
EVEN = 0.02
"""Medians that differ by no more than this part are even: repeated runs of one benchmark differ by as much."""


@dataclass(frozen=True)
class Compared:
    bench: str
    what: str
    ours: str
    """Which of ours; and whom it is compared with."""
    other: str
    our_value: float
    other_value: float
    unit: str
    more_is_better: bool = False

    @property
    def ahead(self) -> bool:
        return not self.even and (self.our_value > self.other_value) == self.more_is_better

    @property
    def even(self) -> bool:
        return abs(self.our_value - self.other_value) <= EVEN * abs(self.other_value)


def compared(results: Results) -> list[Compared]:
    return [
        *_replacements(results),
        *_deaths(results),
        *_masked(results),
        *_overhead(results),
        *_collectives(results),
        *_setup(results),
        *_rebalanced(results),
        *_slow(results),
    ]


def behind(results: Results) -> list[Compared]:
    """Those in which another one is better, or just as good."""
    return [each for each in compared(results) if not each.ahead]


def standing(results: Results) -> str:
    """In how many of all comparisons Understudy is ahead, even, behind."""
    worse = behind(results)
    even = sum(each.even for each in worse)
    ahead = len(compared(results)) - len(worse)
    return f"ahead in {ahead}, even (within {100 * EVEN:.0f} %) in {even}, behind in {len(worse) - even}"


def lost_work(row: Mapping[str, Any]) -> float | None:
    """Steps that were done for nothing: begun again, or dropped."""
    repeated, dropped = row.get("repeated"), row.get("dropped")
    return None if repeated is None or dropped is None else float(repeated) + float(dropped)


def _replacements(results: Results) -> Iterator[Compared]:
    rows = {row["system"]: row for row in results.totals("replace")}
    for row in rows.values():
        for column, what in (
            ("lost_s", "a machine is replaced: training loses"),
            ("ready_s", "a machine is replaced: from the request to the newcomer's first step"),
        ):
            yield from _pair("replace", what, rows.get("understudy"), row, column)


def _deaths(results: Results) -> Iterator[Compared]:
    for loss in ("worker", "machine"):
        rows = {row["system"]: row for row in results.totals("failure", loss=loss)}
        for row in rows.values():
            for column, what in (
                ("stall_s", "the survivors stall"),
                ("full_strength_s", "time to full strength"),
                ("new_step_s", "time to the first new step"),
                ("step_s", "a usual step"),
            ):
                yield from _pair("failure", f"a {loss} dies: {what}", rows.get("understudy"), row, column)
            yield from _work("failure", f"a {loss} dies: steps done for nothing", rows.get("understudy"), row)


def _masked(results: Results) -> Iterator[Compared]:
    rows = {row["system"]: row for row in results.totals("mask")}
    refilled = rows.get("masking, standby", rows.get("recovery"))  # the benchmark holds masking's joiner back
    for row in rows.values():
        what = "one of four replicas dies:"
        yield from _pair("mask", f"{what} the survivors stall", rows.get("masking"), row, "stall_s")
        yield from _pair("mask", f"{what} time to full strength", refilled, row, "full_strength_s")
        yield from _pair(
            "mask", f"{what} speed without it", rows.get("masking"), row, "degraded", "of usual", more=True
        )
        yield from _pair("mask", f"{what} a usual step", rows.get("masking"), row, "step_s")
        yield from _work("mask", f"{what} steps done for nothing", rows.get("masking"), row)


def _overhead(results: Results) -> Iterator[Compared]:
    for row in results.rows("overhead", start="all"):
        what = f"a usual step, {row['workers']} workers"
        yield Compared("overhead", what, "understudy", "plain DDP", row["understudy_ms"], row["plain_ms"], "ms")


def _collectives(results: Results) -> Iterator[Compared]:
    for row in results.rows("collectives"):
        what = f"{row['op']}, {row['bytes']:,} bytes, {row['workers']} workers, {row['path']}"
        yield Compared("collectives", what, "understudy", "gloo", row["understudy_us"], row["gloo_us"], "µs")


def _setup(results: Results) -> Iterator[Compared]:
    for row in results.rows("setup"):
        what = f"replacing one machine of {row['roles']:,} roles:"
        switch, phase, rebuild = row["switch_all_ms"], row["phase_one_ms"], row["rebuild_ms"]
        yield Compared("setup", f"{what} while training waits", "switch", "every link anew", switch, rebuild, "ms")
        yield Compared("setup", f"{what} in all", "both phases", "every link anew", phase + switch, rebuild, "ms")


def _rebalanced(results: Results) -> Iterator[Compared]:
    ours = {row["spacing"]: row for row in results.rows("rebalance", part="spacing", system="understudy")}
    for row in results.rows("rebalance", part="spacing", system="restart"):
        mine = ours.get(row["spacing"])
        if mine is not None:
            what = f"a machine is replaced every {row['spacing']} steps: speed that is left"
            yield Compared("rebalance", what, "understudy", "restart", mine["wall"], row["wall"], "of usual", True)


def _slow(results: Results) -> Iterator[Compared]:
    speeds = {row["who"]: row["efficiency"] for row in results.rows("straggler", part="an hour")}
    ours = speeds.pop("understudy", None)
    for other, speed in speeds.items() if ours is not None else ():
        what = "a worker becomes slow: speed of the hour in which it does"
        yield Compared("straggler", what, "understudy", other, ours, speed, "of usual", True)


def _pair(
    bench: str,
    what: str,
    ours: Mapping[str, Any] | None,
    other: Mapping[str, Any],
    column: str,
    unit: str = "s",
    more: bool = False,
) -> Iterator[Compared]:
    """With somebody else's value, where both have one."""
    if ours is None or other["system"] in OURS or ours.get(column) is None or other.get(column) is None:
        return
    yield Compared(bench, what, ours["system"], other["system"], ours[column], other[column], unit, more)


def _work(bench: str, what: str, ours: Mapping[str, Any] | None, other: Mapping[str, Any]) -> Iterator[Compared]:
    mine, theirs = None if ours is None else lost_work(ours), lost_work(other)
    if ours is not None and other["system"] not in OURS and mine is not None and theirs is not None:
        yield Compared(bench, what, ours["system"], other["system"], mine, theirs, "steps")
