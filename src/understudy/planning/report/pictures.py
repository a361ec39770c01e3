"""Charts of measurements as PNG, drawn by matplotlib, for pages without scripts such as a README.

Colours are those of the HTML page and are visible on light and dark pages; the background is light, so that text is
readable on both. A picture contains the digest of its chart, so that a test can tell which results it shows.
"""

from __future__ import annotations

import io
from typing import Any

import msgspec
import xxhash

from understudy.planning.report.chart import BarChart, Chart, LineChart, StackChart, colours, names_of, short, values_of

INK, SOFT, LINE, CARD = "#1f2933", "#5b6672", "#dfe3e8", "#fbfbfa"
DOTS_PER_INCH, WIDTH = 150, 8.0
KEY = "Understudy-Chart"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": LINE,
    "axes.facecolor": CARD,
    "figure.facecolor": CARD,
    "xtick.color": SOFT,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "path.simplify": False,
}


class PicturesUnavailable(RuntimeError):
    """matplotlib is not installed; the message says what to install."""


def png_of(title: str, chart: Chart) -> bytes:
    """The chart as PNG. The same chart gives the same bytes with the same version of matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PicturesUnavailable(
            "pictures need matplotlib, which is not installed: pip install 'understudy[report]'"
        ) from error
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, _height(chart)), dpi=DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        match chart:
            case BarChart():
                _bars(axes, chart)
            case LineChart():
                _lines(axes, chart)
            case StackChart():
                _stacks(axes, chart)
        handles, labels = axes.get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        if unique:
            figure.legend(unique.values(), unique.keys(), loc="outside lower left", ncols=min(5, len(unique)))
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None, KEY: digest(title, chart)})
    return out.getvalue()


def digest(title: str, chart: Chart) -> str:
    """Digest of a chart and its title."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode((title, chart)))


def _height(chart: Chart) -> float:
    match chart:
        case BarChart(groups=groups):
            return 1.0 + 0.23 * sum(len(group.bars) + 1.4 for group in groups)
        case LineChart():
            return 4.2
        case StackChart(stacks=stacks):
            return 1.6 + 0.42 * len(stacks)


def _bars(axes: Any, chart: BarChart) -> None:
    paint = colours(names_of(chart))
    places: dict[float, str] = {}
    at = 0.0
    for group in chart.groups:
        axes.text(0, at, f" {group.label}", va="center", fontweight="bold")
        for bar in group.bars:
            at += 1.0
            places[at] = bar.name
            if bar.value is None:
                axes.text(0, at, " missing", va="center", color=SOFT, fontsize=8)
                continue
            low, high = bar.reach
            error = [[bar.value - low], [high - bar.value]]
            axes.barh(at, bar.value, 0.8, color=paint[bar.name], xerr=error, error_kw={"ecolor": SOFT, "elinewidth": 1})
            said = f"{short(bar.value)} {chart.unit}"
            axes.annotate(said, (max(high, 0.0), at), (5, 0), textcoords="offset points", va="center", fontsize=8)
        at += 1.4
    axes.set_yticks(list(places), list(places.values()))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(chart.axis)
    axes.set_xlim(min(0.0, *values_of(chart)), 1.12 * max(values_of(chart)))
    axes.set_ylim(at - 0.6, -0.7)
    axes.grid(axis="y", visible=False)


def _lines(axes: Any, chart: LineChart) -> None:
    paint = colours(names_of(chart))
    for line in chart.lines:
        style = "--" if line.dashed else "-"
        marker = "o" if chart.log else None
        axes.plot(line.xs, line.ys, style, color=paint[line.name], label=line.name, lw=1.8, marker=marker, ms=4)
    if chart.log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if chart.mark:
        axes.axvline(0, color=SOFT, lw=1, ls=":")
        axes.text(0, 1.0, f" {chart.mark}", transform=axes.get_xaxis_transform(), va="top", color=SOFT, fontsize=8)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)


def _stacks(axes: Any, chart: StackChart) -> None:
    paint = colours(names_of(chart))
    for place, stack in enumerate(chart.stacks):
        start = 0.0
        for name, value in stack.parts:
            axes.barh(place, value, 0.7, left=start, color=paint[name], label=name)
            start += value
    axes.set_yticks(range(len(chart.stacks)), [stack.label for stack in chart.stacks])
    axes.set_xlabel(chart.axis)
    axes.grid(axis="y", visible=False)
    axes.invert_yaxis()
