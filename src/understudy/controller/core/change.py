"""One change of the roster under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import msgspec

from understudy.protocol.messages import Back, Move
from understudy.protocol.roster import Roster
from understudy.steward.drains import Drain

from .events import Replace

Kind = Literal["form", "replace", "recover", "refill", "shrink"]
Phase = Literal["rehearse", "prepare", "armed", "open", "cancel", "switch"]


@dataclass
class QueuedReplacement:
    """A replacement that an operator has asked for, or one turn of it."""

    id: str
    request: Replace
    attempts: int = 0
    forced: bool = False
    """The machine goes at the deadline, replaced or not."""
    warned: bool = False
    """Whether it was said that it will be late."""
    closed: bool = False
    """Whether it is known what has become of it."""

    @property
    def drain(self) -> Drain:
        """What matters for its turn."""
        request = self.request
        return Drain(self.id, request.machines, request.by, request.in_turns)

    def part(self, machines: tuple[str, ...]) -> QueuedReplacement:
        """The same for some of its machines."""
        request = self.request
        standbys = tuple(new for old, new in zip(request.machines, request.standbys, strict=False) if old in machines)
        request = msgspec.structs.replace(request, machines=machines, standbys=standbys)
        return QueuedReplacement(self.id, request, self.attempts, self.forced, self.warned)


class TurnOutcome(msgspec.Struct, frozen=True):
    """What has become of one turn of a request."""

    machines: tuple[str, ...]
    ok: bool
    text: str
    data: dict[str, object]


def summary(outcomes: list[TurnOutcome]) -> TurnOutcome:
    """Of all turns of a request."""
    if len(outcomes) == 1:
        return outcomes[0]
    names = tuple(name for outcome in outcomes for name in outcome.machines)
    done = [outcome for outcome in outcomes if outcome.ok]
    losses = [lost for outcome in done if isinstance(lost := outcome.data.get("lost"), float)]
    said = f"{len(done)} of {len(outcomes)} turns done, training lost {sum(losses):.3f} s"
    said += "".join(f"; {', '.join(each.machines)}: {each.text}" for each in outcomes if not each.ok)
    turns = [{"machines": each.machines, "ok": each.ok, "text": each.text, **each.data} for each in outcomes]
    return TurnOutcome(names, len(done) == len(outcomes), said, {"lost": sum(losses), "turns": turns})


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
    wish: QueuedReplacement | None = None
    failed: str = ""
    """Why it is being cancelled."""
    clock: dict[str, float] = field(default_factory=dict)
    """When each phase began."""
    moved: dict[str, tuple[int, float, bool]] = field(default_factory=dict)
    """Taker → bytes of state, seconds from the first byte on, whether it had to be sent twice."""
    losses: dict[str, float | None] = field(default_factory=dict)
    """What each worker says that training has lost; None where it cannot know."""
    lost: float | None = None
    opened: dict[str, float] = field(default_factory=dict)
    """Seconds in which each worker has opened its links."""

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

    def links(self) -> dict[str, float]:
        """Seconds in which the slowest of those who come, and of the others, has opened its links."""
        coming = set(self.joiners.values())
        return {
            "joiners": max((seconds for uid, seconds in self.opened.items() if uid in coming), default=0.0),
            "stayers": max((seconds for uid, seconds in self.opened.items() if uid not in coming), default=0.0),
        }
