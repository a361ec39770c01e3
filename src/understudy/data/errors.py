"""What can go wrong with a job's data."""

from __future__ import annotations


class DataError(Exception):
    """The data cannot be had as asked for; the message names it, says why, and what to do."""


def amount(size: int) -> str:
    """`512 bytes`, `1.5 MB`: a number of bytes to read."""
    for unit, power in (("TB", 4), ("GB", 3), ("MB", 2), ("kB", 1)):
        if size >= 1000**power:
            return f"{size / 1000**power:,.1f} {unit}"
    return f"{size:,} bytes"
