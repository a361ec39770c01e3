"""A folder of results: the report of each benchmark, and the outcomes of the run that wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from understudy_bench.harness.bench import Check, Environment, Report

RUN = "run.json"
"""The file with the outcomes, beside one file for each benchmark."""

State = Literal["ok", "checks failed", "failed", "interrupted", "not run", "left out"]


class ResultsError(ValueError):
    """The folder has no results; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one benchmark."""

    bench: str
    state: State
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class RunInfo:
    """A run of several benchmarks."""

    began: str
    quick: bool
    outcomes: tuple[Outcome, ...]

    @property
    def interrupted(self) -> bool:
        return any(outcome.state == "interrupted" for outcome in self.outcomes)


@dataclass(frozen=True)
class Results:
    """All reports of a folder."""

    reports: Mapping[str, Report]
    run: RunInfo | None = None
    problems: tuple[str, ...] = field(default=())
    """Messages about files that could not be read."""

    def rows(self, bench: str, **where: object) -> list[Mapping[str, Any]]:
        """A benchmark's rows that have these values; empty if it has no result."""
        report = self.reports.get(bench)
        found = () if report is None else report.rows
        return [row for row in found if all(row.get(key) == value for key, value in where.items())]

    def totals(self, bench: str, **where: object) -> list[Mapping[str, Any]]:
        """Those of the rows that sum up all rounds."""
        return [row for row in self.rows(bench, **where) if _round_of(row)[:1] == ["all"]]

    def cut_short(self, bench: str) -> list[Mapping[str, Any]]:
        """The rows of jobs that ended before all their rounds."""
        return [row for row in self.rows(bench) if _round_of(row)[-2:] == ["cut", "short"]]


def _round_of(row: Mapping[str, Any]) -> list[str]:
    """The words of a row's round (or stretch): a number, "all" with the number of rounds, or a number "cut short"."""
    return str(row.get("round", row.get("stretch", ""))).replace(",", "").split()


def read(folder: Path) -> Results:
    """Read a folder. A file that is no result is a problem, not an error; `ResultsError` if there is no result at
    all."""
    if not folder.is_dir():
        raise ResultsError(f"there is no folder {folder}; 'understudy bench all' makes one")
    reports: dict[str, Report] = {}
    problems: list[str] = []
    run = None
    for path in sorted(folder.glob("*.json")):
        try:
            if path.name == RUN:
                run = msgspec.json.decode(path.read_bytes(), type=RunInfo)
            else:
                report = msgspec.json.decode(path.read_bytes(), type=Report)
                reports[report.bench] = report
        except (msgspec.DecodeError, OSError) as error:
            problems.append(f"{path.name} is no result of a benchmark: {error}")
    if not reports and run is None:
        raise ResultsError(f"{folder} holds no results{': ' + problems[0] if problems else ''}")
    return Results(reports, run, tuple(problems))


def checks_failed(results: Results) -> list[tuple[str, Check]]:
    return [(name, check) for name, report in results.reports.items() for check in report.checks if not check.ok]


def environments(results: Results) -> list[Environment]:
    return [report.env for report in results.reports.values()]
