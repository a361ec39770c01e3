"""How long what is left of several benchmarks will take, from what they usually take and what the first ones took."""

from __future__ import annotations

from collections.abc import Collection, Mapping

SLOWEST, FASTEST = 4.0, 0.25
"""Further than this from the usual time one benchmark says nothing about the next ones."""


def pace(usual: Mapping[str, float], took: Mapping[str, float]) -> float:
    """How many times as long as usual those that were measured took, all together; 1 before there is any."""
    expected = sum(usual[name] for name in took)
    return min(SLOWEST, max(FASTEST, sum(took.values()) / expected)) if expected else 1.0


def left(usual: Mapping[str, float], took: Mapping[str, float], waiting: Collection[str]) -> float:
    """Seconds for those that wait."""
    return pace(usual, took) * sum(usual[name] for name in waiting)


def said(seconds: float) -> str:
    """`40 s`, `12 min`, `1 h 5 min`."""
    if seconds < 90:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
