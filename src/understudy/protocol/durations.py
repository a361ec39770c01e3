"""Durations and deadlines as text, such as `500ms`, `3s`, `2m` and `1.5h`: on the command line, in TOML, over HTTP."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from math import isfinite

UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(ms|s|min|m|h|d|w|)", re.ASCII)
_LARGEST = 10_000
"""Numbers from here on are written in the next larger unit, or in seconds."""


class DurationError(ValueError):
    """The text is not a duration; the message says how to write one."""


def parse_duration(text: str) -> float:
    """Seconds: `3`, `3s`, `500ms`, `2m`, `1.5h`, `14d`, `2w`. A number without a unit is in seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not isfinite(found := float(match[1]) * UNITS[match[2]]):
        raise DurationError(f"{text!r} is not a time span; write 500ms, 3s, 2m, 1.5h or 14d")
    return found


def duration_text(seconds: float) -> str:
    """The duration in the largest unit that gives a whole number; `parse_duration` returns exactly the same number."""
    for unit in ("d", "h", "m", "s", "ms"):
        number = round(seconds / UNITS[unit]) if seconds < _LARGEST * UNITS[unit] else 0
        if number and number * UNITS[unit] == seconds:
            return f"{number}{unit}"
    return f"{seconds!r}s" if seconds else "0s"


def parse_deadline(text: str, now: datetime) -> float:
    """Seconds since the epoch: `30m`, `2h` or `90s` from now, or the next `18:30`."""
    if clock := re.fullmatch(r"(\d{1,2}):(\d{2})", text):
        hour, minute = int(clock[1]), int(clock[2])
        if hour < 24 and minute < 60:
            at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return (at if at > now else at + timedelta(days=1)).timestamp()
    elif text[-1:].isalpha():  # a number without a unit could be minutes as well
        try:
            return now.timestamp() + parse_duration(text)
        except DurationError:
            pass
    raise DurationError(f"by {text}: write a time span such as 30m or 2h, or a time of day such as 18:30")


def readable(seconds: float) -> str:
    """The duration for readers: rounded, in the largest suitable unit, such as `2.8 h`."""
    if not isfinite(seconds):
        return "for ever"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.995 * size or (unit != "d" and seconds >= size):
            return f"{_figures(seconds / size)} {unit}"
    return f"{_figures(seconds)} s" if seconds >= 0.9995 or not seconds else f"{_figures(seconds * 1000)} ms"


def _figures(value: float) -> str:
    return f"{value:,.0f}" if 99.5 <= value < 1e9 else f"{value:.3g}"
