"""Who is there: machines and their workers, as the controller knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from understudy.agent.messages import Order
from understudy.agent.session import Inbox, Outbox
from understudy.comm.roster import Worker
from understudy.worker.messages import Done, Halted, Stalled

MachineState = Literal["cast", "standby", "leaving", "quarantined", "gone"]


@dataclass
class Actor:
    """One worker process."""

    uid: str
    machine: str
    slot: int
    address: Worker | None = None
    """Known once it listens."""
    pid: int = 0
    role: int | None = None
    """The only one it ever plays or rehearses."""
    rehearsing: int | None = None
    rehearsed: int | None = None
    """The role it waits in."""
    alive: bool = True
    started: float = 0.0
    """When."""
    report: Halted | None = None
    done: Done | None = None
    stalled: Stalled | None = None
    """Where it has waited for long."""
    holds: bool = False


@dataclass
class Machine:
    name: str
    incarnation: str
    state: MachineState
    outbox: Outbox[Order] = field(default_factory=Outbox)
    inbox: Inbox = field(default_factory=Inbox)
    actors: list[Actor] = field(default_factory=list)
    """By slot; a dead one stays until it is replaced."""
    wings: list[list[Actor]] = field(default_factory=list)
    """More workers of a standby, a set each, that have rehearsed other roles."""
    history: list[tuple[float, str]] = field(default_factory=list)
    """What has gone wrong on it, and when; also in its earlier lives."""
    pardoned: int = 0
    """How much of that does not count any more."""
    ill: bool = False
    """Somebody has said that it is not to be used."""
    why: str = ""

    @property
    def failures(self) -> int:
        return len(self.history) - self.pardoned

    @property
    def alive(self) -> bool:
        return self.state != "gone"

    @property
    def whole(self) -> bool:
        """All its workers live and listen."""
        return self.alive and all(actor.alive and actor.address is not None for actor in self.actors)

    @property
    def sets(self) -> list[list[Actor]]:
        """All its workers: those that play or would, then the others."""
        return [self.actors, *self.wings]

    @property
    def everybody(self) -> list[Actor]:
        return [actor for each in self.sets for actor in each]

    def bring_forward(self, actors: list[Actor]) -> None:
        """Let these workers of a standby be the ones that would play."""
        if actors is not self.actors:
            self.wings = [each for each in self.sets if each is not actors]
            self.actors = actors


def suit(actors: Sequence[Actor], roles: Sequence[int]) -> bool:
    """Whether these workers could take these roles: they hold nobody's state and have not rehearsed other roles."""
    return all(
        actor.alive
        and actor.address is not None
        and not actor.holds
        and {actor.rehearsing, actor.rehearsed} <= {None, role}
        for actor, role in zip(actors, roles, strict=True)
    )


def warmth(actors: Sequence[Actor], roles: Sequence[int]) -> int:
    """How far they have come with these roles."""
    return sum(
        (actor.rehearsed == role) * 2 + (actor.rehearsing == role) for actor, role in zip(actors, roles, strict=True)
    )
