"""The errors of a job's data."""

from __future__ import annotations


class DataError(Exception):
    """Data cannot be read or written as asked for. The message names the data, the reason and the way out."""


def amount(size: int) -> str:
    """A number of bytes as text: `512 bytes`, `1.5 MB`."""
    for unit, power in (("TB", 4), ("GB", 3), ("MB", 2), ("kB", 1)):
        if size >= 1000**power:
            return f"{size / 1000**power:,.1f} {unit}"
    return f"{size:,} bytes"
