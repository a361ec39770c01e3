"""Deadlines as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def moment(text: str, now: datetime) -> float:
    """`30m`, `2h`, `90s` from now, or the next `18:30`, in seconds since the epoch."""
    if span := re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text):
        return now.timestamp() + float(span[1]) * _SECONDS[span[2]]
    if clock := re.fullmatch(r"(\d{1,2}):(\d{2})", text):
        hour, minute = int(clock[1]), int(clock[2])
        if hour < 24 and minute < 60:
            at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return (at if at > now else at + timedelta(days=1)).timestamp()
    raise ValueError(f"by {text}: write a time span such as 30m or 2h, or a time of day such as 18:30")
