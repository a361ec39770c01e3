"""Measurements as a page: sections of sentences, charts and tables, in the frame of all pages."""

from __future__ import annotations

from html import escape

import msgspec

from understudy.planning.report.chart import Bars, Chart, missing
from understudy.planning.report.drawn import figure_of
from understudy.planning.report.frame import document, drawing, table, tiles
from understudy.planning.report.plots import require


class Grid(msgspec.Struct, frozen=True):
    """A table; with `folded` one opens it first."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: str = ""


class Part(msgspec.Struct, frozen=True):
    """A section of the page."""

    id: str
    title: str
    sentences: tuple[str, ...] = ()
    charts: tuple[tuple[str, Chart], ...] = ()
    """With the words above each."""
    grids: tuple[Grid, ...] = ()
    missing: str = ""
    """What is said where there is neither chart nor table."""


class Sheet(msgspec.Struct, frozen=True):
    title: str
    lead: str
    tiles: tuple[tuple[str, str], ...]
    parts: tuple[Part, ...]
    made: str


def html_of(sheet: Sheet) -> str:
    """One string that holds everything it needs. Raises ReportUnavailable where there is no plotly."""
    require()
    top = (
        f'<header><p class="what">Understudy</p><h1>{escape(sheet.title)}</h1></header>'
        f'<section id="recommendation"><p class="lead">{escape(sheet.lead)}</p>{tiles(sheet.tiles)}</section>'
    )
    return document(sheet.title, [top, *map(_part, sheet.parts)], sheet.made)


def _part(part: Part) -> str:
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in part.sentences)
    if part.missing and not part.charts and not part.grids:
        said += f"<p>{escape(part.missing)}</p>"
    drawn = ""
    for number, (words, chart) in enumerate(part.charts):
        name = part.id if number == 0 else f"{part.id}-{number + 1}"
        drawn += f"<p><b>{escape(words)}</b></p>" if words else ""
        drawn += drawing(name, words or part.title, figure_of(chart))
        if isinstance(chart, Bars):
            drawn += "".join(f"<p>{escape(words)}</p>" for words in missing(chart))
    return (
        f'<section id="{part.id}"><h2>{escape(part.title)}</h2>{said}{drawn}{"".join(map(_grid, part.grids))}</section>'
    )


def _grid(grid: Grid) -> str:
    drawn = table(grid.titles, grid.rows)
    return f"<details><summary>{escape(grid.folded)}</summary>{drawn}</details>" if grid.folded else drawn
