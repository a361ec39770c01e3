"""Stretches of time as people write and read them."""

from __future__ import annotations

import re
from math import isfinite

UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*(ms|s|min|m|h|d|w|)", re.ASCII)


class SpanError(ValueError):
    """Not a stretch of time; the message says how to write one."""


def span(text: str) -> float:
    """Seconds: `3`, `3s`, `500ms`, `2m`, `1.5h`, `14d`, `2w`."""
    match = _SPAN.fullmatch(text.strip())
    if match is None or not isfinite(found := float(match[1]) * UNITS[match[2]]):
        raise SpanError(f"{text!r} is not a time span; write 500ms, 3s, 2m, 1.5h or 14d")
    return found


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
