"""Durations as readers see them."""

from __future__ import annotations

import pytest

from understudy.planning.spans import said


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
