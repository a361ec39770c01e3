"""Incident logs in CSV: which machine was interrupted when, why, and for how long. Reads logs and makes an example."""

from __future__ import annotations

import csv
import difflib
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec
import numpy as np
from numpy.typing import NDArray

from understudy.planning.failures import Failures, Repair, Times
from understudy.planning.inputs.assume import LLAMA_RATE
from understudy.planning.setting import DAY, HOUR
from understudy.protocol.durations import DurationError, duration_text, parse_duration

Numbers = NDArray[np.int64]

NEEDED = ("timestamp", "machine", "kind", "repair")
COLUMNS = (*NEEDED, "domain")
MAINTENANCE, STRAGGLER = "maintenance", "straggler"
"""Kinds that are not failures: planned maintenance, and a slow machine."""

LATEST = 7.258e9
"""Seconds since the epoch in the year 2200. A larger number is in milliseconds or not a date."""
LONGEST_REPAIR = 3650 * DAY
LONGEST_LOG = 50 * 365 * DAY
UNKNOWN = -1.0
"""Stands for a repair without a duration."""
SHOWN = 5
"""Warnings of one kind that are listed one by one."""


class IncidentError(ValueError):
    """The log cannot be used; the message names the line, the problem and the way out."""


class Incidents(msgspec.Struct, frozen=True):
    """All rows by time; each array has one entry per row."""

    at: Times
    """Seconds since the epoch."""
    machine: Numbers
    """Index in `machines`."""
    kind: Numbers
    repair: Times
    """Seconds; below 0: not known."""
    domain: Numbers
    """Index in `domains`; below 0: none."""
    line: Numbers
    machines: tuple[str, ...]
    kinds: tuple[str, ...]
    domains: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.at)

    def rows(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Incidents:
        """The log with these rows only, in this order."""
        columns = ("at", "machine", "kind", "repair", "domain", "line")
        return msgspec.structs.replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    def of_kind(self, name: str) -> NDArray[np.bool_]:
        """Which rows are of this kind."""
        number = self.kinds.index(name) if name in self.kinds else -1
        return np.asarray(self.kind == number)


_UNDECODED = re.compile("[\udc80-\udcff]")
"""Characters that stand for invalid UTF-8 if a file is opened with `surrogateescape`."""


def read(lines: Iterable[str]) -> Incidents:
    """Reads a log. Raises IncidentError if it cannot be understood; oddities are listed in `warnings`."""
    rows = _rows(lines)
    first, header = next(rows, (0, None))
    if header is None:
        raise IncidentError(f"the log is empty; its first line must be {','.join(NEEDED)}")
    place = _places(header, first)
    at, repair = array("d"), array("d")
    machine, kind, domain, number = array("q"), array("q"), array("q"), array("q")
    machines: dict[str, int] = {}
    kinds: dict[str, int] = {}
    domains: dict[str, int] = {}
    spans: dict[str, float] = {}
    when, which, what, away, where = (place.get(name, -1) for name in COLUMNS)
    for line, row in rows:
        if len(row) != len(header):
            names = ",".join(name.strip() for name in header)
            raise IncidentError(
                f"line {line}: {len(row)} values in place of {len(header)}; the header has {names}; "
                "put values with commas into quotes"
            )
        name, sort = row[which].strip(), row[what].strip().lower()
        if not name or not sort:
            raise IncidentError(f"line {line}: no {'kind' if name else 'machine'}; write unknown if it is not known")
        text = row[away].strip()
        if text not in spans:
            if len(spans) > 100_000:
                spans.clear()
            spans[text] = _span(text, line)
        at.append(_date(row[when].strip(), line))
        machine.append(machines.setdefault(name, len(machines)))
        kind.append(kinds.setdefault(sort, len(kinds)))
        repair.append(spans[text])
        rack = row[where].strip() if where >= 0 else ""
        domain.append(domains.setdefault(rack, len(domains)) if rack else -1)
        number.append(line)
    if not at:
        raise IncidentError("the log has a header but no incident")
    return _in_order(
        Incidents(
            at=np.frombuffer(at),
            machine=np.frombuffer(machine, dtype=np.int64),
            kind=np.frombuffer(kind, dtype=np.int64),
            repair=np.frombuffer(repair),
            domain=np.frombuffer(domain, dtype=np.int64),
            line=np.frombuffer(number, dtype=np.int64),
            machines=tuple(machines),
            kinds=tuple(kinds),
            domains=tuple(domains),
        )
    )


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, with the number of the first line of each."""
    reader = csv.reader(_text(lines), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            wrong = f"{error}; save the log as plain CSV"
            if reader.line_num > line or "end of data" in wrong:
                wrong = "a quote is opened here and never closed; remove or close it"
            raise IncidentError(f"line {line}: {wrong}") from None
        if row and (row[0].strip() or any(map(str.strip, row))):
            yield line, row


def _text(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise IncidentError(f"line {number}: binary data; save the log as plain CSV in UTF-8")
        if not line.isascii() and _UNDECODED.search(line):
            raise IncidentError(f"line {number}: not UTF-8 text; save the log as CSV in UTF-8")
        yield line.removeprefix("\ufeff") if number == 1 else line


def _places(header: Sequence[str], line: int) -> dict[str, int]:
    """Position of each column by name."""
    names = [name.strip().lower() for name in header]
    if len(names) == 1 and re.search(r"[;\t|]", names[0]):
        raise IncidentError(
            f"line {line}: columns are not separated by commas: {_short(names[0])}; save the log with commas"
        )
    for name in names:
        if name not in COLUMNS:
            close = difflib.get_close_matches(name[:40], COLUMNS, 1)
            hint = f"did you mean {close[0]}?" if close else "remove it."
            raise IncidentError(f"line {line}: unknown column {_short(name)}; {hint} Columns are {', '.join(COLUMNS)}")
        if names.count(name) > 1:
            raise IncidentError(f"line {line}: column {name} appears twice; remove one")
    for name in NEEDED:
        if name not in names:
            raise IncidentError(f"line {line}: column {name} is missing; the first line must be {','.join(NEEDED)}")
    return {name: place for place, name in enumerate(names)}


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")


def _date(text: str, line: int) -> float:
    try:
        at = _iso(text, line) if text[4:5] == "-" else float(text)
    except ValueError:
        at = _iso(text, line)
    if not 0 <= at < np.inf:
        raise IncidentError(f"line {line}: timestamp {_short(text)} is no date after 1970; {_WRITE_DATES}")
    if at > LATEST:
        raise IncidentError(f"line {line}: timestamp {_short(text)} is after the year 2200; is it in milliseconds?")
    return at


_WRITE_DATES = "write 2026-03-01T14:05:00Z, or seconds since the epoch"


def _iso(text: str, line: int) -> float:
    if not text:
        raise IncidentError(f"line {line}: no timestamp; {_WRITE_DATES}")
    try:
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise IncidentError(f"line {line}: timestamp {_short(text)} is no date; {_WRITE_DATES}") from None


_WRITE_SPANS = "write 3h, 45m, 90s, 1d, or nothing if not known"


def _span(text: str, line: int) -> float:
    if not text:
        return UNKNOWN
    try:
        seconds = parse_duration(text.lower())
    except DurationError:
        wrong = "is negative" if text.startswith("-") else "is no duration"
        raise IncidentError(f"line {line}: repair {_short(text)} {wrong}; {_WRITE_SPANS}") from None
    if seconds > LONGEST_REPAIR:
        raise IncidentError(f"line {line}: a repair of {_short(text)} is more than ten years; is the unit right?")
    return seconds


def _in_order(log: Incidents) -> Incidents:
    """The log by time and without repeated rows, with its oddities as warnings."""
    warnings = []
    early = np.flatnonzero(np.diff(log.at) < 0)
    if len(early):
        number = log.line[early[0] + 1]
        warnings.append(f"line {number} is earlier than the line before, {_times(len(early))}: sorted by time")
    log = log.rows(np.argsort(log.at, kind="stable"))
    if log.at[-1] - log.at[0] > LONGEST_LOG:
        first, last = log.line[0], log.line[-1]
        raise IncidentError(f"lines {first} and {last} are more than fifty years apart; write all dates in one way")
    same = _repeated(log)
    if same.any():
        number = log.line[np.flatnonzero(same)[0]]
        warnings.append(f"line {number} repeats another line, {_times(int(same.sum()))}: counted once")
        log = log.rows(~same)
    warnings += [*_misspelt(log.kinds), *_overlaps(log)]
    return msgspec.structs.replace(log, warnings=tuple(warnings))


def _times(count: int) -> str:
    return "once in this log" if count == 1 else f"{count} times in this log"


def _repeated(log: Incidents) -> NDArray[np.bool_]:
    """Which rows repeat the date, machine and kind of another row."""
    order = np.lexsort((log.kind, log.machine, log.at))
    again = np.zeros(len(log), dtype=bool)
    again[order[1:]] = np.logical_and.reduce(
        [np.diff(column[order]) == 0 for column in (log.at, log.machine, log.kind)]
    )
    return again


def _misspelt(kinds: Sequence[str]) -> Iterator[str]:
    for kind in kinds[:200]:
        for known in difflib.get_close_matches(kind[:40], (MAINTENANCE, STRAGGLER), 1, 0.8):
            if kind != known:
                yield f"the kind {_short(kind)} counts as a failure; did you mean {known}?"


def _overlaps(log: Incidents) -> Iterator[str]:
    """Warns of machines that are interrupted during a repair."""
    order = np.lexsort((log.at, log.machine))
    before, after = order[:-1], order[1:]
    slow = log.of_kind(STRAGGLER)
    ends = log.at[before] + np.maximum(log.repair[before], 0.0)
    found = np.flatnonzero(
        (log.machine[before] == log.machine[after]) & (ends > log.at[after]) & ~slow[before] & ~slow[after]
    )
    for place in found[:SHOWN]:
        name = log.machines[log.machine[after[place]]]
        yield (
            f"line {log.line[after[place]]}: {_short(name)} is interrupted during its repair "
            f"(line {log.line[before[place]]}); the repair is taken to end at the interruption"
        )
    if len(found) > SHOWN:
        yield f"and {len(found) - SHOWN} more interruptions of machines during a repair"


# -- an example --------------------------------------------------------------------------------------------------------

KINDS = {"gpu": 0.36, "memory": 0.17, "software": 0.13, "network": 0.12, "host": 0.08, "storage": 0.06, "unknown": 0.08}
"""Shares of the causes of failures, after the training of Llama 3."""
BEGIN = datetime(2026, 3, 1, tzinfo=UTC).timestamp()


class ExampleCluster(msgspec.Struct, frozen=True):
    """The cluster that the example log is drawn from."""

    failures: Failures = Failures(
        HOUR / (LLAMA_RATE * 8), together=0.03, maintenance=180 * DAY, straggling=900 * DAY, noticed=900.0
    )
    repair: Repair = Repair(12 * HOUR, "lognormal")
    machines: int = 2048
    domain: int = 4
    days: float = 54.0


EXAMPLE = ExampleCluster()


def example_log(seed: int = 0, example: ExampleCluster = EXAMPLE) -> str:
    """An incident log of a large cluster as the text of a CSV file; the same seed gives the same text."""
    rng = np.random.default_rng(seed)
    rows = [*_failures(rng, example), *_others(rng, example)]
    rows.sort()
    lines = ["timestamp,machine,kind,repair,domain"]
    for at, machine, kind, repair in rows:
        date = datetime.fromtimestamp(round(BEGIN + at), UTC).isoformat().replace("+00:00", "Z")
        rack = machine // example.domain
        lines.append(f"{date},node-{machine:04d},{kind},{duration_text(repair)},rack-{rack:03d}")
    return "\n".join(lines) + "\n"


Row = tuple[float, int, str, float]


def _failures(rng: np.random.Generator, e: ExampleCluster) -> Iterator[Row]:
    """Failures and repairs of all machines. The log begins after a long lead time, so that machines have all ages."""
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


def _neighbours(rng: np.random.Generator, e: ExampleCluster, machine: int, date: float) -> Iterator[Row]:
    """The other machines of the rack fail within seconds, for the same cause."""
    first = machine - machine % e.domain
    for other in range(first, min(first + e.domain, e.machines)):
        if other != machine:
            yield date + float(rng.uniform(1, 15)), other, "network", float(_rounded(e.repair.durations(rng, 1))[0])


def _others(rng: np.random.Generator, e: ExampleCluster) -> Iterator[Row]:
    for kind, every, lasts in (
        ("maintenance", e.failures.maintenance, 2 * HOUR),
        ("straggler", e.failures.straggling, 0.0),
    ):
        count = rng.poisson(e.days * DAY * e.machines / every) if every else 0
        for date, machine in zip(rng.uniform(0, e.days * DAY, count), rng.integers(0, e.machines, count), strict=True):
            yield float(date), int(machine), kind, lasts or round(float(rng.exponential(e.failures.noticed)) + 1)


def _rounded(seconds: Times) -> Times:
    """Durations rounded to the minute, as in a log that is kept by hand."""
    return np.maximum(np.round(seconds / 60), 1.0) * 60
