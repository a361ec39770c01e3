"""Figures as pages show them: digits, Markdown tables, and the source of the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from understudy.planning.report.chart import short
from understudy_bench.report.folder import Results

COMMAND = "understudy bench"

Row = Mapping[str, Any]


def seconds(value: float) -> str:
    """`0.19 s`: two significant digits or one decimal."""
    return f"{short(value) if abs(value) < 0.1 else f'{value:.2f}' if abs(value) < 1 else f'{value:.1f}'} s"


def measured(row: Row, column: str) -> str:
    """A median and its spread: `0.19 s (0.14 to 0.28)`; empty if the row has none."""
    value, reach = row.get(f"{column}_s"), row.get(f"{column}_spread")
    if value is None:
        return ""
    return seconds(value) + (f" ({seconds(reach[0])[:-2]} to {seconds(reach[1])[:-2]})" if reach else "")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def source(results: Results, bench: str, more: str) -> str:
    """The source of figures: the command, and the environment that its result recorded."""
    env = results.reports[bench].env
    quick = " A quick run: an impression, not a measurement." if env.quick else ""
    load = f"{env.cores} cores, torch {env.versions.get('torch', '?')}, load {env.load.start[0]:.1f} at the start"
    return f"`{COMMAND} {bench}`: {more} ({load}).{quick}"
