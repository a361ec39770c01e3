"""What a worker has measured in one step."""

from __future__ import annotations

import msgspec

PARTS = ("data", "forward", "backward", "optimizer")
"""Of a step, in their order."""


class Traffic(msgspec.Struct, frozen=True, array_like=True):
    """Bulk transfers with one neighbour in one step. A link is slow where one end could not push and the other one
    could not pull at the same time; where only one of them waits, it waits for the other one."""

    peer: str
    """The other worker's uid."""
    sent: int = 0
    pushing: float = 0.0
    """Seconds in which bytes went out."""
    backed: float = 0.0
    """Seconds in which there was something to send and the link took nothing."""
    starved: float = 0.0
    """Seconds in which the rest of a transfer was awaited and nothing came."""
    got: int = 0


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One step of one worker, in seconds of its own: what it waited for others is not in them."""

    uid: str
    role: int
    step: int
    compute: float
    """All of its own."""
    parts: tuple[float, ...] = ()
    """The same by PARTS; empty where no tracked module was seen in its forward."""
    waited: float | None = None
    """Blocked in operations with others; None where that cannot be known, and `compute` means nothing then."""
    micro: int = 1
    """Micro-shards that it has computed."""
    odd: str = ""
    """Why this step is not like others; empty: it is."""
    traffic: tuple[Traffic, ...] = ()

    @property
    def counts(self) -> bool:
        return not self.odd and self.waited is not None and self.compute > 0
