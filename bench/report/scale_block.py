"""The results of `bench scale` by size, and an extrapolation to a cluster of 100,000 GPUs.

The model: the controller's work grows from the largest measured size on with the measured power of the size, at least
in proportion. The rate of failures and the durations of a step and a hand-over are those that `understudy plan` assumes
for a cluster of that size. So the extrapolation shows what would dominate there; it is not a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from understudy.agent.agent import BEAT_S
from understudy.planning.inputs.assume import PlanRequest, assume
from understudy.protocol.durations import readable
from understudy_bench.report.figures import seconds, source, table
from understudy_bench.report.folder import Results
from understudy_bench.scale import FROM, slope

ASK = PlanRequest(gpus=100_000, params=405e9)
COMMAND = "understudy plan --gpus 100000 --model-params 405B"

Row = Mapping[str, Any]
Points = Mapping[int, float]


class Measure(NamedTuple):
    """A column of the rows, in words."""

    words: str
    what: str
    """A kind of change; empty: heartbeats only."""
    column: str
    format: str


MEASURES = (
    Measure("a machine fails: until the last one has the order to continue", "failure", "decided_s", "s"),
    Measure("… the controller's processor time", "failure", "cpu_s", "s"),
    Measure("… messages of each machine", "failure", "frames", ".1f"),
    Measure("… bytes of each machine", "failure", "bytes", ",.0f"),
    Measure("one is replaced by plan: until all are prepared", "planned", "armed_s", "s"),
    Measure("… the controller's processor time", "planned", "cpu_s", "s"),
    Measure("… messages of each machine", "planned", "frames", ".1f"),
    Measure("all machines register: until the first step", "formation", "seconds", "s"),
    Measure("the controller's memory, MB", "failure", "resident_mb", ".0f"),
    Measure("processor time of a heartbeat, µs", "", "cpu_us_per_beat", ".0f"),
)


def points(results: Results, what: str, column: str) -> dict[int, float]:
    """Number of machines → a column's value, from few to many."""
    rows = results.rows("scale", part="changes", what=what) if what else results.rows("scale", part="at rest")
    found = {int(row["machines"]): float(row[column]) for row in rows if row.get(column) is not None}
    return dict(sorted(found.items()))


def table_of(results: Results) -> str:
    """A table of the measurements, with the power of the number of machines with which each grows."""
    columns = {measure: points(results, measure.what, measure.column) for measure in MEASURES}
    sizes = sorted({size for column in columns.values() for size in column})
    if not sizes:
        return ""
    lines = [
        (measure.words, *(_said(column.get(size), measure.format) for size in sizes), _power(column))
        for measure, column in columns.items()
        if column
    ]
    titles = ("machines", *(f"{size:,}" for size in sizes), f"power, from {FROM}")
    text = "medians; all agents in one process, beside the controller's"
    return f"{table(titles, lines)}\n\n{source(results, 'scale', text)}"


def extrapolated(column: Points, machines: int) -> float:
    """A column's value for so many machines."""
    largest = max(column)
    return float(column[largest] * (machines / largest) ** max(1.0, _slope(column)))


class Delay(NamedTuple):
    """One part of the time for which training waits after a failure."""

    words: str
    seconds: float


def extrapolation(results: Results) -> str:
    """What a failure, and the heartbeats, would take with 100,000 GPUs."""
    decided, cpu = (points(results, "failure", name) for name in ("decided_s", "cpu_s"))
    if not decided or not cpu:
        return ""
    assumed = assume(ASK)
    machines, durations = assumed.setting.cluster.machines, assumed.setting.durations
    between = assumed.failures.mtbf / machines
    parts = [
        Delay("a standby takes over, as published for 1,024 GPUs", durations.detect + durations.hand_over),
        Delay("all machines report and get the order to continue, extrapolated", extrapolated(decided, machines)),
        Delay("half a step, which is repeated", assumed.setting.work.step / 2),
    ]
    rows = [(part.words, seconds(part.seconds), f"{100 * part.seconds / between:.2g} %") for part in ordered(parts)]
    titles = (f"one of {machines:,} machines fails, every {readable(between)}", "takes", "of the time between two")
    always = _always(results, machines)
    busy = f"The controller computes for {seconds(extrapolated(cpu, machines))} of it."
    text = f"`{COMMAND}` for the cluster, `understudy bench scale` for the controller. {busy}{always}"
    return f"{table(titles, rows)}\n\n{text}"


def ordered(parts: Sequence[Delay]) -> list[Delay]:
    """The longest first."""
    return sorted(parts, key=lambda part: -part.seconds)


def _always(results: Results, machines: int) -> str:
    """Sentences about the load of heartbeats, and the memory."""
    beats, held = points(results, "", "cpu_us_per_beat"), points(results, "failure", "resident_mb")
    found = ""
    if beats:
        rate = machines / BEAT_S
        cores = rate * beats[max(beats)] / 1e6
        found += f" {rate:,.0f} heartbeats a second would take {cores:.2g} of a core, of which one process has one."
    if held:
        found += f" It would hold {extrapolated(held, machines) / 1000:.1f} GB."
    return found


def _slope(column: Points) -> float:
    counted = {size: value for size, value in column.items() if size >= FROM}
    return slope(counted) if len(counted) > 1 else 1.0


def _power(column: Points) -> str:
    counted = [size for size in column if size >= FROM]
    return f"{_slope(column):.2f}" if len(counted) > 1 else ""


def _said(value: float | None, format: str) -> str:
    if value is None:
        return ""
    return seconds(value) if format == "s" else f"{value:{format}}"
