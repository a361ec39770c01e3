"""Who is there: machines and their workers, as the controller knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from understudy.protocol.frames import Order
from understudy.protocol.messages import Done, Halted, Stalled
from understudy.protocol.roster import WorkerAddress
from understudy.protocol.sessions import Inbox, Outbox

MachineState = Literal["cast", "standby", "leaving", "quarantined", "gone"]


@dataclass
class Worker:
    """One worker process."""

    uid: str
    machine: str
    slot: int
    address: WorkerAddress | None = None
    """Known once it listens."""
    pid: int = 0
    role: int | None = None
    """The one it plays, or has rehearsed last."""
    rehearsing: int | None = None
    rehearsed: int | None = None
    """The role it waits in."""
    also: tuple[int, ...] = ()
    """Roles that it could take as well, at once."""
    fixed: bool = False
    """Whether it can play no other role than those."""
    entered: bool = False
    """Whether it has been in a generation: then it can go on in its role, but rehearse no other."""
    parked: bool = False
    """Whether it waits in its role, because its replica is vacant."""
    alive: bool = True
    started: float = 0.0
    """When."""
    report: Halted | None = None
    done: Done | None = None
    stalled: Stalled | None = None
    """Where it has waited for long."""
    holds: bool = False

    @property
    def spent(self) -> bool:
        """Whether a standby cannot do anything else with it: it holds state, or has given some in a generation."""
        return self.holds or self.entered


@dataclass
class Machine:
    name: str
    incarnation: str
    state: MachineState
    outbox: Outbox[Order] = field(default_factory=Outbox)
    inbox: Inbox = field(default_factory=Inbox)
    actors: list[Worker] = field(default_factory=list)
    """By slot; a dead one stays until it is replaced."""
    wings: list[list[Worker]] = field(default_factory=list)
    """More workers of a standby, a set each, that have rehearsed other roles."""
    tour: dict[int, float] = field(default_factory=dict)
    """Cell → seconds that its workers have rehearsed it for, the last time."""
    history: list[tuple[float, str]] = field(default_factory=list)
    """What has gone wrong on it, and when; also in its earlier lives."""
    pardoned: int = 0
    """How much of that does not count any more."""
    ill: bool = False
    """Somebody has said that it is not to be used."""
    notice: float | None = None
    """When it goes, replaced or not."""
    labels: dict[str, str] = field(default_factory=dict)
    why: str = ""

    @property
    def failures(self) -> int:
        return len(self.history) - self.pardoned

    @property
    def place(self) -> tuple[str, str]:
        """Of what its agent keeps."""
        return (self.name, self.incarnation)

    @property
    def alive(self) -> bool:
        return self.state != "gone"

    @property
    def whole(self) -> bool:
        """All its workers live and listen."""
        return self.alive and all(actor.alive and actor.address is not None for actor in self.actors)

    @property
    def sets(self) -> list[list[Worker]]:
        """All its workers: those that play or would, then the others."""
        return [self.actors, *self.wings]

    @property
    def everybody(self) -> list[Worker]:
        return [actor for each in self.sets for actor in each]

    def bring_forward(self, actors: list[Worker]) -> None:
        """Let these workers of a standby be the ones that would play."""
        if actors is not self.actors:
            self.wings = [each for each in self.sets if each is not actors]
            self.actors = actors


def free(actors: Sequence[Worker]) -> bool:
    """Whether these workers listen and hold nobody's state."""
    return all(actor.alive and actor.address is not None and not actor.holds for actor in actors)


def suit(actors: Sequence[Worker], roles: Sequence[int]) -> bool:
    """Whether these workers could take these roles."""
    return free(actors) and all(_open_to(actor, role) for actor, role in zip(actors, roles, strict=True))


def _open_to(actor: Worker, role: int) -> bool:
    if actor.entered:
        return actor.role == role
    return not actor.fixed or role in (actor.rehearsed, *actor.also)


def warmth(actors: Sequence[Worker], roles: Sequence[int]) -> int:
    """How soon they could take these roles."""
    return min(_warmth(actor, role) for actor, role in zip(actors, roles, strict=True))


def ready(actor: Worker, role: int) -> bool:
    """Whether a worker could take a role at once."""
    return actor.rehearsing is None and actor.rehearsed is not None and role in (actor.rehearsed, *actor.also)


def _warmth(actor: Worker, role: int) -> int:
    if ready(actor, role):
        return 5 if actor.rehearsed == role else 4
    if actor.rehearsing is not None:
        return 3 if actor.rehearsing == role else 0
    return 1 if actor.rehearsed is None else 2
