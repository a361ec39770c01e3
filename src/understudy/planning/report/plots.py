"""The plots of a plan's report, by plotly. plotly is imported when a plot is made.

The page sets the colours of text and lines for a light or a dark screen; the colours of data are visible on both.
"""

from __future__ import annotations

from html import escape
from math import log10
from typing import TYPE_CHECKING, Any

from understudy.planning.outcome import Waste
from understudy.planning.planner import Plan
from understudy.planning.report.plan_data import STANDING_BY, Landscape, ScaleCurve, Simulated, Tornado, WasteBar
from understudy.planning.report.sentences import amount, change, share
from understudy.planning.setting import DAY
from understudy.protocol.durations import readable

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLOURS = {
    "mask-and-refill": "#12908e",
    "mask-and-refill-local": "#5cae8a",
    "mask-and-refill-whole": "#9bbf5f",
    "trainmover": "#4a7fc1",
    "trainmover-cold": "#8f8fd6",
    "checkpoint": "#cf5f53",
    "spare": "#b9739f",
    "spare-planned": "#d69bc0",
    "replication": "#d99b3b",
    "torchft-like": "#8b8f98",
    "oobleck-like": "#a08d7b",
    "parcae-like": "#b3a9a0",
}
OTHER = "#8b8f98"
WASTES = {
    Waste.SAVING.words: "#6f9fd8",
    Waste.REPEATED.words: "#d99b3b",
    Waste.RESTARTING.words: "#cf5f53",
    Waste.WAITING.words: "#b9739f",
    Waste.STALLED.words: "#e08f77",
    Waste.JOINING.words: "#5cae8a",
    Waste.DEGRADED.words: "#12908e",
    Waste.REDUNDANT.words: "#8f8fd6",
    Waste.PLANNED.words: "#a08d7b",
    Waste.STRAGGLING.words: "#c9b458",
    STANDING_BY: "#9aa0a8",
}
LESS, MORE = "#4a7fc1", "#d99b3b"
WORST = "#2b3f66"
"""Colour of the worst cell in the landscape."""
APART = "\u2002"
"""Space between a name and its bar."""
ROW = 30
"""Height of a horizontal bar and its margin, in pixels."""
HIGHEST = 4.0
"""Upper limit of the plot over scale, in times to train without interruption. Curves above it are cut off."""


class ReportUnavailable(RuntimeError):
    """plotly is not installed; the message says what to install."""


def require() -> Any:
    """plotly's graph objects. Raises ReportUnavailable if plotly is not installed."""
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise ReportUnavailable(
            "a report needs plotly, which is not installed: pip install 'understudy[report]'"
        ) from error
    return plotly.graph_objects


def over_scale(curves: tuple[ScaleCurve, ...], plan: Plan) -> Figure:
    """Time to train over the number of GPUs."""
    figure, best, days = require().Figure(), plan.best.strategy.name, plan.request.days
    top = min(HIGHEST * days, max(point.days for curve in curves for point in curve.points))
    for curve in curves:
        figure.add_scatter(
            x=[point.gpus for point in curve.points],
            y=[point.days for point in curve.points],
            name=escape(curve.kind),
            mode="lines+markers",
            line={
                "color": _colour(curve.kind),
                "width": 3.5 if curve.kind == best else 2,
                "dash": "solid" if curve.offered else "dash",
            },
            marker={"size": 7 if curve.kind == best else 5},
            text=[readable(point.days * DAY) for point in curve.points],
            hovertemplate="%{text} on %{x:,} GPUs<extra>%{fullData.name}</extra>",
        )
    figure.add_vline(x=plan.assumed.setting.cluster.gpus, line={"dash": "dot", "width": 1.5, "color": OTHER})
    ticks = [1e3, 4e3, 16e3, 64e3, 256e3, 600e3]
    figure.update_xaxes(type="log", title="GPUs", tickvals=ticks, ticktext=["1k", "4k", "16k", "64k", "256k", "600k"])
    steps = [days * times for times in (1, 1.1, 1.2, 1.5, 2, 3, HIGHEST)]
    figure.update_yaxes(
        type="log",
        title="time to train",
        tickvals=steps,
        ticktext=[readable(step * DAY) for step in steps],
        range=[log10(0.97 * days), log10(1.06 * top)],
    )
    return without_frame(figure, 560)


def bars(found: tuple[WasteBar, ...]) -> Figure:
    """Wasted GPU-hours of every strategy."""
    figure = require().Figure()
    room = 1.3 * max(1.0, *(bar.gpu_hours for bar in found))
    figure.add_bar(
        y=[escape(bar.kind) for bar in found],
        x=[bar.gpu_hours for bar in found],
        orientation="h",
        marker={
            "color": [_colour(bar.kind) for bar in found],
            "opacity": [1.0 if bar.offered else 0.55 for bar in found],
        },
        text=[amount(bar.gpu_hours) for bar in found],
        textposition="outside",
        customdata=[[amount(bar.gpu_hours), share(bar.share), amount(bar.money)] for bar in found],
        hovertemplate="%{customdata[0]} GPU-hours (%{customdata[1]}), %{customdata[2]} of money<extra>%{y}</extra>",
        cliponaxis=False,
    )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False, ticksuffix=APART)
    figure.update_xaxes(title="GPU-hours wasted in a week", range=[0, room], nticks=6)
    figure.update_layout(showlegend=False)
    return without_frame(figure, 90 + ROW * len(found))


def breakdown(found: tuple[WasteBar, ...]) -> Figure:
    """Waste of every strategy by kind."""
    figure = require().Figure()
    for words, colour in WASTES.items():
        parts = [next((part for part in bar.parts if part.words == words), None) for bar in found]
        if any(parts):
            figure.add_bar(
                y=[escape(bar.kind) for bar in found],
                x=[100 * part.share if part else 0.0 for part in parts],
                name=words,
                orientation="h",
                marker={"color": colour},
                customdata=[amount(part.gpu_hours) if part else "0" for part in parts],
                hovertemplate="%{x:.1f} %, %{customdata} GPU-hours a week<extra>%{fullData.name}</extra>",
            )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False, ticksuffix=APART)
    figure.update_xaxes(title="share of the waste, %", range=[0, 100], tickvals=[0, 25, 50, 75, 100])
    figure.update_layout(barmode="stack", legend={"traceorder": "normal"})
    return without_frame(figure, 220 + ROW * len(found))


def landscape(found: Landscape) -> Figure:
    """Inflation of SPARe over holders and checkpoint periods."""
    known = sorted(value for row in found.rows for value in row if value is not None)
    worst = max(known[int(0.85 * (len(known) - 1))], found.best.inflation + 1e-6)
    names, periods = [str(r) for r in found.holders], [period / 60 for period in found.periods]
    figure = require().Figure()
    figure.add_heatmap(
        x=names,
        y=periods,
        z=[list(row) for row in found.rows],
        zmin=found.best.inflation,
        zmax=worst,
        colorscale=[[0, "#e4f2ec"], [0.15, "#a9d8cb"], [0.4, "#5fb0ae"], [0.7, "#36748f"], [1, WORST]],
        colorbar={"title": {"text": "times as long"}, "thickness": 12, "outlinewidth": 0},
        hoverongaps=False,
        customdata=[[readable(period)] * len(names) for period in found.periods],
        hovertemplate="r = %{x}, a checkpoint every %{customdata}: %{z:.3f} times as long<extra></extra>",
    )
    figure.add_scatter(
        x=[str(found.best.r)],
        y=[found.best.period / 60],
        mode="markers",
        marker={"symbol": "star", "size": 17, "color": "#e0a33e", "line": {"width": 1.5, "color": "#3a2c10"}},
        hovertemplate=f"best: r = {found.best.r}, every {readable(found.best.period)}, "
        f"{found.best.inflation:.3f} times as long<extra></extra>",
    )
    figure.update_xaxes(title="holders of a shard, r", type="category", showgrid=False)
    ticks = [tick for tick in (1, 2, 5, 10, 20, 60, 120, 360, 1440) if periods[0] <= tick <= 1.01 * periods[-1]]
    figure.update_yaxes(
        title={"text": "checkpoint period", "standoff": 14},
        type="log",
        tickvals=ticks,
        ticktext=[readable(60 * tick) for tick in ticks],
        showgrid=False,
        automargin=True,
    )
    figure.update_layout(showlegend=False)
    return without_frame(figure, 430)


def tornado(found: Tornado, goal: str) -> Figure:
    """Influence of each input on the goal."""
    figure, names = require().Figure(), [escape(each.name) for each in found.changes]
    for label, colour, values in (
        ("halved", LESS, [each.low for each in found.changes]),
        ("doubled", MORE, [each.high for each in found.changes]),
    ):
        figure.add_bar(
            y=names,
            x=[100 * value for value in values],
            name=label,
            orientation="h",
            marker={"color": colour},
            customdata=[change(value) for value in values],
            hovertemplate="%{y} %{fullData.name}: %{customdata}<extra></extra>",
        )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False, ticksuffix=APART)
    figure.update_xaxes(title=f"change of {goal}", ticksuffix=" %", zeroline=True, nticks=7)
    figure.update_layout(barmode="overlay")
    return without_frame(figure, 150 + ROW * len(names))


def simulated(found: tuple[Simulated, ...]) -> Figure:
    """Simulated inflation of every strategy beside the closed form."""
    figure, names = require().Figure(), [escape(each.kind) for each in found]
    means = [each.inflation for each in found]
    figure.add_scatter(
        y=names,
        x=[mean.value for mean in means],
        error_x={
            "array": [mean.high - mean.value for mean in means],
            "arrayminus": [mean.value - mean.low for mean in means],
            "thickness": 1.5,
            "color": OTHER,
        },
        name="simulated",
        mode="markers",
        marker={"size": 11, "color": [_colour(each.kind) for each in found]},
        customdata=[[f"{mean.low:.4f}", f"{mean.high:.4f}"] for mean in means],
        hovertemplate="%{x:.4f} (%{customdata[0]} to %{customdata[1]})<extra>%{y}</extra>",
    )
    known = [each for each in found if each.closed is not None]
    figure.add_scatter(
        y=[escape(each.kind) for each in known],
        x=[each.closed for each in known],
        name="closed form",
        mode="markers",
        marker={"size": 9, "symbol": "x-thin", "line": {"width": 2, "color": OTHER}},
        hovertemplate="closed form %{x:.4f}<extra>%{y}</extra>",
    )
    figure.update_yaxes(autorange="reversed", automargin=True, type="category", ticksuffix=APART)
    figure.update_xaxes(title="times as long as undisturbed", type="log", nticks=6)
    return without_frame(figure, 150 + ROW * len(found))


def without_frame(figure: Figure, height: int) -> Figure:
    """The figure without frame and background, with the legend below."""
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 56, "r": 24, "t": 12, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#6b7280"},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        hoverlabel={"font": {"size": 13}},
        bargap=0.32,
        dragmode=False,
    )
    figure.update_xaxes(gridcolor="rgba(128,128,128,0.22)", zerolinecolor="rgba(128,128,128,0.5)", automargin=True)
    figure.update_yaxes(gridcolor="rgba(128,128,128,0.22)", zerolinecolor="rgba(128,128,128,0.5)")
    return figure


def _colour(kind: str) -> str:
    return COLOURS.get(kind, OTHER)
