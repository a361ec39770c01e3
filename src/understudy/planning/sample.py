"""An incident log as a large cluster writes it, made up from a seed: to try things with, and to test what is fitted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import numpy as np

from understudy.planning.assume import LLAMA_RATE
from understudy.planning.failures import Failures, Repair, Times
from understudy.planning.setting import DAY, HOUR

KINDS = {"gpu": 0.36, "memory": 0.17, "software": 0.13, "network": 0.12, "host": 0.08, "storage": 0.06, "unknown": 0.08}
"""Shares of the causes, after the same table."""
BEGIN = datetime(2026, 3, 1, tzinfo=UTC).timestamp()


class Example(msgspec.Struct, frozen=True):
    """What the log is drawn from."""

    failures: Failures = Failures(
        HOUR / (LLAMA_RATE * 8), together=0.03, maintenance=180 * DAY, straggling=900 * DAY, noticed=900.0
    )
    repair: Repair = Repair(12 * HOUR, "lognormal")
    machines: int = 2048
    domain: int = 4
    days: float = 54.0


EXAMPLE = Example()


def example_log(seed: int = 0, example: Example = EXAMPLE) -> str:
    """The text of a CSV file; the same seed gives the same one."""
    rng = np.random.default_rng(seed)
    rows = [*_failures(rng, example), *_others(rng, example)]
    rows.sort()
    lines = ["timestamp,machine,kind,repair,domain"]
    for at, machine, kind, repair in rows:
        date = datetime.fromtimestamp(round(BEGIN + at), UTC).isoformat().replace("+00:00", "Z")
        name = f"node-{machine:04d},{kind},{_span(repair)},rack-{machine // example.domain:03d}"
        lines.append(f"{date},{name}")
    return "\n".join(lines) + "\n"


Row = tuple[float, int, str, float]


def _failures(rng: np.random.Generator, e: Example) -> Iterator[Row]:
    """Machines live and are repaired by turns; they have done so for long when the log begins, so all ages are met."""
    horizon, lead = e.days * DAY, 20 * e.failures.mtbf if e.failures.shape != 1.0 else 0.0
    kinds, shares = list(KINDS), list(KINDS.values())
    at = e.failures.lifetimes(rng, e.machines) - lead
    active = np.flatnonzero(at < horizon)
    while len(active):
        dates, repairs = at[active], _rounded(e.repair.durations(rng, len(active)))
        causes = rng.choice(kinds, len(active), p=shares)
        whole = rng.random(len(active)) < e.failures.together
        for machine, date, kind, repair, all_of_them in zip(active, dates, causes, repairs, whole, strict=True):
            if date < 0:
                continue
            yield float(date), int(machine), str(kind), float(repair)
            if all_of_them and e.domain > 1:
                yield from _neighbours(rng, e, int(machine), float(date))
        at[active] = dates + repairs + e.failures.lifetimes(rng, len(active))
        active = active[at[active] < horizon]


def _neighbours(rng: np.random.Generator, e: Example, machine: int, date: float) -> Iterator[Row]:
    """The others of the rack go within seconds, by the same cause."""
    first = machine - machine % e.domain
    for other in range(first, min(first + e.domain, e.machines)):
        if other != machine:
            yield date + float(rng.uniform(1, 15)), other, "network", float(_rounded(e.repair.durations(rng, 1))[0])


def _others(rng: np.random.Generator, e: Example) -> Iterator[Row]:
    for kind, every, lasts in (
        ("maintenance", e.failures.maintenance, 2 * HOUR),
        ("straggler", e.failures.straggling, 0.0),
    ):
        count = rng.poisson(e.days * DAY * e.machines / every) if every else 0
        for date, machine in zip(rng.uniform(0, e.days * DAY, count), rng.integers(0, e.machines, count), strict=True):
            yield float(date), int(machine), kind, lasts or round(float(rng.exponential(e.failures.noticed)) + 1)


def _rounded(seconds: Times) -> Times:
    """As people write it down: to the minute."""
    return np.maximum(np.round(seconds / 60), 1.0) * 60


def _span(seconds: float) -> str:
    for unit, name in ((DAY, "d"), (HOUR, "h"), (60.0, "m")):
        if seconds % unit == 0:
            return f"{seconds / unit:.0f}{name}"
    return f"{seconds:.0f}s"
