"""The state of a role from one worker's memory into another's, over links of their own.

The first link also carries frames of length-prefixed msgpack that describe the state. Parameters and optimizer state do
not change between two optimizer steps, so most of it can travel while a step computes:

    tensors  the tensors that a step does not change, during the step before the switch
    update   the gradients with which an optimizer is about to step; the taker makes the same step
    last     at the boundary: changed tensors, all state that is not a tensor, and a digest of the whole state

If a script changes state in a way that these frames do not cover, the digests differ and the whole state is sent once
more. If there was no step to overlap with, all frames come together at the boundary.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import msgspec
import torch

from understudy.comm.links.link import Link
from understudy.device import torch_private
from understudy.host.world import REAL, Thread, World
from understudy.protocol.framing import Framing, FramingError
from understudy.state.errors import StateError, StreamBroken
from understudy.state.inventory import Inventory, digest, grow, take_inventory
from understudy.state.kinds import Tracked, optimizers
from understudy.state.memory import Slot, gradient_of, is_dtensor, is_sparse, local_part
from understudy.state.optimizers import optimizer_parameters
from understudy.state.stream import WorldStop, give, take, wait_ready
from understudy.worker.redundancy import HandedRedundancy, Redundancy


class Tempo(msgspec.Struct, frozen=True):
    """The pace of training, from which the taker computes what the change has cost."""

    ended: float = 0.0
    """End of the last step, in seconds since the epoch."""
    before: float = 0.0
    """End of the step before."""
    usual: float = 0.0
    """Seconds of an undisturbed step."""


class TensorBatch(msgspec.Struct, frozen=True, tag="tensors"):
    """All tensors of the giver, and the numbers of those that follow."""

    slots: tuple[Slot, ...]
    send: tuple[int, ...]
    check: bool
    """Whether the streams carry digests. Early offers do not: a digest of the whole state comes at the end."""


class RoomReady(msgspec.Struct, frozen=True, tag="ready"):
    """The taker has memory for what was announced."""


class Update(msgspec.Struct, frozen=True, tag="update"):
    """An optimizer steps with the gradients that follow, under the hyper-parameters in `rest`."""

    optimizer: str
    send: tuple[int, ...]
    """Numbers of its parameters that have a gradient."""
    rest: bytes


class Last(msgspec.Struct, frozen=True, tag="last"):
    """The remaining state, and the step that comes next."""

    step: int
    send: tuple[int, ...]
    carried: tuple[int, ...]
    """Parameters with gradients that are carried over to the next step; these gradients follow the tensors."""
    zeros: tuple[int, ...]
    """Parameters with gradients that are zero."""
    rest: bytes
    tempo: Tempo
    check: bool
    """Whether a digest of the whole state follows."""
    gradients: tuple[Slot, ...] = ()
    """Shapes of the carried gradients, for a taker that has no parameters."""
    redundancy: HandedRedundancy | None = None
    """What the taker must know of the state of other roles; None: the state is a copy of an earlier step."""


class StateDigest(msgspec.Struct, frozen=True, tag="digest"):
    """The digest of the giver's whole state."""

    digest: str


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """The taker has everything, verified."""


class Differs(msgspec.Struct, frozen=True, tag="differs"):
    """The taker's digest differs: send the whole state."""


class KeepStep(msgspec.Struct, frozen=True, tag="keep"):
    """Sent to a backup before a copy: the step of the copy to keep until this one is settled."""

    step: int


Frame = TensorBatch | RoomReady | Update | Last | StateDigest | Taken | Differs | KeepStep
_frames: Framing[Frame] = Framing(Frame, "frame of a hand-over", limit=1 << 30)
Stop = Callable[[], bool]
_Kind = TypeVar("_Kind", bound=Frame)


class Arrival(msgspec.Struct, frozen=True):
    """State that a taker has received."""

    step: int
    bytes: int
    seconds: float
    tempo: Tempo
    again: bool
    """Whether the whole state was sent a second time."""
    redundancy: HandedRedundancy | None = None


def send(sock: socket.socket, frame: Frame, stop: Stop) -> None:
    """Send a frame. Raises StreamBroken if the link breaks or `stop()` becomes true."""
    data = memoryview(_frames.encode(frame))
    while data:
        _wait(sock, select.POLLOUT, stop)
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            continue
        except OSError as error:
            raise StreamBroken(f"the link for state broke: {error}") from None


def receive(sock: socket.socket, stop: Stop) -> Frame:
    """Receive a frame. Raises StreamBroken if the link breaks, carries something else, or `stop()` becomes true."""

    def some(count: int) -> bytes:
        while True:
            _wait(sock, select.POLLIN, stop)
            try:
                return sock.recv(min(count, 1 << 20))
            except BlockingIOError:
                continue

    try:
        return _frames.receive(some)
    except (OSError, FramingError) as error:
        raise StreamBroken(f"the link for state broke: {error}") from None


def _wait(sock: socket.socket, event: int, stop: Stop) -> None:
    while not stop():
        if wait_ready(sock, event, stop):
            return
    raise StreamBroken("the transfer was stopped")


def expect(sock: socket.socket, kind: type[_Kind], stop: Stop) -> _Kind:
    frame = receive(sock, stop)
    if not isinstance(frame, kind):
        raise StreamBroken(f"received {type(frame).__name__}, expected {kind.__name__}")
    return frame


def hand(
    sockets: Sequence[socket.socket], frame: Frame, tensors: Sequence[torch.Tensor], stop: Stop, *, check: bool
) -> int:
    """Announce tensors and send them once the taker has memory for them. Returns the number of bytes."""
    send(sockets[0], frame, stop)
    expect(sockets[0], RoomReady, stop)
    return give(sockets, tensors, stop=stop, check=check)


def portion(slots: Sequence[Slot], part: int, parts: int) -> range:
    """The tensors that one of several givers gives: consecutive ones, so that all give about as many bytes."""
    ends, total = [0], sum(slot.bytes for slot in slots)
    done = 0
    for number, slot in enumerate(slots):
        done += slot.bytes
        while len(ends) < parts and done * parts >= total * len(ends):
            ends.append(number + 1)
    ends += [len(slots)] * (parts + 1 - len(ends))
    return range(ends[part], ends[part + 1])


class Giver:
    """Gives the state of one role. Its methods are called in the order below; only `offer` may run beside a step."""

    def __init__(
        self,
        links: Sequence[Link],
        tracked: Tracked,
        stop: Stop,
        part: tuple[int, int] = (0, 1),
        *,
        role: int = -1,
        redundancy: Redundancy | None = None,
    ) -> None:
        """`redundancy`: knows the state of other roles than the giver's own; None: the role is the giver's."""
        self._sockets = [link.sock for link in links]
        self._tracked, self._redundancy, self._stop = tracked, redundancy, stop
        self._role, self._part = role, part
        self._versions: dict[tuple[int, int], int] = {}
        self._updated: set[str] = set()
        self.spoiled = True
        """Whether the whole state must be given at the boundary."""
        self.bytes = 0

    def offer(self, inventory: Inventory) -> None:
        """Give the tensors that no step changes before its vote."""
        changing = inventory.changing()
        early = [number for number in range(len(inventory.slots)) if number not in changing]
        tensors = [inventory.tensors[number] for number in early]
        self._versions = {_memory(tensor): torch_private.version(tensor) for tensor in tensors}
        self._early = inventory
        self._updated.clear()
        self._send_tensors(inventory, early, check=False)
        self.spoiled = False

    def update(self, optimizer: object) -> None:
        """Give the gradients with which an optimizer is about to step, so that the taker can make the same step."""
        found = [name for name, known in optimizers(self._tracked) if known is optimizer]
        if self.spoiled or len(found) != 1 or found[0] in self._updated:
            self.spoiled = True
            return
        known = [each.parameter for each in optimizer_parameters(found[0], optimizer)]  # type: ignore[arg-type]
        present = {number: (p, p.grad) for number, p in enumerate(known) if p.grad is not None}
        placed = (
            not is_dtensor(p) or getattr(grad, "placements", None) == p.placements for p, grad in present.values()
        )
        if not all(placed) or any(is_sparse(grad) for _, grad in present.values()):
            self.spoiled = True
            return
        self._updated.add(found[0])
        gradients = [local_part(grad, found[0]) for _, grad in present.values()]
        self._hand(Update(found[0], tuple(present), self._early.rest()), gradients, check=False)

    def finish(self, step: int, tempo: Tempo) -> int:
        """Give the remaining state at the boundary. Returns the number of bytes once the taker has verified it."""
        redundancy = self._redundancy
        if redundancy is None:
            inventory = take_inventory(self._tracked)
        else:
            inventory = redundancy.inventory_for(self._role, step)
        if not self.spoiled and inventory.slots == self._early.slots:
            self._send_last(inventory, self._changed(inventory), step, tempo, check=True)
            send(self._sockets[0], StateDigest(digest(inventory)), self._stop)
            answer = receive(self._sockets[0], self._stop)
            if isinstance(answer, Taken):
                return self.bytes
            if not isinstance(answer, Differs):
                raise StreamBroken(f"received {type(answer).__name__}, expected Taken or Differs")
        self._send_tensors(inventory, portion(inventory.slots, *self._part), check=True)
        if not self._part[0]:
            self._send_last(inventory, (), step, tempo, check=False)
        expect(self._sockets[0], Taken, self._stop)
        return self.bytes

    def _changed(self, inventory: Inventory) -> list[int]:
        """Tensors that have changed since the offer, except by an optimizer step that the taker makes, too."""
        driven = {
            _memory(local_part(place.parameter, place.name))
            for name, optimizer in optimizers(self._tracked)
            if name in self._updated
            for place in optimizer_parameters(name, optimizer)
        }
        prefixes = tuple(f"{name}[" for name in self._updated)
        return [
            number
            for number, (slot, tensor) in enumerate(zip(inventory.slots, inventory.tensors, strict=True))
            if not slot.name.startswith(prefixes)
            and _memory(tensor) not in driven
            and torch_private.version(tensor) != self._versions.get(_memory(tensor))
        ]

    def _send_tensors(self, inventory: Inventory, which: Sequence[int], *, check: bool) -> None:
        self._hand(
            TensorBatch(inventory.slots, tuple(which), check), [inventory.tensors[n] for n in which], check=check
        )

    def _send_last(self, inventory: Inventory, late: Sequence[int], step: int, tempo: Tempo, *, check: bool) -> None:
        carried, zeros = inventory.carried()
        last = Last(
            step,
            tuple(late),
            tuple(carried),
            zeros,
            inventory.rest(),
            tempo=tempo,
            check=check,
            redundancy=None if self._redundancy is None else self._redundancy.handed(),
        )
        self._hand(last, [*(inventory.tensors[number] for number in late), *carried.values()], check=True)

    def _hand(self, frame: Frame, tensors: list[torch.Tensor], *, check: bool) -> None:
        self.bytes += hand(self._sockets, frame, tensors, self._stop, check=check)


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """The place in memory, equal for all tensors over the same bytes."""
    return tensor.data_ptr(), tensor.numel()


class Taker:
    """Takes the state of one role into tracked objects. `links` bring the whole state or, if several workers give at
    once, the first part and everything that is not a tensor; each of `others` brings another part."""

    def __init__(
        self,
        links: Sequence[Link],
        tracked: Tracked,
        stop: Stop,
        others: Sequence[Sequence[Link]] = (),
        *,
        world: World = REAL,
    ) -> None:
        self._sockets = [link.sock for link in links]
        self._tracked, self._broken = tracked, False
        self._stop = WorldStop(lambda: self._broken or stop(), world)
        self._inventory: Inventory | None = None
        self._world, self._growing = world, world.condition()
        self._bytes = 0
        self._others = [self._take_beside([link.sock for link in each]) for each in others]

    def run(self, took: Callable[[Arrival], bool]) -> Arrival | None:
        """Receive the state and verify it. `took` gets what has arrived and returns whether it still counts; only then
        is it confirmed to the giver. Returns None if it does not count any more."""
        try:
            return self._run(took)
        finally:  # before the links are closed
            self._broken = True
            for thread, _ in self._others:
                thread.join()

    def _run(self, took: Callable[[Arrival], bool]) -> Arrival | None:
        first, again, start = self._sockets[0], False, 0.0
        while True:
            frame = receive(first, self._stop)
            start = start or self._world.monotonic()
            match frame:
                case TensorBatch(slots, which, check):
                    inventory = self._grow(slots)
                    self._take([inventory.tensors[number] for number in which], check)
                case Update(optimizer, which, rest):
                    self._update(optimizer, which, rest)
                case Last() as last:
                    for thread, size in self._others:
                        thread.join()
                        self._bytes += size.result()
                    self._others.clear()
                    if not self._last(last):
                        again = True
                        send(first, Differs(), self._stop)
                        continue
                    seconds = self._world.monotonic() - start
                    arrival = Arrival(last.step, self._bytes, seconds, last.tempo, again, last.redundancy)
                    if not took(arrival):
                        return None
                    send(first, Taken(), self._stop)
                    return arrival
                case _:
                    raise StreamBroken(f"received {type(frame).__name__}, expected state")

    def _grow(self, slots: Sequence[Slot]) -> Inventory:
        """Make memory for the state, once for all givers: they have the same tensors."""
        with self._growing:
            if self._inventory is None or self._inventory.slots != tuple(slots):
                self._inventory = grow(self._tracked, slots)
            return self._inventory

    def _take_beside(self, sockets: list[socket.socket]) -> tuple[Thread, Future[int]]:
        """Take another giver's part in a thread, which is to be joined before the number of bytes is read."""
        size: Future[int] = Future()

        def work() -> None:
            try:
                size.set_result(self._take_part(sockets))
            except Exception as error:
                size.set_exception(error)

        return self._world.start(work, "understudy taking"), size

    def _take_part(self, sockets: list[socket.socket]) -> int:
        goods = expect(sockets[0], TensorBatch, self._stop)
        inventory = self._grow(goods.slots)
        send(sockets[0], RoomReady(), self._stop)
        size = take(sockets, [inventory.tensors[number] for number in goods.send], stop=self._stop, check=goods.check)
        send(sockets[0], Taken(), self._stop)
        return size

    def _take(self, tensors: list[torch.Tensor], check: bool) -> None:
        send(self._sockets[0], RoomReady(), self._stop)
        self._bytes += take(self._sockets, tensors, stop=self._stop, check=check)

    def _update(self, name: str, which: Sequence[int], rest: bytes) -> None:
        assert self._inventory is not None
        optimizer = dict(optimizers(self._tracked)).get(name)
        if optimizer is None:
            raise StateError(f"{name}: the giver has an optimizer of this name, this worker has none")
        known = list(optimizer_parameters(name, optimizer))
        for number, place in enumerate(known):
            if number not in which:
                place.parameter.grad = None
        self._take([gradient_of(known[number].parameter, known[number].name) for number in which], check=False)
        self._inventory.restore_rest(rest)
        optimizer.step()

    def _last(self, last: Last) -> bool:
        """Take the remaining state. Returns whether the whole state equals the giver's."""
        assert self._inventory is not None
        inventory = self._inventory
        parameters = [parameter for _, parameter in inventory.parameters]
        for number, parameter in enumerate(parameters):
            if number not in last.carried and number not in last.zeros:
                parameter.grad = None
        tensors = [inventory.tensors[number] for number in last.send]
        gradients = {number: gradient_of(parameters[number], "a gradient") for number in (*last.carried, *last.zeros)}
        self._take([*tensors, *(gradients[number] for number in last.carried)], check=True)
        for number in last.zeros:
            gradients[number].zero_()
        inventory.restore_rest(last.rest)
        if not last.check:
            return True
        mine = digest(take_inventory(self._tracked))  # while the giver computes its own
        return mine == expect(self._sockets[0], StateDigest, self._stop).digest
