"""A role's state from one worker's memory into another's, over links of their own.

The first link also carries what is said about it: frames of length-prefixed msgpack. The giver says what it has, the
taker makes room, the bytes flow on all links, and the taker answers once everything is verified.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

import msgspec

from understudy.comm.link import Link
from understudy.state.digest import digest
from understudy.state.errors import StreamBroken
from understudy.state.grow import grow
from understudy.state.inventory import Inventory, Slot, take_inventory
from understudy.state.stream import give, take
from understudy.state.tracked import Tracked

_length = struct.Struct("<I")
_MAX = 1 << 30
_LOOK_MS = 50


class Tempo(msgspec.Struct, frozen=True):
    """How fast training was, for whoever has to say what it lost."""

    ended: float = 0.0
    """When the last step ended."""
    before: float = 0.0
    """When the one before it ended."""
    median: float = 0.0


class Goods(msgspec.Struct, frozen=True, tag="goods"):
    """The tensors that come next, in this order."""

    slots: tuple[Slot, ...]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """There is room."""


class Last(msgspec.Struct, frozen=True, tag="last"):
    """Everything else, and the step that comes next."""

    step: int
    rest: bytes
    tempo: Tempo
    digest: str = ""


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    bytes: int


Frame = Goods | Ready | Last | Taken
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
Stop = Callable[[], bool]


class Arrival(msgspec.Struct, frozen=True):
    """What a taker has in its memory now."""

    step: int
    bytes: int
    seconds: float
    tempo: Tempo


def _send(sock: socket.socket, frame: Frame, stop: Stop) -> None:
    body = _encoder.encode(frame)
    data = memoryview(_length.pack(len(body)) + body)
    while data:
        _wait(sock, select.POLLOUT, stop)
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            continue
        except OSError as error:
            raise StreamBroken(f"the link for state broke: {error}") from None


def _receive(sock: socket.socket, stop: Stop) -> Frame:
    (length,) = _length.unpack(_exactly(sock, _length.size, stop))
    if length > _MAX:
        raise StreamBroken(f"a frame of {length} bytes on a link for state")
    try:
        frame: Frame = _decoder.decode(_exactly(sock, length, stop))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StreamBroken(f"not a frame: {error}") from None
    return frame


def _exactly(sock: socket.socket, count: int, stop: Stop) -> bytes:
    data = bytearray()
    while len(data) < count:
        _wait(sock, select.POLLIN, stop)
        try:
            part = sock.recv(min(count - len(data), 1 << 20))
        except BlockingIOError:
            continue
        except OSError as error:
            raise StreamBroken(f"the link for state broke: {error}") from None
        if not part:
            raise StreamBroken("the other side has closed the link for state")
        data += part
    return bytes(data)


def _wait(sock: socket.socket, event: int, stop: Stop) -> None:
    poller = select.poll()
    poller.register(sock, event)
    while not stop():
        if poller.poll(_LOOK_MS):
            return
    raise StreamBroken("it was stopped")


def give_state(links: Sequence[Link], inventory: Inventory, step: int, tempo: Tempo, stop: Stop) -> int:
    """Returns when the taker has verified that it holds this state; or raises StreamBroken. How many bytes."""
    sockets = [link.sock for link in links]
    line = sockets[0]
    _send(line, Goods(inventory.slots), stop)
    _expect(line, Ready, stop)
    count = give(sockets, inventory.tensors, stop=stop)
    _send(line, Last(step, inventory.rest(), tempo), stop)
    _expect(line, Taken, stop)
    return count


def take_state(links: Sequence[Link], tracked: Tracked, stop: Stop, took: Callable[[int], bool]) -> Arrival | None:
    """Fill what is tracked with the giver's state. `took` is told the step and says whether it still counts; only then
    does the giver hear that it was taken."""
    start = time.perf_counter()
    sockets = [link.sock for link in links]
    line = sockets[0]
    goods = _receive(line, stop)
    if not isinstance(goods, Goods):
        raise StreamBroken(f"{type(goods).__name__} where goods were due")
    inventory = grow(tracked, goods.slots)
    _send(line, Ready(), stop)
    count = take(sockets, inventory.tensors, stop=stop)
    last = _receive(line, stop)
    if not isinstance(last, Last):
        raise StreamBroken(f"{type(last).__name__} where the rest was due")
    inventory.restore_rest(last.rest)
    if last.digest and digest(take_inventory(tracked)) != last.digest:
        raise StreamBroken("what has come is not what was given")
    if not took(last.step):
        return None
    _send(line, Taken(count), stop)
    return Arrival(last.step, count, time.perf_counter() - start, last.tempo)


def _expect(sock: socket.socket, kind: type[Frame], stop: Stop) -> None:
    frame = _receive(sock, stop)
    if not isinstance(frame, kind):
        raise StreamBroken(f"{type(frame).__name__} where {kind.__name__} was due")
