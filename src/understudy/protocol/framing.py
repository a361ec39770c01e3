"""Length-prefixed msgpack: how typed messages travel over every stream of bytes. Nothing is ever unpickled."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

MAX_MESSAGE = 1 << 26
"""Bytes of the longest message, unless a framing has a limit of its own."""

_length = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
T = TypeVar("T")


class FramingError(ValueError):
    """Received bytes are not a message of this framing, or a message is too long."""


class Framing(Generic[T]):
    """Messages of one union of types, each behind its length.

    `what` names such a message in errors. A longer message than `limit` is refused on both sides.
    """

    def __init__(self, types: Any, what: str = "message", *, limit: int = MAX_MESSAGE) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(types)
        self._what, self._limit = what, limit

    def encode(self, message: T) -> bytes:
        body = _encoder.encode(message)
        return _length.pack(self._checked(len(body))) + body

    def decode(self, body: bytes) -> T:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FramingError(f"not a {self._what}: {error}") from None

    def receive(self, receive: Callable[[int], bytes]) -> T:
        """The next message. `receive(n)` returns 1 to n bytes, or none at the end of the stream."""
        return self.decode(exactly(receive, self._length(exactly(receive, _length.size))))

    async def receive_async(self, receive: Callable[[int], Awaitable[bytes]]) -> T:
        """`receive` for an awaitable source of bytes."""
        length = self._length(await _exactly_async(receive, _length.size))
        return self.decode(await _exactly_async(receive, length))

    def split(self, data: bytearray) -> Iterator[T]:
        """The whole messages at the start of `data`, which are removed from it."""
        while len(data) >= _length.size:
            end = _length.size + self._length(data[: _length.size])
            if len(data) < end:
                return
            body = bytes(data[_length.size : end])
            del data[:end]
            yield self.decode(body)

    def _length(self, prefix: bytes | bytearray) -> int:
        return self._checked(int(_length.unpack(prefix)[0]))

    def _checked(self, length: int) -> int:
        if length > self._limit:
            raise FramingError(f"a {self._what} of {length} bytes is too long; the limit is {self._limit}")
        return length


def exactly(receive: Callable[[int], bytes], count: int) -> bytes:
    """`count` bytes from `receive`. Raises ConnectionResetError if the stream ends before."""
    data = bytearray()
    while len(data) < count:
        data += _some(receive(count - len(data)), data)
    return bytes(data)


async def _exactly_async(receive: Callable[[int], Awaitable[bytes]], count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        data += _some(await receive(count - len(data)), data)
    return bytes(data)


def _some(part: bytes, before: bytearray) -> bytes:
    if not part:
        raise ConnectionResetError("closed in the middle of a message" if before else "closed")
    return part
