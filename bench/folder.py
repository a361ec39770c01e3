"""A folder of results: what each benchmark has left there, and what became of the run that made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from understudy_bench.harness import Check, Environment, Report

RUN = "run.json"
"""The run itself, beside a file for each benchmark."""

State = Literal["ok", "checks failed", "failed", "interrupted", "not run", "left out"]


class ResultsError(ValueError):
    """A folder that is none of results; the message says what is wrong."""


@dataclass(frozen=True)
class Outcome:
    """What became of a benchmark."""

    bench: str
    state: State
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class RunInfo:
    began: str
    quick: bool
    outcomes: tuple[Outcome, ...]

    @property
    def interrupted(self) -> bool:
        return any(outcome.state == "interrupted" for outcome in self.outcomes)


@dataclass(frozen=True)
class Results:
    reports: Mapping[str, Report]
    run: RunInfo | None = None
    problems: tuple[str, ...] = field(default=())
    """Files that could not be read, in words."""

    def rows(self, bench: str, **where: object) -> list[Mapping[str, Any]]:
        """A benchmark's rows that have these values; none where there is no result of it."""
        report = self.reports.get(bench)
        found = () if report is None else report.rows
        return [row for row in found if all(row.get(key) == value for key, value in where.items())]

    def totals(self, bench: str, **where: object) -> list[Mapping[str, Any]]:
        """Of these rows, those that sum up all rounds."""
        return [row for row in self.rows(bench, **where) if str(row.get("round", "")).startswith("all")]


def read(folder: Path) -> Results:
    """What is there; a file that is no result is a problem, not an end. Raises where there is nothing at all."""
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
