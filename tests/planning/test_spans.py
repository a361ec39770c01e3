"""Stretches of time, written and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.planning.spans import UNITS, SpanError, said, span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3), ("500ms", 0.5), ("2m", 120), ("2min", 120), ("1.5h", 5400), ("14d", 14 * 86400), ("1w", 604800)],
)
def test_a_span(text: str, seconds: float) -> None:
    assert span(text) == pytest.approx(seconds)


@given(st.text(max_size=12))
def test_anything_else_is_refused_in_one_sentence(text: str) -> None:
    try:
        assert 0 <= span(text) < float("inf")
    except SpanError:
        with pytest.raises(SpanError, match="is not a time span; write"):
            span(text)


@given(st.floats(0, 1e9), st.sampled_from(sorted(UNITS)))
def test_what_is_written_is_read(value: float, member: str) -> None:
    assert span(f"{value:.6f}{member}") == pytest.approx(value * UNITS[member], abs=1e-5 * UNITS[member])


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
def test_said(seconds: float, text: str) -> None:
    assert said(seconds) == text


def test_for_ever() -> None:
    assert said(float("inf")) == said(float("nan")) == "for ever"
