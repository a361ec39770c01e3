"""All kinds of faults: their names, what they do in a line, and where they strike."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal

import msgspec

from .scene import Scene

Group = Literal["outside", "inside"]


class Wound(msgspec.Struct, frozen=True):
    """What was done."""

    text: str
    dead: tuple[int, ...] = ()
    """Processes that the controller has to notice the loss of."""


class Kind(msgspec.Struct, frozen=True):
    name: str
    group: Group
    line: str
    strike: Callable[[Scene, Random], Wound]
    gap: str = ""
    """What has to be set or built before a job survives it; such a kind is not in the usual mix."""


KINDS: dict[str, Kind] = {}

Strike = Callable[[Scene, Random], Wound]


def kind(name: str, group: Group, line: str, gap: str = "") -> Callable[[Strike], Strike]:
    """Enter a function as a kind of fault."""

    def enter(strike: Strike) -> Strike:
        KINDS[name] = Kind(name, group, line, strike, gap)
        return strike

    return enter


def known() -> dict[str, Kind]:
    """All of them, complete."""
    from . import outside  # noqa: F401, I001
    from . import inside  # noqa: F401

    return KINDS


def groups() -> dict[str, str]:
    return {name: kind.group for name, kind in known().items()}


def usual(*, inside: bool) -> dict[str, int]:
    """What a job survives without further settings; from inside only where it lets that happen."""
    return {name: 1 for name, kind in known().items() if not kind.gap and (inside or kind.group == "outside")}
