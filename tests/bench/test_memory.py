from __future__ import annotations

from understudy_bench.harness.memory import Resident
from understudy_bench.memory import (
    KEEP_SETTINGS,
    checks_of,
    gradient_bytes,
    kept_checks,
    kept_rows,
    row_of,
    summary,
)


def test_code_that_is_read_for_the_first_time_is_no_growth() -> None:
    row = row_of("stayer", 0, Resident(0, 300_000_000, 100_000_000), Resident(0, 350_000_000, 150_000_000), 10**8)
    assert (row["growth_mb"], row["growth"]) == (0.0, 0.0)
    grown = row_of("stayer", 0, Resident(0, 300_000_000, 0), Resident(0, 302_000_000, 0), 10**8)
    assert (grown["growth_mb"], grown["growth"]) == (2.0, 0.02)


def test_the_check_is_of_the_stayers_median() -> None:
    growths = {"stayer": (0.0, 0.001, 0.5), "leaver": (0.3,), "joiner": (0.0,)}
    rows = [
        {"worker": part, "steady_mb": 1.0, "peak_mb": 1.0, "growth_mb": 0.0, "growth": value}
        for part, values in growths.items()
        for value in values
    ]
    stayer, leaver, _ = checks_of(summary(rows))
    assert (stayer.value, stayer.ok, leaver.ok) == (0.001, True, True)
    rows = [{**row, "growth": 0.02} for row in rows]
    assert not checks_of(summary(rows))[0].ok


def test_memory_is_counted_in_sets_of_gradients() -> None:
    gradients = gradient_bytes()
    assert gradients > 8e6
    peaks = {"none": 3e8, "own": 3e8, "copy": 3e8 + gradients}
    rows = kept_rows(peaks, dict.fromkeys(KEEP_SETTINGS, 0.02), gradients)
    assert [(row["keep"], row["sets"], row["step_ms"]) for row in rows] == [
        ("none", 0.0, 20.0),
        ("own", 0.0, 20.0),
        ("copy", 1.0, 20.0),
    ]
    assert all(check.ok for check in kept_checks(rows))


def test_what_is_more_than_promised_is_told() -> None:
    peaks = {"none": 3e8, "own": 3e8 + 2e6, "copy": 3e8 + 12e6}
    assert [check.ok for check in kept_checks(kept_rows(peaks, dict.fromkeys(KEEP_SETTINGS, 0.02), 10**7))] == [
        False,
        False,
    ]
