"""One change of the roster under way, and one replacement that waits for its turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import msgspec

from understudy.protocol.messages import Back, Move
from understudy.protocol.roster import Roster
from understudy.steward.drains import Drain

from .events import Replace


class Kind(StrEnum):
    FORM = "form"
    """The first generation."""
    REPLACE = "replace"
    REFILL = "refill"
    """Replicas that were vacant come back."""
    SHRINK = "shrink"
    """Replicas that are too many leave."""
    RECOVER = "recover"
    """Training begins again after a halt."""


PLANNED = frozenset({Kind.REPLACE, Kind.REFILL, Kind.SHRINK})
"""Kinds that are made while training goes on, and that training does not depend on."""


class Phase(StrEnum):
    REHEARSE = "rehearse"
    """The joiners rehearse their roles."""
    PREPARE = "prepare"
    """A planned change: all workers open the new links beside training."""
    ARMED = "armed"
    """A planned change: all links are open; the workers switch at the next boundary on which they agree by vote."""
    CANCEL = "cancel"
    """A planned change is being given up, unless the vote was faster."""
    OPEN = "open"
    """A direct change: no worker trains; all open their links and switch."""
    SWITCH = "switch"
    """At least one worker has switched: the change can no longer be given up."""


PLANNED_COURSE: dict[Phase, frozenset[Phase]] = {
    Phase.REHEARSE: frozenset({Phase.PREPARE, Phase.CANCEL}),
    Phase.PREPARE: frozenset({Phase.ARMED, Phase.CANCEL, Phase.SWITCH}),
    Phase.ARMED: frozenset({Phase.SWITCH, Phase.CANCEL}),
    Phase.CANCEL: frozenset({Phase.SWITCH}),
    Phase.SWITCH: frozenset(),
}
"""Phases that may follow each phase of a planned change."""

DIRECT_COURSE: dict[Phase, frozenset[Phase]] = {
    Phase.REHEARSE: frozenset({Phase.OPEN}),
    Phase.OPEN: frozenset({Phase.SWITCH}),
    Phase.SWITCH: frozenset(),
}
"""Phases that may follow each phase of a direct change: the first generation, and every recovery."""


@dataclass
class QueuedReplacement:
    """A replacement that waits for its turn, or one turn of it."""

    id: str
    """The request that it belongs to; empty: the controller itself wants it."""
    request: Replace
    attempts: int = 0
    forced: bool = False
    """The machine goes at the deadline, replaced or not."""
    warned: bool = False
    """Whether it has been announced that the replacement will be late."""
    closed: bool = False
    """Whether its outcome is known."""

    @property
    def drain(self) -> Drain:
        """What its place in the queue depends on."""
        request = self.request
        return Drain(self.id, request.machines, request.by, request.in_turns)

    def part(self, machines: tuple[str, ...]) -> QueuedReplacement:
        """A replacement of some of these machines, otherwise like this one."""
        request = self.request
        standbys = tuple(new for old, new in zip(request.machines, request.standbys, strict=False) if old in machines)
        request = msgspec.structs.replace(request, machines=machines, standbys=standbys)
        return QueuedReplacement(self.id, request, self.attempts, self.forced, self.warned)


class TurnOutcome(msgspec.Struct, frozen=True):
    """The outcome of one turn of a request."""

    machines: tuple[str, ...]
    ok: bool
    text: str
    data: dict[str, object]


def summary(outcomes: list[TurnOutcome]) -> TurnOutcome:
    """The outcome of a request, made of the outcomes of its turns."""
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
    """Cell → the machine that takes it."""
    joiners: dict[int, str]
    """Role → the worker that takes it and has to rehearse it."""
    phase: Phase = Phase.REHEARSE
    leaving: tuple[str, ...] = ()
    """Machines that leave by plan."""
    keep: bool = False
    """Whether the leavers become standbys."""
    roster: Roster | None = None
    """The next roster; None while the joiners rehearse."""
    moves: tuple[Move, ...] = ()
    step: int = 0
    """The first step of a direct change."""
    givers: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Role → workers that give its state."""
    copies: dict[int, int] = field(default_factory=dict)
    """Role → the role whose copy its state comes from."""
    copied: int = -1
    """The latest step of which the survivors keep copies for all roles."""
    vacant: tuple[int, ...] = ()
    """Roles that no worker has after the change."""
    spared: tuple[int, ...] = ()
    """Vacant roles that were vacant by plan before the change."""
    back: Back = ""
    """Source of all state in a direct change that goes back to an earlier step."""
    waiting: set[str] = field(default_factory=set)
    """Workers that have not done yet what the phase asks of them."""
    item: QueuedReplacement | None = None
    """The queued replacement that this change carries out."""
    failed: str = ""
    """Why the change is being cancelled."""
    clock: dict[str, float] = field(default_factory=dict)
    """When each phase began."""
    moved: dict[str, tuple[int, float, bool]] = field(default_factory=dict)
    """Taker → bytes of state, seconds since the first byte, whether the state had to be sent twice."""
    losses: dict[str, float | None] = field(default_factory=dict)
    """Worker → seconds of training lost by its measure; None: it could not measure."""
    lost: float | None = None
    """Seconds of training lost: the largest of all workers' measures."""
    opened: dict[str, float] = field(default_factory=dict)
    """Worker → seconds in which it opened its links."""

    @property
    def generation(self) -> int:
        return 0 if self.roster is None else self.roster.generation

    @property
    def request(self) -> str:
        return "" if self.item is None else self.item.id

    @property
    def planned(self) -> bool:
        """Whether training goes on during the change, and would go on without it."""
        return self.kind in PLANNED

    @property
    def stops_the_world(self) -> bool:
        """Whether training stops during the change because the request says so."""
        return self.item is not None and self.item.request.stop_the_world

    def may_enter(self, phase: Phase) -> bool:
        """Whether this phase may follow the present one; a change begins with rehearsals or with open links."""
        if not self.clock:
            return phase in (Phase.REHEARSE, Phase.OPEN)
        course = PLANNED_COURSE if self.planned else DIRECT_COURSE
        return phase in course[self.phase]

    def phases(self, now: float) -> dict[str, float]:
        """Seconds spent in each phase so far."""
        marks = [*self.clock.items(), ("", now)]
        return {name: later - start for (name, start), (_, later) in pairwise(marks)}

    def links(self) -> dict[str, float]:
        """Seconds in which the slowest joiner and the slowest stayer opened their links."""
        joiners = set(self.joiners.values())
        return {
            "joiners": max((seconds for uid, seconds in self.opened.items() if uid in joiners), default=0.0),
            "stayers": max((seconds for uid, seconds in self.opened.items() if uid not in joiners), default=0.0),
        }
