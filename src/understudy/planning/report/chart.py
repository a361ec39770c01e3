"""Charts of measurements as plain data. `sheet` draws them with plotly, `pictures` with matplotlib."""

from __future__ import annotations

from itertools import cycle
from math import isfinite

import msgspec


class ChartBar(msgspec.Struct, frozen=True):
    """The value of one system under test. None: there is no value, and `note` says why."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def reach(self) -> tuple[float, float]:
        """Ends of the error bar; the value itself if they are not known."""
        value = 0.0 if self.value is None else self.value
        low, high = (value if end is None else end for end in (self.low, self.high))
        return min(low, value), max(high, value)


class BarGroup(msgspec.Struct, frozen=True):
    """Systems side by side under the same conditions."""

    label: str
    bars: tuple[ChartBar, ...]


class BarChart(msgspec.Struct, frozen=True, tag="bars"):
    """Groups of bars; a shorter bar is better."""

    axis: str
    unit: str
    groups: tuple[BarGroup, ...]


class ChartLine(msgspec.Struct, frozen=True):
    """One curve of a line chart."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    dashed: bool = False


class LineChart(msgspec.Struct, frozen=True, tag="lines"):
    """Curves over a common axis."""

    x: str
    y: str
    lines: tuple[ChartLine, ...]
    log: bool = False
    """Whether both axes are logarithmic."""
    mark: str = ""
    """Label of a vertical line at x = 0; empty: no line."""


class ChartStack(msgspec.Struct, frozen=True):
    """One bar that consists of parts."""

    label: str
    parts: tuple[tuple[str, float], ...]


class StackChart(msgspec.Struct, frozen=True, tag="stacks"):
    """Bars that consist of parts."""

    axis: str
    stacks: tuple[ChartStack, ...]


Chart = BarChart | LineChart | StackChart

COLOURS = {
    "understudy": "#12908e",
    "masking": "#12908e",
    "masking, standby": "#5cae8a",
    "recovery": "#9bbf5f",
    "naive": "#d99b3b",
    "torchft": "#8f6fc1",
    "torchrun": "#cf5f53",
    "restart": "#cf5f53",
    "gloo": "#4a7fc1",
    "plain": "#4a7fc1",
    "rehearse": "#8f8fd6",
    "first step": "#9aa0a8",
}
OTHERS = (
    *("#4a7fc1", "#b9739f", "#c9b458", "#e08f77", "#6f9fd8", "#a08d7b", "#5cae8a", "#d69bc0"),
    *("#7a8f3d", "#3d6f7a", "#b0603a", "#6d5fa8"),
)
"""Colours for names that are not in `COLOURS`."""


def colours(names: list[str]) -> dict[str, str]:
    """The colour of each name: its own, else the next colour that is not in use."""
    own = {COLOURS[name] for name in names if name in COLOURS}
    free = cycle([colour for colour in OTHERS if colour not in own])
    return {name: COLOURS[name] if name in COLOURS else next(free) for name in dict.fromkeys(names)}


def names_of(chart: Chart) -> list[str]:
    """Names of bars, lines or parts, in order of first appearance."""
    match chart:
        case BarChart(groups=groups):
            found = [bar.name for group in groups for bar in group.bars]
        case LineChart(lines=lines):
            found = [line.name for line in lines]
        case StackChart(stacks=stacks):
            found = [name for stack in stacks for name, _ in stack.parts]
    return list(dict.fromkeys(found))


def values_of(chart: BarChart) -> list[float]:
    """The ends of all error bars; never empty, so that an axis has a range."""
    ends = [end for group in chart.groups for bar in group.bars if bar.value is not None for end in bar.reach]
    return ends or [0.0, 1.0]


def missing(chart: BarChart) -> list[str]:
    """A sentence for each bar without a value."""
    return [
        f"{group.label}: {bar.name} is missing ({bar.note})"
        for group in chart.groups
        for bar in group.bars
        if bar.value is None
    ]


def short(value: float) -> str:
    """The value with about three significant digits: `0.038`, `4.6`, `1,040`."""
    if not isfinite(value):
        return "never"
    size = abs(value)
    digits = 0 if size >= 99.5 else 1 if size >= 9.95 else 2 if size >= 0.1 or not size else 3
    return f"{value:,.{digits}f}"
