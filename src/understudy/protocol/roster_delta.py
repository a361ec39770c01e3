"""Rosters for agents, as differences. A roster names every worker of the job and goes to every agent, so the bytes of
whole rosters would grow with the square of the number of machines. Each agent gets one whole roster, and from then on
the difference from the last one. Equal rosters for many agents are encoded and compressed once.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict

import msgspec

from understudy.protocol.messages import Prepare, Resume
from understudy.protocol.roster import Roster, WorkerAddress

from .frames import Order, Tell
from .framing import MAX_MESSAGE

_encoder = msgspec.msgpack.Encoder()
_LEVEL = 1
"""Compression level: names and addresses are much alike, and higher levels gain little."""
_KEPT = 8
"""Number of kept encodings: all agents get the same roster within a short time."""


class RosterDelta(msgspec.Struct, frozen=True):
    """The difference between a roster and the one before it."""

    base: int
    """Generation of the roster before."""
    generation: int
    fresh: bool
    seats: tuple[tuple[int, str | None], ...]
    workers: tuple[WorkerAddress, ...]
    since: tuple[tuple[int, int], ...]


class RosterUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole roster or a difference."""

    whole: Roster | None = None
    delta: RosterDelta | None = None


_decoder = msgspec.msgpack.Decoder(RosterUpdate)


def difference(old: Roster, new: Roster) -> RosterDelta | None:
    """The difference between two rosters; None if the new one has to be sent whole."""
    if old.cells != new.cells:
        return None
    known = {worker.uid: worker for worker in old.workers}
    found = RosterDelta(
        old.generation,
        new.generation,
        new.fresh,
        tuple((role, uid) for role, (uid, was) in enumerate(zip(new.seats, old.seats, strict=True)) if uid != was),
        tuple(worker for worker in new.workers if known.get(worker.uid) != worker),
        tuple((role, at) for role, (at, was) in enumerate(zip(new.since, old.since, strict=True)) if at != was),
    )
    return found if applied(old, found) == new else None


def applied(old: Roster, delta: RosterDelta) -> Roster:
    """Apply a difference to a roster."""
    if old.generation != delta.base:
        raise msgspec.ValidationError(
            f"the roster of generation {delta.generation} is a difference from generation "
            f"{delta.base}, but the last one known here is {old.generation}"
        )
    seats, since = list(old.seats), list(old.since)
    for role, uid in delta.seats:
        seats[role] = uid
    for role, at in delta.since:
        since[role] = at
    workers = {worker.uid: worker for worker in (*old.workers, *delta.workers)}
    seated = set(seats)
    listed = tuple(worker for worker in workers.values() if worker.uid in seated)
    return Roster(delta.generation, tuple(seats), listed, old.cells, tuple(since), delta.fresh)


def roster_of(order: Order) -> Roster | None:
    """The roster in an order, if it has one."""
    return order.message.roster if isinstance(order, Tell) and isinstance(order.message, Prepare | Resume) else None


def _with(order: Order, roster: Roster) -> Order:
    assert isinstance(order, Tell)
    assert isinstance(order.message, Prepare | Resume)
    return Tell(order.uid, msgspec.structs.replace(order.message, roster=roster))


class RosterEncoder:
    """The controller's side, for all of its connections."""

    def __init__(self) -> None:
        self._last: dict[str, Roster] = {}
        """Machine → the last roster that was sent to it."""
        self._encoded: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        """By generation of the base (0: none) and of the roster."""

    def connected(self, machine: str, generation: int) -> None:
        """An agent has connected and has the roster of this generation: later rosters may not have arrived."""
        last = self._last.get(machine)
        if last is not None and last.generation != generation:
            del self._last[machine]

    def encode(self, machine: str, order: Order) -> tuple[Order, bytes]:
        """The order without its roster, and the roster in its shortest form."""
        roster = roster_of(order)
        if roster is None:
            return order, b""
        update = self._update_for(self._last.get(machine), roster)
        self._last[machine] = roster
        placeholder = Roster(roster.generation, (None,), (), (0,), (roster.generation,))
        return _with(order, placeholder), update

    def _update_for(self, base: Roster | None, roster: Roster) -> bytes:
        key = (0 if base is None else base.generation, roster.generation)
        if key not in self._encoded:
            delta = None if base is None else difference(base, roster)
            update = RosterUpdate(whole=roster) if delta is None else RosterUpdate(delta=delta)
            self._encoded[key] = zlib.compress(_encoder.encode(update), _LEVEL)
            if len(self._encoded) > _KEPT:
                self._encoded.popitem(last=False)
        return self._encoded[key]


def _unpacked(update: bytes) -> bytes:
    """Decompress, up to the limit of a message."""
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(update, MAX_MESSAGE)
    except zlib.error as error:
        raise msgspec.DecodeError(f"an order's roster cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise msgspec.DecodeError("an order's roster is cut off, or larger than any can be")
    return found


class RosterDecoder:
    """The agent's side."""

    def __init__(self) -> None:
        self._last: Roster | None = None

    @property
    def generation(self) -> int:
        """Generation of the last roster; 0: none."""
        return 0 if self._last is None else self._last.generation

    def restore(self, order: Order, update: bytes) -> Order:
        """Put the roster back into an order."""
        if not update:
            return order
        given = _decoder.decode(_unpacked(update))
        if given.whole is not None:
            self._last = given.whole
        elif given.delta is not None and self._last is not None:
            self._last = applied(self._last, given.delta)
        else:
            raise msgspec.ValidationError("an order's roster follows one that was never sent")
        return _with(order, self._last)
