"""All comparisons that the results allow, and those in which Understudy is not ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from understudy_bench.report.folder import Results

OURS = ("understudy", "masking", "masking, standby", "recovery")
"""The runtime's names in the rows; the runtime with a technique switched off is another contestant."""
EVEN = 0.02
"""Medians that differ by less than this share are even: repeated runs of one benchmark differ as much."""


@dataclass(frozen=True)
class Comparison:
    """One measure of Understudy beside that of another system."""

    bench: str
    what: str
    ours: str
    """The runtime's name in the rows."""
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


def compared(results: Results) -> list[Comparison]:
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


def behind(results: Results) -> list[Comparison]:
    """The comparisons in which another system is better or even."""
    return [each for each in compared(results) if not each.ahead]


def standing(results: Results) -> str:
    """The numbers of comparisons in which Understudy is ahead, even and behind, in words."""
    worse = behind(results)
    even = sum(each.even for each in worse)
    ahead = len(compared(results)) - len(worse)
    return f"ahead in {ahead}, even (within {100 * EVEN:.0f} %) in {even}, behind in {len(worse) - even}"


def lost_work(row: Mapping[str, Any]) -> float | None:
    """Steps without effect: begun again, or dropped."""
    repeated, dropped = row.get("repeated"), row.get("dropped")
    return None if repeated is None or dropped is None else float(repeated) + float(dropped)


def _replacements(results: Results) -> Iterator[Comparison]:
    rows = {row["system"]: row for row in results.totals("replace")}
    for row in rows.values():
        for column, what in (
            ("lost_s", "a machine is replaced: training loses"),
            ("ready_s", "a machine is replaced: from the request to the joiner's first step"),
        ):
            yield from _pair("replace", what, rows.get("understudy"), row, column)


def _deaths(results: Results) -> Iterator[Comparison]:
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
            yield from _work("failure", f"a {loss} dies: steps without effect", rows.get("understudy"), row)


def _masked(results: Results) -> Iterator[Comparison]:
    rows = {row["system"]: row for row in results.totals("mask")}
    refilled = rows.get("masking, standby", rows.get("recovery"))  # the benchmark itself delays the joiner of "masking"
    for row in rows.values():
        what = "one of four replicas dies:"
        yield from _pair("mask", f"{what} the survivors stall", rows.get("masking"), row, "stall_s")
        yield from _pair("mask", f"{what} time to full strength", refilled, row, "full_strength_s")
        yield from _pair(
            "mask", f"{what} speed without it", rows.get("masking"), row, "degraded", "of usual", more=True
        )
        yield from _pair("mask", f"{what} a usual step", rows.get("masking"), row, "step_s")
        yield from _work("mask", f"{what} steps without effect", rows.get("masking"), row)


def _overhead(results: Results) -> Iterator[Comparison]:
    for row in results.rows("overhead", start="all"):
        yield Comparison(
            bench="overhead",
            what=f"a usual step, {row['workers']} workers",
            ours="understudy",
            other="plain DDP",
            our_value=row["understudy_ms"],
            other_value=row["plain_ms"],
            unit="ms",
        )


def _collectives(results: Results) -> Iterator[Comparison]:
    for row in results.rows("collectives"):
        if row["op"] == "interrupt":
            continue
        yield Comparison(
            bench="collectives",
            what=f"{row['op']}, {row['bytes']:,} bytes, {row['workers']} workers, {row['path']}",
            ours="understudy",
            other="gloo",
            our_value=row["understudy_us"],
            other_value=row["gloo_us"],
            unit="µs",
        )


def _setup(results: Results) -> Iterator[Comparison]:
    for row in results.rows("setup"):
        switch, phase, rebuild = row["switch_all_ms"], row["phase_one_ms"], row["rebuild_ms"]
        for words, ours, value in (
            ("while training waits", "switch", switch),
            ("in all", "both phases", phase + switch),
        ):
            yield Comparison(
                bench="setup",
                what=f"replacing one machine of {row['roles']:,} roles: {words}",
                ours=ours,
                other="all links opened",
                our_value=value,
                other_value=rebuild,
                unit="ms",
            )


def _rebalanced(results: Results) -> Iterator[Comparison]:
    ours = {row["spacing"]: row for row in results.rows("rebalance", part="spacing", system="understudy")}
    for row in results.rows("rebalance", part="spacing", system="restart"):
        mine = ours.get(row["spacing"])
        if mine is not None:
            yield Comparison(
                bench="rebalance",
                what=f"a machine is replaced every {row['spacing']} steps: remaining speed",
                ours="understudy",
                other="restart",
                our_value=mine["wall"],
                other_value=row["wall"],
                unit="of usual",
                more_is_better=True,
            )


def _slow(results: Results) -> Iterator[Comparison]:
    speeds = {row["system"]: row["efficiency"] for row in results.rows("straggler", part="an hour")}
    ours = speeds.pop("understudy", None)
    for other, speed in speeds.items() if ours is not None else ():
        yield Comparison(
            bench="straggler",
            what="a worker becomes slow: speed of the hour in which it does",
            ours="understudy",
            other=other,
            our_value=ours,
            other_value=speed,
            unit="of usual",
            more_is_better=True,
        )


def _pair(
    bench: str,
    what: str,
    ours: Mapping[str, Any] | None,
    other: Mapping[str, Any],
    column: str,
    unit: str = "s",
    more: bool = False,
) -> Iterator[Comparison]:
    """Compare a column with another system's, if both have a value."""
    if ours is None or other["system"] in OURS or ours.get(column) is None or other.get(column) is None:
        return
    yield Comparison(
        bench=bench,
        what=what,
        ours=ours["system"],
        other=other["system"],
        our_value=ours[column],
        other_value=other[column],
        unit=unit,
        more_is_better=more,
    )


def _work(bench: str, what: str, ours: Mapping[str, Any] | None, other: Mapping[str, Any]) -> Iterator[Comparison]:
    """Compare the steps without effect, if both systems have them."""
    mine, theirs = None if ours is None else lost_work(ours), lost_work(other)
    if ours is not None and other["system"] not in OURS and mine is not None and theirs is not None:
        yield Comparison(
            bench=bench,
            what=what,
            ours=ours["system"],
            other=other["system"],
            our_value=mine,
            other_value=theirs,
            unit="steps",
        )
