"""Durations and deadlines, written and read."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.protocol.durations import UNITS, DurationError, duration_text, parse_deadline, parse_duration, readable

NOON = datetime(2026, 3, 1, 12, 0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3), ("500ms", 0.5), ("2m", 120), ("2min", 120), ("1.5h", 5400), ("14d", 14 * 86400), ("1w", 604800)],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@given(st.text(max_size=12))
def test_anything_else_is_refused_in_one_sentence(text: str) -> None:
    try:
        assert 0 <= parse_duration(text) < float("inf")
    except DurationError:
        with pytest.raises(DurationError, match="is not a time span; write"):
            parse_duration(text)


@given(st.floats(0, 1e9), st.sampled_from(sorted(UNITS)))
def test_every_unit_is_read(value: float, unit: str) -> None:
    assert parse_duration(f"{value:.6f}{unit}") == pytest.approx(value * UNITS[unit], abs=1e-5 * UNITS[unit])


@given(st.one_of(st.floats(0, allow_infinity=False), st.integers(0, 10**7).map(float)))
def test_what_is_written_is_read(seconds: float) -> None:
    assert parse_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.5, "500ms"), (2.0, "2s"), (90.0, "90s"), (300.0, "5m"), (5400.0, "90m"), (86400.0, "1d")],
)
def test_the_largest_unit_with_a_whole_number(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@given(st.integers(0, 9999), st.sampled_from("smhd"))
def test_a_deadline_from_now(number: int, unit: str) -> None:
    assert parse_deadline(f"{number}{unit}", NOON) == pytest.approx(NOON.timestamp() + number * UNITS[unit])


@given(st.integers(0, 23), st.integers(0, 59), st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)))
def test_a_time_of_day_is_the_next_one(hour: int, minute: int, now: datetime) -> None:
    at = datetime.fromtimestamp(parse_deadline(f"{hour}:{minute:02}", now))
    assert (at.hour, at.minute, at.second) == (hour, minute, 0)
    assert now < at <= now + timedelta(days=1)


@pytest.mark.parametrize("text", ["", "30", "30x", "24:00", "12:60", "-5m", "1.m", "12:5", "noon", "30m "])
def test_what_is_no_deadline(text: str) -> None:
    with pytest.raises(DurationError, match=r"^by .*: write a time span such as 30m or 2h"):
        parse_deadline(text, NOON)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.02, "20 ms"),
        (59, "59 s"),
        (60, "1 min"),
        (7200, "2 h"),
        (86400, "24 h"),
        (2 * 86400, "2 d"),
        (1e300, "1.16e+295 d"),
    ],
)
def test_a_readable_duration(seconds: float, text: str) -> None:
    assert readable(seconds) == text


def test_a_duration_without_end() -> None:
    assert readable(float("inf")) == readable(float("nan")) == "for ever"
