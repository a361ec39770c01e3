"""Rosters on their way to agents. A roster names every worker of the job, and every agent is told every one: whole
rosters would be as many bytes as the square of the machines. So each agent is sent a whole one once, and from then on
what differs from the last one that it has. What goes to all agents alike is encoded, and packed, once.
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
"""Of packing: names and addresses are much alike, and nobody should wait for the rest."""
_KEPT = 8
"""Encodings: all agents are told the same roster within a short time, most of them after the same one."""


class Succession(msgspec.Struct, frozen=True):
    """What a roster has that the one before it had not."""

    base: int
    """Generation of the one before."""
    generation: int
    fresh: bool
    seats: tuple[tuple[int, str | None], ...]
    workers: tuple[WorkerAddress, ...]
    since: tuple[tuple[int, int], ...]


class Seating(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of both."""

    whole: Roster | None = None
    succession: Succession | None = None


_decoder = msgspec.msgpack.Decoder(Seating)


def differ(old: Roster, new: Roster) -> Succession | None:
    """What leads from one to the other; None where only the whole does."""
    if old.cells != new.cells:
        return None
    known = {worker.uid: worker for worker in old.workers}
    found = Succession(
        old.generation,
        new.generation,
        new.fresh,
        tuple((role, uid) for role, (uid, was) in enumerate(zip(new.seats, old.seats, strict=True)) if uid != was),
        tuple(worker for worker in new.workers if known.get(worker.uid) != worker),
        tuple((role, at) for role, (at, was) in enumerate(zip(new.since, old.since, strict=True)) if at != was),
    )
    return found if follow(old, found) == new else None


def follow(old: Roster, succession: Succession) -> Roster:
    """The roster that comes of it."""
    if old.generation != succession.base:
        raise msgspec.ValidationError(
            f"the roster of generation {succession.generation} is told by what differs from generation "
            f"{succession.base}, and the last one known here is {old.generation}"
        )
    seats, since = list(old.seats), list(old.since)
    for role, uid in succession.seats:
        seats[role] = uid
    for role, at in succession.since:
        since[role] = at
    workers = {worker.uid: worker for worker in (*old.workers, *succession.workers)}
    seated = set(seats)
    listed = tuple(worker for worker in workers.values() if worker.uid in seated)
    return Roster(succession.generation, tuple(seats), listed, old.cells, tuple(since), succession.fresh)


def roster_of(order: Order) -> Roster | None:
    """The one that an order is about."""
    return order.message.roster if isinstance(order, Tell) and isinstance(order.message, Prepare | Resume) else None


def _with(order: Order, roster: Roster) -> Order:
    assert isinstance(order, Tell)
    assert isinstance(order.message, Prepare | Resume)
    return Tell(order.uid, msgspec.structs.replace(order.message, roster=roster))


class Shortener:
    """The controller's side, for all its connections."""

    def __init__(self) -> None:
        self._last: dict[str, Roster] = {}
        """Machine → the roster that it was sent last."""
        self._encoded: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        """By generation, of the base (0: none) and of what follows."""

    def connected(self, machine: str, generation: int) -> None:
        """An agent has come, or come back, with the roster of this generation: what was sent may not have arrived."""
        last = self._last.get(machine)
        if last is not None and last.generation != generation:
            del self._last[machine]

    def shorten(self, machine: str, order: Order) -> tuple[Order, bytes]:
        """The order without its roster, which follows in its shortest form."""
        roster = roster_of(order)
        if roster is None:
            return order, b""
        seating = self._seating(self._last.get(machine), roster)
        self._last[machine] = roster
        return _with(order, _nobody(roster.generation)), seating

    def _seating(self, base: Roster | None, roster: Roster) -> bytes:
        key = (0 if base is None else base.generation, roster.generation)
        if key not in self._encoded:
            succession = None if base is None else differ(base, roster)
            seating = Seating(whole=roster) if succession is None else Seating(succession=succession)
            self._encoded[key] = zlib.compress(_encoder.encode(seating), _LEVEL)
            if len(self._encoded) > _KEPT:
                self._encoded.popitem(last=False)
        return self._encoded[key]


def _nobody(generation: int) -> Roster:
    """Stands in an order for a roster that comes beside it."""
    return Roster(generation, (None,), (), (0,), (generation,))


def _unpacked(seating: bytes) -> bytes:
    """Never more than a message may be, whatever was sent."""
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(seating, MAX_MESSAGE)
    except zlib.error as error:
        raise msgspec.DecodeError(f"an order's roster cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise msgspec.DecodeError("an order's roster is cut off, or larger than any can be")
    return found


class Seats:
    """The agent's side."""

    def __init__(self) -> None:
        self._last: Roster | None = None

    @property
    def generation(self) -> int:
        """Of the last roster; 0: none."""
        return 0 if self._last is None else self._last.generation

    def seated(self, order: Order, seating: bytes) -> Order:
        """The order with its roster."""
        if not seating:
            return order
        given = _decoder.decode(_unpacked(seating))
        if given.whole is not None:
            self._last = given.whole
        elif given.succession is not None and self._last is not None:
            self._last = follow(self._last, given.succession)
        else:
            raise msgspec.ValidationError("an order's roster follows one that was never sent")
        return _with(order, self._last)
