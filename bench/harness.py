"""The one shape of every benchmark.

A benchmark module defines `BENCH = Bench(name, summary, measure)`. `measure(quick, progress)` returns rows, which are
what was seen, and checks, which are what must hold. Everything else (environment, JSON, table, exit code) is the same
for all.
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

from understudy_bench.progress import Progress

__all__ = ["Bench", "Check", "Environment", "Progress", "Report", "Result", "interleave", "median", "spread"]

T = TypeVar("T")

Row = Mapping[str, object]
"""One measurement; the keys are the columns, with the unit in the name (`bytes`, `median_ms`)."""


@dataclass(frozen=True)
class Check:
    """Something that must hold: `value` was measured, `bar` says in words what it had to reach (">= 2")."""

    name: str
    value: float | str
    bar: str
    ok: bool


@dataclass(frozen=True)
class Result:
    rows: Sequence[Row]
    checks: Sequence[Check]


@dataclass(frozen=True)
class Bench:
    name: str
    summary: str
    measure: Callable[[bool, Progress], Result]

    def run(self, quick: bool, progress: Progress) -> Result:
        """Measure. `quick` gives an impression in about a minute; its checks must hold all the same."""
        return self.measure(quick, progress)


@dataclass(frozen=True)
class Load:
    """The machine's load averages (1, 5 and 15 minutes): a busy machine shows here."""

    start: tuple[float, float, float]
    end: tuple[float, float, float]


@dataclass(frozen=True)
class Environment:
    """Where the numbers come from, without naming the host."""

    cores: int
    platform: str
    versions: Mapping[str, str]
    load: Load
    quick: bool


@dataclass(frozen=True)
class Report:
    """A result with its circumstances. Encoded as JSON it is the document that a benchmark leaves behind."""

    bench: str
    env: Environment
    rows: Sequence[Row]
    checks: Sequence[Check]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def run(bench: Bench, *, quick: bool, progress: Progress) -> Report:
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
"""A list of numbers, which is easier to read on one line."""


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def spread(values: Iterable[float], low: float = 0.1, high: float = 0.9) -> list[float]:
    """The range [lo, hi] in which the values from quantile `low` to quantile `high` lie, by default the middle 80 %."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("spread() needs at least one value")
    return [_quantile(ordered, low), _quantile(ordered, high)]


def rounded(row: Mapping[str, object]) -> dict[str, object]:
    """A row whose seconds have four decimals: tenths of milliseconds are enough."""

    def short(value: object) -> object:
        if isinstance(value, list | tuple):
            return [short(each) for each in value]
        if isinstance(value, dict):
            return {name: short(each) for name, each in value.items()}
        return round(value, 4) if isinstance(value, float) else value

    return {name: short(value) for name, value in row.items()}


def interleave(contestants: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Every contestant once per round, as (round, contestant).

    What drifts in the machine meets all of them alike; each round starts with the next contestant, so that nobody is
    always the first.
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
