"""A roster, and all that a worker holds to play in it."""

from __future__ import annotations

import asyncio
from typing import Any

from understudy.protocol.roster import Roster

from .endpoint import Endpoint
from .faults import Poison
from .links.spine import SpineLink
from .topology import LinkId


class PrepareFailed(RuntimeError):
    """A generation could not be prepared; the one in play is untouched."""


class SwitchRefused(RuntimeError):
    """This generation cannot be entered from here."""


def reason_of(error: BaseException) -> str:
    return "time limit" if isinstance(error, TimeoutError) else str(error) or repr(error)


class Generation:
    """A roster and all that this worker holds to play in it."""

    def __init__(self, roster: Roster, follows: Generation | None) -> None:
        self.roster = roster
        self.number = roster.generation
        self.follows = follows
        self.poison = Poison()
        self.spine: dict[LinkId, SpineLink] = {}
        self.groups: dict[str, tuple[Endpoint, Any, frozenset[int]]] = {}
        """By group name: its endpoint, what the transport has prepared, and its vacant ranks."""
        self.task: asyncio.Task[None] | None = None
        self.settled = asyncio.Event()
        """Whether its preparation has ended, one way or the other."""
        self.ready = False
        self.openings: set[asyncio.Task[Any]] = set()
        """Groups that are being brought in late."""
