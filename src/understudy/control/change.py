"""One change of the roster under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from understudy.comm.roster import Roster
from understudy.worker.messages import Back, Move

from .events import Replace

Kind = Literal["form", "replace", "recover", "refill", "shrink"]
Phase = Literal["rehearse", "prepare", "armed", "open", "cancel", "switch"]


@dataclass
class Wish:
    """A replacement that an operator has asked for."""

    id: str
    request: Replace
    attempts: int = 0


@dataclass
class Change:
    kind: Kind
    places: dict[int, str]
    """Cell → the machine that comes."""
    joiners: dict[int, str]
    """Role → the worker that comes."""
    phase: Phase = "rehearse"
    leaving: tuple[str, ...] = ()
    """Machines that go, by plan."""
    keep: bool = False
    """Whether they become standbys then."""
    roster: Roster | None = None
    """Once it is known who takes part."""
    moves: tuple[Move, ...] = ()
    step: int = 0
    """The first step of a direct change."""
    givers: dict[int, tuple[str, ...]] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)
    """Role → the role whose copy its state comes from."""
    copied: int = -1
    """The latest step of which copies are there for all roles."""
    vacant: tuple[int, ...] = ()
    """Roles without which the others go on."""
    spared: tuple[int, ...] = ()
    """Those of them that were vacant by plan before."""
    back: Back = ""
    """Where everybody's state comes from in a direct change, if not from where it is."""
    waiting: set[str] = field(default_factory=set)
    """Who has not yet done what the phase is about."""
    wish: Wish | None = None
    failed: str = ""
    """Why it is being cancelled."""
    clock: dict[str, float] = field(default_factory=dict)
    """When each phase began."""
    moved: dict[str, tuple[int, float, bool]] = field(default_factory=dict)
    """Taker → bytes of state, seconds from the first byte on, whether it had to be sent twice."""
    losses: dict[str, float | None] = field(default_factory=dict)
    """What each worker says that training has lost; None where it cannot know."""
    lost: float | None = None

    @property
    def generation(self) -> int:
        return 0 if self.roster is None else self.roster.generation

    @property
    def request(self) -> str:
        return "" if self.wish is None else self.wish.id

    @property
    def planned(self) -> bool:
        """Whether training goes on meanwhile, and would without it."""
        return self.kind in ("replace", "refill", "shrink")

    def phases(self, now: float) -> dict[str, float]:
        """Seconds spent in each phase so far."""
        marks = [*self.clock.items(), ("", now)]
        return {name: later - start for (name, start), (_, later) in pairwise(marks)}
