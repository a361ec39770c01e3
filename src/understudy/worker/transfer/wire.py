"""How state goes over links: what the runtime's transfers need of the wire, and the wire over sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from understudy.comm.links.link import Link
from understudy.host.world import REAL, World
from understudy.state.copy import Copy
from understudy.state.inventory import Inventory
from understudy.state.kinds import Tracked
from understudy.state.stream import WorldStop

from .copying import CopyTaker, give_copy, send_copy
from .handover import Arrival, Giver, Stop, Taker, Tempo


class StateGiver(Protocol):
    """Gives the state of one role over links; see `handover.Giver`."""

    spoiled: bool

    def offer(self, inventory: Inventory) -> None: ...

    def update(self, optimizer: object) -> None: ...

    def finish(self, step: int, tempo: Tempo) -> int: ...


class StateTaker(Protocol):
    """Takes the state of one role from links; see `handover.Taker`."""

    def run(self, took: Callable[[int], bool]) -> Arrival | None: ...


class CopiesTaker(Protocol):
    """Takes one copy after the other from links; see `copying.CopyTaker`."""

    def take(self, spare: Callable[[int], Copy | None]) -> Copy: ...

    def confirm(self) -> None: ...


class StateWire(Protocol):
    """Makes the ends of transfers. `stop` is asked while an end waits: the transfer is over once it is true."""

    def giver(self, links: Sequence[Link], tracked: Tracked, stop: Stop, part: tuple[int, int]) -> StateGiver: ...

    def taker(
        self, links: Sequence[Link], tracked: Tracked, stop: Stop, others: Sequence[Sequence[Link]]
    ) -> StateTaker: ...

    def give_copy(self, links: Sequence[Link], copy: Copy, stop: Stop) -> int: ...

    def send_copy(self, links: Sequence[Link], copy: Copy, keep: int, stop: Stop) -> int: ...

    def copies_taker(self, links: Sequence[Link], stop: Stop) -> CopiesTaker: ...


class SocketWire:
    """State over the sockets of links."""

    def __init__(self, world: World = REAL) -> None:
        self._world = world

    def giver(self, links: Sequence[Link], tracked: Tracked, stop: Stop, part: tuple[int, int]) -> StateGiver:
        return Giver(links, tracked, WorldStop(stop, self._world), part)

    def taker(
        self, links: Sequence[Link], tracked: Tracked, stop: Stop, others: Sequence[Sequence[Link]]
    ) -> StateTaker:
        return Taker(links, tracked, stop, others, world=self._world)

    def give_copy(self, links: Sequence[Link], copy: Copy, stop: Stop) -> int:
        return give_copy(links, copy, WorldStop(stop, self._world))

    def send_copy(self, links: Sequence[Link], copy: Copy, keep: int, stop: Stop) -> int:
        return send_copy(links, copy, keep, WorldStop(stop, self._world))

    def copies_taker(self, links: Sequence[Link], stop: Stop) -> CopiesTaker:
        return CopyTaker(links, WorldStop(stop, self._world))


SOCKETS: StateWire = SocketWire()
