"""Measurements of one step by one worker."""

from __future__ import annotations

import msgspec

PARTS = ("data", "forward", "backward", "optimizer")
"""The parts of a step, in their order."""


class Traffic(msgspec.Struct, frozen=True, array_like=True):
    """Bulk transfers with one neighbour in one step. A link is slow if one end could not push while the other end could
    not pull; if only one end waits, it waits for the other worker."""

    peer: str
    """The uid of the neighbour."""
    sent: int = 0
    pushing: float = 0.0
    """Seconds in which bytes went out."""
    backed: float = 0.0
    """Seconds in which the link took nothing although bytes were to be sent."""
    starved: float = 0.0
    """Seconds in which nothing arrived although a transfer was not complete."""
    got: int = 0


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One step of one worker. `compute` and `parts` are its own seconds, without the time that it waited for others."""

    uid: str
    role: int
    step: int
    compute: float
    """The sum of all parts."""
    parts: tuple[float, ...] = ()
    """Seconds by PARTS; empty if no tracked module was seen in its forward."""
    waited: float | None = None
    """Seconds blocked in operations with others; None: not known, and then `compute` means nothing."""
    micro: int = 1
    """Micro-shards that the worker has computed."""
    odd: str = ""
    """Why this step is not comparable with others; empty: it is."""
    traffic: tuple[Traffic, ...] = ()

    @property
    def counts(self) -> bool:
        return not self.odd and self.waited is not None and self.compute > 0
