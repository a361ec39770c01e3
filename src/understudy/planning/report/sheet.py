"""Measurements as an HTML page: sections of sentences, charts (by plotly) and tables."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import msgspec

from understudy.planning.report import chart as charts
from understudy.planning.report.chart import BarChart, Chart, LineChart, StackChart, colours, names_of, short
from understudy.planning.report.html import document, drawing, table, tiles
from understudy.planning.report.plots import OTHER, ROW, require, without_frame

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class SheetTable(msgspec.Struct, frozen=True):
    """A table; if `folded` is given, the table is collapsed under this title."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: str = ""


class SheetSection(msgspec.Struct, frozen=True):
    """A section of the page."""

    id: str
    title: str
    sentences: tuple[str, ...] = ()
    charts: tuple[tuple[str, Chart], ...] = ()
    """Charts with the heading of each."""
    grids: tuple[SheetTable, ...] = ()
    missing: str = ""
    """Text of a section with neither chart nor table."""


class Sheet(msgspec.Struct, frozen=True):
    """A page of measurements."""

    title: str
    lead: str
    tiles: tuple[tuple[str, str], ...]
    parts: tuple[SheetSection, ...]
    made: str


def html_of(sheet: Sheet) -> str:
    """The page as one string that loads nothing. Raises ReportUnavailable if plotly is not installed."""
    require()
    top = (
        f'<header><p class="what">Understudy</p><h1>{escape(sheet.title)}</h1></header>'
        f'<section id="recommendation"><p class="lead">{escape(sheet.lead)}</p>{tiles(sheet.tiles)}</section>'
    )
    return document(sheet.title, [top, *map(_part, sheet.parts)], sheet.made)


def _part(part: SheetSection) -> str:
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in part.sentences)
    if part.missing and not part.charts and not part.grids:
        said += f"<p>{escape(part.missing)}</p>"
    drawn = ""
    for number, (words, chart) in enumerate(part.charts):
        name = part.id if number == 0 else f"{part.id}-{number + 1}"
        drawn += f"<p><b>{escape(words)}</b></p>" if words else ""
        drawn += drawing(name, words or part.title, figure_of(chart))
        if isinstance(chart, BarChart):
            drawn += "".join(f"<p>{escape(words)}</p>" for words in charts.missing(chart))
    return (
        f'<section id="{part.id}"><h2>{escape(part.title)}</h2>{said}{drawn}{"".join(map(_grid, part.grids))}</section>'
    )


def _grid(grid: SheetTable) -> str:
    drawn = table(grid.titles, grid.rows)
    return f"<details><summary>{escape(grid.folded)}</summary>{drawn}</details>" if grid.folded else drawn


# -- charts ------------------------------------------------------------------------------------------------------------

APART = "\u200b"
"""Invisible character that tells equal names in different groups apart: plotly would draw them in one place."""


def figure_of(chart: Chart) -> Figure:
    """The chart as a plotly figure."""
    match chart:
        case BarChart():
            return _bars(chart)
        case LineChart():
            return _lines(chart)
        case StackChart():
            return _stacks(chart)


def _bars(chart: BarChart) -> Figure:
    figure = require().Figure()
    paint = colours(names_of(chart))
    known = [
        ((escape(group.label), escape(bar.name) + number * APART), bar, bar.value)
        for number, group in enumerate(chart.groups)
        for bar in group.bars
        if bar.value is not None
    ]
    figure.add_bar(
        y=[[label for (label, _), _, _ in known], [name for (_, name), _, _ in known]],
        x=[value for _, _, value in known],
        orientation="h",
        marker={"color": [paint[bar.name] for _, bar, _ in known]},
        error_x={
            "array": [bar.reach[1] - value for _, bar, value in known],
            "arrayminus": [value - bar.reach[0] for _, bar, value in known],
            "thickness": 1.2,
            "color": OTHER,
        },
        hovertemplate="%{x:.4g} " + escape(chart.unit) + "<extra></extra>",
    )
    for place, bar, value in known:
        figure.add_annotation(
            y=list(place),
            x=max(0.0, bar.reach[1]),
            text=f"{short(value)} {escape(chart.unit)}",
            showarrow=False,
            xanchor="left",
            xshift=6,
        )
    values = charts.values_of(chart)
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False, showdividers=False)
    figure.update_xaxes(title=escape(chart.axis), range=[min(0.0, *values), 1.15 * max(values)], nticks=7)
    figure.update_layout(showlegend=False)
    return without_frame(figure, 110 + ROW * len(known))


def _lines(chart: LineChart) -> Figure:
    figure = require().Figure()
    paint = colours(names_of(chart))
    for line in chart.lines:
        figure.add_scatter(
            x=list(line.xs),
            y=list(line.ys),
            name=escape(line.name),
            mode="lines+markers" if chart.log else "lines",
            line={"color": paint[line.name], "width": 2.2, "dash": "dash" if line.dashed else "solid"},
            marker={"size": 6},
            hovertemplate="%{y:.4g} at %{x:,.4g}<extra>%{fullData.name}</extra>",
        )
    if chart.mark:
        figure.add_vline(x=0, line={"dash": "dot", "width": 1.5, "color": OTHER}, annotation_text=escape(chart.mark))
    kind = "log" if chart.log else "linear"
    figure.update_xaxes(title=escape(chart.x), type=kind)
    figure.update_yaxes(title=escape(chart.y), type=kind, automargin=True)
    if not chart.log:
        figure.update_yaxes(rangemode="tozero")
    return without_frame(figure, 420)


def _stacks(chart: StackChart) -> Figure:
    figure = require().Figure()
    for name, colour in colours(names_of(chart)).items():
        figure.add_bar(
            y=[escape(stack.label) for stack in chart.stacks],
            x=[dict(stack.parts).get(name, 0.0) for stack in chart.stacks],
            name=escape(name),
            orientation="h",
            marker={"color": colour},
            hovertemplate="%{x:.3g}<extra>%{fullData.name}</extra>",
        )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    figure.update_xaxes(title=escape(chart.axis), nticks=7)
    figure.update_layout(barmode="stack")
    return without_frame(figure, 190 + ROW * len(chart.stacks))
