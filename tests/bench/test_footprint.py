from __future__ import annotations

from understudy_bench.footprint import checks_of, row_of, summary
from understudy_bench.resident import Resident


def test_code_that_is_read_for_the_first_time_is_no_growth() -> None:
    row = row_of("stayer", 0, Resident(0, 300_000_000, 100_000_000), Resident(0, 350_000_000, 150_000_000), 10**8)
    assert (row["growth_mb"], row["growth"]) == (0.0, 0.0)
    grown = row_of("stayer", 0, Resident(0, 300_000_000, 0), Resident(0, 302_000_000, 0), 10**8)
    assert (grown["growth_mb"], grown["growth"]) == (2.0, 0.02)


def test_the_check_is_of_the_stayers_median() -> None:
    growths = {"stayer": (0.0, 0.001, 0.5), "leaver": (0.3,), "joiner": (0.0,)}
    rows = [
        {"who": who, "steady_mb": 1.0, "peak_mb": 1.0, "growth_mb": 0.0, "growth": value}
        for who, values in growths.items()
        for value in values
    ]
    stayer, leaver, _ = checks_of(summary(rows))
    assert (stayer.value, stayer.ok, leaver.ok) == (0.001, True, True)
    rows = [{**row, "growth": 0.02} for row in rows]
    assert not checks_of(summary(rows))[0].ok
