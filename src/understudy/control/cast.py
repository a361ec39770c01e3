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

    def suits(self, roles: Sequence[int]) -> bool:
        """Whether its workers could take these roles: they hold nobody's state and have not rehearsed other roles."""
        return self.whole and all(
            not actor.holds and {actor.rehearsing, actor.rehearsed} <= {None, role}
            for actor, role in zip(self.actors, roles, strict=True)
        )
