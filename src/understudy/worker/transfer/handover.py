"""A role's state from one worker's memory into another's, over links of their own.

The first link also carries what is said about it: frames of length-prefixed msgpack. Parameters and optimizer state do
not change between two optimizer steps, so most of it can travel while a step computes:

    goods    the tensors that a step does not touch, during the step before the switch
    update   the gradients with which an optimizer is about to step; the taker makes the same step
    last     at the boundary: buffers, whatever else has changed, all that is no tensor, and a digest of everything

Where a script does something that this cannot follow, the digests differ, and everything is sent once more. Where there
was no step to overlap with, goods and last come together at the boundary.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import torch

from understudy.comm.links.link import Link
from understudy.host.world import REAL, World
from understudy.protocol.framing import Framing, FramingError
from understudy.state.errors import StateError, StreamBroken
from understudy.state.inventory import Inventory, digest, grow, take_inventory
from understudy.state.kinds import Tracked, optimizers
from understudy.state.memory import Slot, gradient_of, is_dtensor, local_part
from understudy.state.optimizers import optimizer_parameters
from understudy.state.stream import WorldStop, give, take, wait_ready


class Tempo(msgspec.Struct, frozen=True):
    """How fast training was, for whoever has to say what it lost."""

    ended: float = 0.0
    """When the last step ended."""
    before: float = 0.0
    """When the one before it ended."""
    usual: float = 0.0
    """Seconds of an undisturbed step."""


class Goods(msgspec.Struct, frozen=True, tag="goods"):
    """Everything the giver has, and which of it comes next."""

    slots: tuple[Slot, ...]
    send: tuple[int, ...]
    check: bool
    """Whether the streams are checked; what is offered early is not, for a digest of everything comes at the end."""


class RoomReady(msgspec.Struct, frozen=True, tag="ready"):
    """There is room."""


class Update(msgspec.Struct, frozen=True, tag="update"):
    """This optimizer steps now, with the gradients that come next, under these hyper-parameters."""

    optimizer: str
    send: tuple[int, ...]
    """Which of its parameters have a gradient."""
    rest: bytes


class Last(msgspec.Struct, frozen=True, tag="last"):
    """What has changed since, everything else, and the step that comes next."""

    step: int
    send: tuple[int, ...]
    carried: tuple[int, ...]
    """Parameters whose gradients are carried over to the next step; they come last."""
    zeros: tuple[int, ...]
    """Parameters whose gradients are there, and zero."""
    rest: bytes
    tempo: Tempo
    check: bool
    """Whether the digest of everything follows."""
    gradients: tuple[Slot, ...] = ()
    """What the carried gradients look like, where the taker may have no parameters to know it from."""


class Sum(msgspec.Struct, frozen=True, tag="sum"):
    """Of everything the giver has now."""

    digest: str


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    bytes: int


class Differs(msgspec.Struct, frozen=True, tag="differs"):
    """What has come does not have the digest of what was given: send everything."""


class KeepStep(msgspec.Struct, frozen=True, tag="keep"):
    """To a buddy, before a copy: the step of the one that must stay until this one is settled."""

    step: int


Frame = Goods | RoomReady | Update | Last | Sum | Taken | Differs | KeepStep
_frames: Framing[Frame] = Framing(Frame, "frame of a hand-over", limit=1 << 30)
Stop = Callable[[], bool]
_Kind = TypeVar("_Kind", bound=Frame)


class Arrival(msgspec.Struct, frozen=True):
    """What a taker has in its memory now."""

    step: int
    bytes: int
    seconds: float
    tempo: Tempo
    again: bool
    """Whether everything had to be sent a second time."""


def send(sock: socket.socket, frame: Frame, stop: Stop) -> None:
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
    """The next frame. Raises StreamBroken if the link breaks, carries something else, or `stop()` becomes true."""

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
    raise StreamBroken("it was stopped")


def expect(sock: socket.socket, kind: type[_Kind], stop: Stop) -> _Kind:
    frame = receive(sock, stop)
    if not isinstance(frame, kind):
        raise StreamBroken(f"{type(frame).__name__} where {kind.__name__} was due")
    return frame


def hand(
    sockets: Sequence[socket.socket], frame: Frame, tensors: Sequence[torch.Tensor], stop: Stop, *, check: bool
) -> int:
    """Say what comes, and give it once there is room; how many bytes it was."""
    send(sockets[0], frame, stop)
    expect(sockets[0], RoomReady, stop)
    return give(sockets, tensors, stop=stop, check=check)


def share(slots: Sequence[Slot], part: int, parts: int) -> range:
    """Which tensors one of several givers gives: neighbours, so that all give about as many bytes."""
    ends, total = [0], sum(slot.bytes for slot in slots)
    done = 0
    for number, slot in enumerate(slots):
        done += slot.bytes
        while len(ends) < parts and done * parts >= total * len(ends):
            ends.append(number + 1)
    ends += [len(slots)] * (parts + 1 - len(ends))
    return range(ends[part], ends[part + 1])


class Giver:
    """Gives the state of one role. Its methods are called in the order in which they stand here; `offer` may run beside
    a step, the others may not."""

    def __init__(self, links: Sequence[Link], tracked: Tracked, stop: Stop, part: tuple[int, int] = (0, 1)) -> None:
        self._sockets = [link.sock for link in links]
        self._tracked, self._stop, self._part = tracked, stop, part
        self._versions: dict[tuple[int, int], int] = {}
        self._updated: set[str] = set()
        self.spoiled = True
        """Whether everything must be given at the boundary."""
        self.bytes = 0

    @property
    def _line(self) -> socket.socket:
        return self._sockets[0]

    def offer(self, inventory: Inventory) -> None:
        """Give what no step touches before its vote."""
        changing = inventory.changing()
        early = [number for number in range(len(inventory.slots)) if number not in changing]
        self._versions = {_memory(inventory.tensors[number]): inventory.tensors[number]._version for number in early}
        self._early = inventory
        self._updated.clear()
        self._send_tensors(inventory, early, check=False)
        self.spoiled = False

    def update(self, optimizer: object) -> None:
        """An optimizer is about to step, for good: let the taker do the same."""
        found = [name for name, known in optimizers(self._tracked) if known is optimizer]
        if self.spoiled or len(found) != 1 or found[0] in self._updated:
            self.spoiled = True
            return
        every = [
            (number, place.parameter, place.parameter.grad)
            for number, place in enumerate(optimizer_parameters(found[0], optimizer))  # type: ignore[arg-type]
        ]
        present = [(number, parameter, grad) for number, parameter, grad in every if grad is not None]
        if any(is_dtensor(p) and getattr(g, "placements", None) != p.placements for _, p, g in present):
            self.spoiled = True
            return
        self._updated.add(found[0])
        numbers = tuple(number for number, _, _ in present)
        gradients = [local_part(grad, found[0]) for _, _, grad in present]
        self._hand(Update(found[0], numbers, self._early.rest()), gradients, check=False)

    def finish(self, step: int, tempo: Tempo) -> int:
        """At the boundary: returns when the taker has verified that it holds this state. How many bytes it took."""
        inventory = take_inventory(self._tracked)
        if not self.spoiled and inventory.slots == self._early.slots:
            self._send_last(inventory, self._changed(inventory), step, tempo, check=True)
            send(self._line, Sum(digest(inventory)), self._stop)
            answer = receive(self._line, self._stop)
            if isinstance(answer, Taken):
                return self.bytes
            if not isinstance(answer, Differs):
                raise StreamBroken(f"{type(answer).__name__} where an answer was due")
        self._send_tensors(inventory, share(inventory.slots, *self._part), check=True)
        if not self._part[0]:
            self._send_last(inventory, (), step, tempo, check=False)
        expect(self._line, Taken, self._stop)
        return self.bytes

    def _changed(self, inventory: Inventory) -> list[int]:
        """Which tensors have changed since they were offered, but not by an optimizer whose step the taker makes."""
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
            and tensor._version != self._versions.get(_memory(tensor))
        ]

    def _send_tensors(self, inventory: Inventory, which: Sequence[int], *, check: bool) -> None:
        self._hand(Goods(inventory.slots, tuple(which), check), [inventory.tensors[n] for n in which], check=check)

    def _send_last(self, inventory: Inventory, late: Sequence[int], step: int, tempo: Tempo, *, check: bool) -> None:
        carried, zeros = inventory.carried()
        last = Last(step, tuple(late), tuple(carried), zeros, inventory.rest(), tempo, check)
        self._hand(last, [*(inventory.tensors[number] for number in late), *carried.values()], check=True)

    def _hand(self, frame: Frame, tensors: list[torch.Tensor], *, check: bool) -> None:
        self.bytes += hand(self._sockets, frame, tensors, self._stop, check=check)


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Where it is: the same for all tensors that look at the same bytes."""
    return tensor.data_ptr(), tensor.numel()


class _Beside:
    """Work in a thread of its own, from now on."""

    def __init__(self, work: Callable[[], int], name: str, world: World) -> None:
        self._work = work
        self._result: int | None = None
        self._error: Exception | None = None
        self._thread = world.start(self._do, name)

    def _do(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:
            self._error = error

    def wait(self) -> None:
        self._thread.join()

    def result(self) -> int:
        self.wait()
        if self._result is None:
            assert self._error is not None
            raise self._error
        return self._result


class Taker:
    """Takes the state of one role into what is tracked. Over `links` comes everything, or, where several give at once,
    the first part and all that is no tensor; over each of `others` another part."""

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
        self._others = [
            _Beside(partial(self._take_part, [link.sock for link in each]), "understudy part", world) for each in others
        ]

    def run(self, took: Callable[[int], bool]) -> Arrival | None:
        """Until everything is there and verified. `took` is told the step and says whether it still counts; only then
        does the giver hear that it was taken."""
        try:
            return self._run(took)
        finally:  # before anybody closes the links
            self._broken = True
            for other in self._others:
                other.wait()

    def _run(self, took: Callable[[int], bool]) -> Arrival | None:
        line, again, start = self._sockets[0], False, 0.0
        while True:
            frame = receive(line, self._stop)
            start = start or self._world.monotonic()
            match frame:
                case Goods(slots, which, check):
                    inventory = self._grow(slots)
                    self._take([inventory.tensors[number] for number in which], check)
                case Update(optimizer, which, rest):
                    self._update(optimizer, which, rest)
                case Last() as last:
                    self._bytes += sum(other.result() for other in self._others)
                    self._others.clear()
                    if not self._last(last):
                        again = True
                        send(line, Differs(), self._stop)
                    elif took(last.step):
                        send(line, Taken(self._bytes), self._stop)
                        return Arrival(last.step, self._bytes, self._world.monotonic() - start, last.tempo, again)
                    else:
                        return None
                case _:
                    raise StreamBroken(f"{type(frame).__name__} where state was due")

    def _grow(self, slots: Sequence[Slot]) -> Inventory:
        """All givers have the same; the first that comes makes room."""
        with self._growing:
            if self._inventory is None or self._inventory.slots != tuple(slots):
                self._inventory = grow(self._tracked, slots)
            return self._inventory

    def _take_part(self, sockets: list[socket.socket]) -> int:
        goods = expect(sockets[0], Goods, self._stop)
        inventory = self._grow(goods.slots)
        send(sockets[0], RoomReady(), self._stop)
        size = take(sockets, [inventory.tensors[number] for number in goods.send], stop=self._stop, check=goods.check)
        send(sockets[0], Taken(size), self._stop)
        return size

    def _take(self, tensors: list[torch.Tensor], check: bool) -> None:
        send(self._sockets[0], RoomReady(), self._stop)
        self._bytes += take(self._sockets, tensors, stop=self._stop, check=check)

    def _update(self, name: str, which: Sequence[int], rest: bytes) -> None:
        assert self._inventory is not None
        optimizer = dict(optimizers(self._tracked)).get(name)
        if optimizer is None:
            raise StateError(f"{name}: the giver has an optimizer of this name, this worker has not")
        known = list(optimizer_parameters(name, optimizer))
        for number, place in enumerate(known):
            if number not in which:
                place.parameter.grad = None
        self._take([gradient_of(known[number].parameter, known[number].name) for number in which], check=False)
        self._inventory.restore_rest(rest)
        optimizer.step()

    def _last(self, last: Last) -> bool:
        """Whether everything is as the giver has it."""
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
        return mine == expect(self._sockets[0], Sum, self._stop).digest
