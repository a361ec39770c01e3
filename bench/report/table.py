"""A report as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy_bench.harness.bench import Check, Report, Row


def render(report: Report, console: Console) -> None:
    """Print rows, checks and environment. A failed check says FAIL, so that colour is never needed."""
    for part, rows in _parts(report.rows).items():
        console.print(_rows_table(rows, part))
    if report.checks:
        console.print(_checks_table(report.checks))
    console.print(Text(_environment(report), style="dim"))


def cell(value: object) -> str:
    """A value as text: four significant digits, thousands separated, [lo, hi] as lo .. hi."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _digits(value)
    if isinstance(value, list | tuple):
        return " .. ".join(cell(part) for part in value)
    return str(value)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _parts(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by their `part`: the rows of different parts have different columns, and a table each."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row.get("part", "")), []).append(row)
    return found


def _rows_table(rows: Sequence[Row], part: str) -> Table:
    table = Table(title=part or None, title_justify="left")
    keys = dict.fromkeys(key for row in rows for key in row if key != "part")
    columns = [key for key in keys if not any(isinstance(row.get(key), Mapping) for row in rows)]
    for column in columns:
        is_text = any(isinstance(row.get(column), str) for row in rows)
        table.add_column(Text(column), justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row.get(column))) for column in columns))
    return table


def _checks_table(checks: Sequence[Check]) -> Table:
    table = Table()
    for column in ("check", "value", "bar", ""):
        table.add_column(column, justify="right" if column == "value" else "left", overflow="fold")
    for check in checks:
        verdict = Text("ok", style="green") if check.ok else Text("FAIL", style="bold red")
        table.add_row(Text(check.name), Text(cell(check.value)), Text(check.bar), verdict)
    return table


def _environment(report: Report) -> str:
    env = report.env
    versions = ", ".join(f"{name} {number}" for name, number in env.versions.items())
    load = f"load {env.load.start[0]:.2f} at the start, {env.load.end[0]:.2f} at the end"
    quick = "; quick run" if env.quick else ""
    return f"{env.cores} cores; {env.platform}; {versions}; {load}{quick}"
