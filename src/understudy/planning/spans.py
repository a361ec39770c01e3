"""Durations for readers: rounded, in the unit that suits them."""

from __future__ import annotations

from math import isfinite


def said(seconds: float) -> str:
    """In the largest unit of which there is at least one: `2.8 h`."""
    if not isfinite(seconds):
        return "for ever"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.995 * size or (unit != "d" and seconds >= size):
            return f"{_figures(seconds / size)} {unit}"
    return f"{_figures(seconds)} s" if seconds >= 0.9995 or not seconds else f"{_figures(seconds * 1000)} ms"


def _figures(value: float) -> str:
    return f"{value:,.0f}" if 99.5 <= value < 1e9 else f"{value:.3g}"
