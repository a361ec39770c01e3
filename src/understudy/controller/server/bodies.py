"""What others may send to the controller, besides requests."""

from __future__ import annotations

import msgspec


class Illness(msgspec.Struct, frozen=True):
    """What a health checker says."""

    why: str
    fatal: bool = False


class Maintenance(msgspec.Struct, frozen=True):
    """What somebody says who takes machines away, such as a cloud's notice."""

    machines: tuple[str, ...]
    by: float | str | None = None
    """Seconds since the epoch, a span such as 30m, or a time of day such as 18:30 where the controller is."""
    why: str = ""


class Ending(msgspec.Struct, frozen=True):
    """What whoever has started an agent says of its end."""

    why: str = "its agent has ended"
    incarnation: str = ""
    """Whose; empty: that of whoever has the machine's name now."""
    joined: bool = False
    """Whether it came by itself: if it has not come to register, nobody has waited for it."""
