"""The shape of a benchmark, its result and its report.

A benchmark module defines `BENCH = Bench(name, summary, measure)`. `measure(quick, progress)` returns rows (the
measurements) and checks (the conditions that must hold). Environment, JSON, table and exit code are the same for all
benchmarks.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import msgspec

from understudy_bench.harness.progress import Progress

__all__ = ["Bench", "Check", "Environment", "Progress", "Report", "Result", "interleave", "median", "spread"]

T = TypeVar("T")

Row = Mapping[str, object]
"""One measurement. The keys are the columns, with the unit in the name (`bytes`, `median_ms`)."""


@dataclass(frozen=True)
class Check:
    """A condition that must hold: `value` is measured, `bar` says in words what it has to reach (">= 2")."""

    name: str
    value: float | str
    bar: str
    ok: bool


@dataclass(frozen=True)
class Result:
    """What a benchmark measured."""

    rows: Sequence[Row]
    checks: Sequence[Check]


@dataclass(frozen=True)
class Bench:
    """A benchmark: its name, one line about it, and the function that measures."""

    name: str
    summary: str
    measure: Callable[[bool, Progress], Result]

    def run(self, quick: bool, progress: Progress) -> Result:
        """Measure. `quick`: fewer sizes and rounds, about a minute; the checks must hold all the same."""
        return self.measure(quick, progress)


@dataclass(frozen=True)
class Load:
    """The computer's load averages over 1, 5 and 15 minutes. High values: other programs ran beside the benchmark."""

    start: tuple[float, float, float]
    end: tuple[float, float, float]


@dataclass(frozen=True)
class Environment:
    """The computer and the versions that a result was measured with; without the host's name."""

    cores: int
    platform: str
    versions: Mapping[str, str]
    load: Load
    quick: bool


@dataclass(frozen=True)
class Report:
    """A result and its environment. Encoded as JSON, it is the file that a benchmark writes."""

    bench: str
    env: Environment
    rows: Sequence[Row]
    checks: Sequence[Check]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def run(bench: Bench, *, quick: bool, progress: Progress) -> Report:
    """Measure, and note the environment."""
    start = os.getloadavg()
    result = bench.run(quick, progress)
    env = Environment(
        cores=len(os.sched_getaffinity(0)),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions={
            "python": platform.python_version(),
            "torch": _version("torch"),
            "understudy": _version("understudy"),
            "torchft": _version("torchft-nightly"),
        },
        load=Load(start, os.getloadavg()),
        quick=quick,
    )
    return Report(bench.name, env, result.rows, result.checks)


def to_json(report: Report) -> bytes:
    """The report as JSON; NaN and infinity become null, numpy and torch scalars plain numbers."""
    text = msgspec.json.format(msgspec.json.encode(report, enc_hook=_plain), indent=2)
    return _NUMBERS.sub(lambda found: b"[" + b" ".join(found[1].split()) + b"]", text) + b"\n"


_NUMBERS = re.compile(rb"\[\s*((?:(?:-?[0-9][0-9.eE+-]*|null)(?:,\s*)?)+)\s*\]")
"""A list of numbers. `to_json` puts it on one line."""


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def spread(values: Iterable[float], low: float = 0.1, high: float = 0.9) -> list[float]:
    """The range [lo, hi] from quantile `low` to quantile `high`; by default the middle 80 % of the values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("spread() needs at least one value")
    return [_quantile(ordered, low), _quantile(ordered, high)]


def rounded(row: Mapping[str, object]) -> dict[str, object]:
    """The row with all floats, nested ones included, rounded to four decimals (tenths of milliseconds)."""

    def short(value: object) -> object:
        if isinstance(value, list | tuple):
            return [short(each) for each in value]
        if isinstance(value, dict):
            return {name: short(each) for name, each in value.items()}
        return round(value, 4) if isinstance(value, float) else value

    return {name: short(value) for name, value in row.items()}


def interleave(contestants: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield every contestant once per round, as (round, contestant).

    Each round starts with the next contestant. A drift in the computer's speed thus affects all contestants alike, and
    none of them always goes first.
    """
    for number in range(rounds):
        for place in range(len(contestants)):
            yield number, contestants[(number + place) % len(contestants)]


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _plain(value: object) -> object:
    item = getattr(value, "item", None)
    if callable(item):
        return item()
    raise NotImplementedError(f"a row or check holds a {type(value).__name__}, which JSON cannot hold")
