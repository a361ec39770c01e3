"""Results as charts. A chart without rows is None or left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from understudy.planning.report.chart import (
    BarChart,
    BarGroup,
    Chart,
    ChartBar,
    ChartLine,
    ChartStack,
    LineChart,
    StackChart,
)
from understudy_bench.harness.bench import median
from understudy_bench.report.folder import Results

Row = Mapping[str, Any]

OFF = ("no delta", "no overlap", "no standby", "no rehearsal")
"""The runtime with one technique switched off."""
MASKING = "masking"


def downtime(results: Results) -> BarChart | None:
    """The cost of each kind of interruption for each contestant."""
    groups = [
        _group("a machine is replaced", results.totals("replace"), "lost", skipped=OFF),
        _group("a worker dies", results.totals("failure", loss="worker"), "stall", _absent(results, "failure")),
        _group("a machine dies", results.totals("failure", loss="machine"), "stall", _absent(results, "failure")),
        _group("one of four replicas dies", results.totals("mask"), "stall", _absent(results, "mask")),
    ]
    found = tuple(group for group in groups if group.bars)
    return BarChart("seconds that training stands still, less a usual step", "s", found) if found else None


def switched_off(results: Results) -> BarChart | None:
    """The value of each technique in a planned replacement."""
    rows = [row for row in results.totals("replace") if row["system"] in ("understudy", *OFF, "naive")]
    lost = _group("training loses", rows, "lost")
    ready = [ChartBar(row["system"], row["ready_s"]) for row in rows if row.get("ready_s") is not None]
    if not any(row["system"] in OFF for row in rows):
        return None
    groups = (lost, BarGroup("from the request to the joiner's first step", tuple(ready)))
    return BarChart("seconds", "s", tuple(group for group in groups if group.bars))


def dips(results: Results) -> dict[str, LineChart]:
    """Words for an interruption → the throughput around it."""
    found = {}
    for words, bench, where, mark in (
        ("A machine is replaced by plan", "replace", {}, "the last step before"),
        ("A worker is killed", "failure", {"loss": "worker"}, "kill -9"),
        ("A machine is killed", "failure", {"loss": "machine"}, "kill -9"),
        ("One of four replicas is killed", "mask", {}, "kill -9"),
    ):
        rows = [row for row in results.rows(bench, part="around", **where) if row["system"] not in OFF]
        lines = tuple(line for line in map(_dip, rows) if line.xs)
        if lines:
            found[words] = LineChart("seconds", "throughput, share of usual", lines, mark=mark)
    return found


def phases(results: Results) -> StackChart | None:
    """The median time of each phase of a planned replacement."""
    stacks = []
    for total in results.totals("replace"):
        rows = [row["phases"] for row in results.rows("replace", system=total["system"]) if row.get("phases")]
        names = list(dict.fromkeys(name for phases in rows for name in phases))
        parts = tuple((name, median(phases.get(name, 0.0) for phases in rows)) for name in names)
        if parts:
            stacks.append(ChartStack(total["system"], parts))
    return (
        StackChart("seconds of each phase; only some of them keep training waiting", tuple(stacks)) if stacks else None
    )


def memory(results: Results) -> LineChart | None:
    """The memory of each process over time, in the first replacement."""
    rows = [row for row in results.rows("memory", part="a replacement") if isinstance(row.get("curve"), Mapping)]
    first = [row for row in rows if row.get("round") == rows[0].get("round")]
    lines: list[ChartLine] = []
    found = Counter(row["worker"] for row in first)
    drawn = Counter[str]()
    for row in first:
        curve, worker = row["curve"], row["worker"]
        drawn[worker] += 1
        name = f"{worker} {drawn[worker]}" if found[worker] > 1 else worker
        lines.append(ChartLine(name, tuple(curve["seconds"]), tuple(size / 1e6 for size in curve["bytes"])))
    return LineChart("seconds", "megabytes", tuple(lines), mark="the request") if lines else None


def rebalancing(results: Results) -> LineChart | None:
    """The remaining speed if a machine is replaced every so many steps."""
    lines = []
    for system, column, words in (
        ("understudy", "replacing", "understudy"),
        ("understudy", "wall", "understudy, with joiners on the same cores"),
        ("restart", "wall", "restart"),
    ):
        rows = [row for row in results.rows("rebalance", part="spacing", system=system) if row.get(column)]
        rows.sort(key=lambda row: float(row["made"]))
        if rows:
            xs, ys = (tuple(float(row[name]) for row in rows) for name in ("made", column))
            lines.append(ChartLine(words, xs, ys, dashed=(system, column) == ("understudy", "wall")))
    return LineChart("steps between two replacements", "share of undisturbed speed", tuple(lines)) if lines else None


def control(results: Results) -> LineChart | None:
    """The controller's work for a change, against the number of machines."""
    lines = []
    for what in dict.fromkeys(str(row["what"]) for row in results.rows("scale", part="changes")):
        rows = sorted(results.rows("scale", part="changes", what=what), key=lambda row: int(row["machines"]))
        xs, ys = tuple(float(row["machines"]) for row in rows), tuple(float(row["cpu_s"]) for row in rows)
        lines.append(ChartLine(what, xs, ys))
    return LineChart("machines", "processor seconds of the controller", tuple(lines), log=True) if lines else None


def collectives(results: Results) -> dict[str, LineChart]:
    """Layout → all-reduce against Gloo."""
    found = {}
    layouts = dict.fromkeys((row["path"], row["workers"]) for row in results.rows("collectives", op="all_reduce"))
    for path, workers in layouts:
        rows = results.rows("collectives", op="all_reduce", path=path, workers=workers)
        lines = tuple(
            ChartLine(name, tuple(float(row["bytes"]) for row in rows), tuple(row[f"{name}_us"] for row in rows))
            for name in ("understudy", "gloo")
        )
        where = "one machine, shared memory" if path == "arena" else "a machine each, TCP"
        found[f"all-reduce, {workers} workers, {where}"] = LineChart("bytes", "microseconds", lines, log=True)
    return found


def setup(results: Results) -> LineChart | None:
    """The cost of replacing one machine, against the size of the group."""
    rows = results.rows("setup")
    if not rows:
        return None
    sizes = tuple(float(row["roles"]) for row in rows)
    names = {
        "rebuild_ms": "opening all links",
        "phase_one_ms": "phase one, while training goes on",
        "switch_all_ms": "the switch, all roles together",
    }
    lines = (ChartLine(words, sizes, tuple(row[column] for row in rows)) for column, words in names.items())
    each = ChartLine("the switch, one role", sizes, tuple(row["switch_us"] / 1e3 for row in rows), dashed=True)
    return LineChart("roles", "milliseconds", (*lines, each), log=True)


def pictured(results: Results) -> dict[str, tuple[str, Chart]]:
    """The charts of the README: file name → title and chart."""
    found: dict[str, tuple[str, Chart]] = {}
    bars = downtime(results)
    if bars is not None:
        found["downtime"] = ("What an interruption costs", bars)
    dip = dips(results)
    for words in ("A worker is killed", "A machine is replaced by plan"):
        if words in dip:
            found["dip"] = (f"{words}: throughput around it", dip[words])
            break
    held = memory(results)
    if held is not None:
        found["memory"] = ("Memory around a replacement", held)
    return found


def _group(
    label: str, rows: Iterable[Row], column: str, absent: Sequence[ChartBar] = (), skipped: Sequence[str] = ()
) -> BarGroup:
    bars = []
    for row in rows:
        if row["system"] not in skipped and row.get(f"{column}_s") is not None:
            low, high = row.get(f"{column}_spread") or (None, None)
            bars.append(ChartBar(row["system"], row[f"{column}_s"], low, high))
    return BarGroup(label, (*bars, *absent) if bars else ())


def _absent(results: Results, bench: str) -> list[ChartBar]:
    """Empty bars for contestants that did not take part."""
    return [ChartBar(system, None, note=why) for system, why in absent(results, bench)]


def absent(results: Results, bench: str) -> list[tuple[str, str]]:
    """The contestants that did not take part in a benchmark, and why."""
    return [(str(row["system"]), str(row["absent"])) for row in results.rows(bench) if row.get("absent")]


def _dip(row: Row) -> ChartLine:
    series = row["series"]
    known = [(number, share) for number, share in enumerate(series["share"]) if share is not None]
    xs = tuple(round(series["from_s"] + (number + 0.5) * series["every_s"], 3) for number, _ in known)
    return ChartLine(row["system"], xs, tuple(share for _, share in known))
