"""What `bench scale` has seen, by size, and the same carried on to a cluster larger than any that was measured.

The model: what the controller does grows from the largest size that was measured with the power of the size with which
it was seen to grow, at least in proportion. How often machines fail, how long a step takes and how long a hand-over, is
what `understudy plan` assumes for a cluster of that size. So it says what would dominate there, not what would be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from understudy.agent.agent import BEAT_S
from understudy.planning import spans
from understudy.planning.inputs.assume import Ask, assume
from understudy_bench.figures import seconds, source, table
from understudy_bench.folder import Results
from understudy_bench.scale import FROM, slope

ASK = Ask(gpus=100_000, params=405e9)
COMMAND = "understudy plan --gpus 100000 --model-params 405B"

Row = Mapping[str, Any]
Points = Mapping[int, float]


class Seen(NamedTuple):
    """A column of the rows, in words."""

    words: str
    what: str
    """A change, or nothing: what was seen at rest."""
    column: str
    format: str


SEEN = (
    Seen("a machine fails: until the last one has been told to go on", "failure", "decided_s", "s"),
    Seen("… the controller's processor time", "failure", "cpu_s", "s"),
    Seen("… messages of each machine", "failure", "frames", ".1f"),
    Seen("… bytes of each machine", "failure", "bytes", ",.0f"),
    Seen("one is replaced by plan: until all are prepared", "planned", "armed_s", "s"),
    Seen("… the controller's processor time", "planned", "cpu_s", "s"),
    Seen("… messages of each machine", "planned", "frames", ".1f"),
    Seen("all machines come, until the first step", "formation", "seconds", "s"),
    Seen("the controller's memory, MB", "failure", "resident_mb", ".0f"),
    Seen("processor time for a sign of life, µs", "", "cpu_us_per_beat", ".0f"),
)


def points(results: Results, what: str, column: str) -> dict[int, float]:
    """By number of machines, from few to many."""
    rows = results.rows("scale", part="changes", what=what) if what else results.rows("scale", part="at rest")
    found = {int(row["machines"]): float(row[column]) for row in rows if row.get(column) is not None}
    return dict(sorted(found.items()))


def table_of(results: Results) -> str:
    """What was measured, and with which power of the machines it grows."""
    columns = {seen: points(results, seen.what, seen.column) for seen in SEEN}
    sizes = sorted({size for column in columns.values() for size in column})
    if not sizes:
        return ""
    lines = [
        (seen.words, *(_said(column.get(size), seen.format) for size in sizes), _power(column))
        for seen, column in columns.items()
        if column
    ]
    titles = ("machines", *(f"{size:,}" for size in sizes), f"power, from {FROM}")
    text = "medians; all agents in one process, beside the controller's"
    return f"{table(titles, lines)}\n\n{source(results, 'scale', text)}"


def carried(column: Points, machines: int) -> float:
    """What a column would be with so many machines."""
    largest = max(column)
    return float(column[largest] * (machines / largest) ** max(1.0, _slope(column)))


class Part(NamedTuple):
    """Something that keeps training waiting after a failure."""

    words: str
    seconds: float


def carried_on(results: Results) -> str:
    """What a failure, and a day without one, would take of 100,000 GPUs."""
    decided, cpu = (points(results, "failure", name) for name in ("decided_s", "cpu_s"))
    if not decided or not cpu:
        return ""
    assumed = assume(ASK)
    machines, durations = assumed.setting.cluster.machines, assumed.setting.durations
    between = assumed.failures.mtbf / machines
    parts = [
        Part("a standby takes over, as published for 1,024 GPUs", durations.detect + durations.hand_over),
        Part("all machines report and are told to go on, carried on", carried(decided, machines)),
        Part("half a step, which is repeated", assumed.setting.work.step / 2),
    ]
    rows = [(part.words, seconds(part.seconds), f"{100 * part.seconds / between:.2g} %") for part in ordered(parts)]
    titles = (f"one of {machines:,} machines fails, every {spans.said(between)}", "takes", "of the time between two")
    always = _always(results, machines)
    busy = f"The controller computes for {seconds(carried(cpu, machines))} of it."
    text = f"`{COMMAND}` for the cluster, `understudy bench scale` for the controller. {busy}{always}"
    return f"{table(titles, rows)}\n\n{text}"


def ordered(parts: Sequence[Part]) -> list[Part]:
    """What dominates comes first."""
    return sorted(parts, key=lambda part: -part.seconds)


def _always(results: Results, machines: int) -> str:
    """What happens all the time."""
    beats, held = points(results, "", "cpu_us_per_beat"), points(results, "failure", "resident_mb")
    found = ""
    if beats:
        rate = machines / BEAT_S
        cores = rate * beats[max(beats)] / 1e6
        found += f" {rate:,.0f} signs of life a second would take {cores:.2g} of a core, of which one process has one."
    if held:
        found += f" It would hold {carried(held, machines) / 1000:.1f} GB."
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
