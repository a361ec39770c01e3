"""Figures as pages show them: how many digits, tables, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from understudy.planning.report.chart import short
from understudy_bench.folder import Results

COMMAND = "understudy bench"

Row = Mapping[str, Any]


def seconds(value: float) -> str:
    """Two figures where they are enough."""
    return f"{short(value) if abs(value) < 0.1 else f'{value:.2f}' if abs(value) < 1 else f'{value:.1f}'} s"


def measured(row: Row, column: str) -> str:
    """`0.19 s (0.14 to 0.28)`."""
    value, reach = row.get(f"{column}_s"), row.get(f"{column}_spread")
    if value is None:
        return ""
    return seconds(value) + (f" ({seconds(reach[0])[:-2]} to {seconds(reach[1])[:-2]})" if reach else "")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def source(results: Results, bench: str, more: str) -> str:
    """Where the figures come from: the command, and the circumstances that its result recorded."""
    env = results.reports[bench].env
    quick = " A quick run: an impression, not a measurement." if env.quick else ""
    load = f"{env.cores} cores, torch {env.versions.get('torch', '?')}, load {env.load.start[0]:.1f} at the start"
    return f"`{COMMAND} {bench}`: {more} ({load}).{quick}"
