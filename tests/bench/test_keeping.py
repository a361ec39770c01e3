from __future__ import annotations

from understudy_bench.keeping import SETTINGS, checks_of, gradient_bytes, rows_of


def test_memory_is_counted_in_sets_of_gradients() -> None:
    gradients = gradient_bytes()
    assert gradients > 8e6
    peaks = {"none": 3e8, "own": 3e8, "copy": 3e8 + gradients}
    rows = rows_of(peaks, dict.fromkeys(SETTINGS, 0.02), gradients)
    assert [(row["keep"], row["sets"], row["step_ms"]) for row in rows] == [
        ("none", 0.0, 20.0),
        ("own", 0.0, 20.0),
        ("copy", 1.0, 20.0),
    ]
    assert all(check.ok for check in checks_of(rows))


def test_what_is_more_than_promised_is_told() -> None:
    peaks = {"none": 3e8, "own": 3e8 + 2e6, "copy": 3e8 + 12e6}
    assert [check.ok for check in checks_of(rows_of(peaks, dict.fromkeys(SETTINGS, 0.02), 10**7))] == [False, False]
