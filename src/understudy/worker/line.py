"""The line between a worker and its agent: length-prefixed msgpack over a Unix socket, nothing pickled."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from .messages import Aside, Heard, Inject, Said

_length = struct.Struct("<I")
MAX_MESSAGE = 1 << 26
_encoder = msgspec.msgpack.Encoder()
_heard = msgspec.msgpack.Decoder(Heard | Inject)
_said = msgspec.msgpack.Decoder(Said | Aside)


class LineBroken(ConnectionError):
    """The other side is gone, or does not speak the protocol."""


def encode(message: Heard | Inject | Said | Aside) -> bytes:
    body = _encoder.encode(message)
    return _length.pack(len(body)) + body


class Splitter:
    """Whole messages out of a stream of bytes, for the agent's side."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Said | Aside]:
        self._data += data
        messages = []
        while len(self._data) >= _length.size:
            (length,) = _length.unpack_from(self._data)
            if length > MAX_MESSAGE:
                raise LineBroken(f"a message of {length} bytes is too long")
            if len(self._data) < _length.size + length:
                break
            body = bytes(self._data[_length.size : _length.size + length])
            del self._data[: _length.size + length]
            try:
                messages.append(_said.decode(body))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise LineBroken(f"not a worker's message: {error}") from None
        return messages


class Line:
    """The worker's end. `hear` is called on a thread of the line's own, `lost` once when the agent is gone; not when
    this end is closed."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._lock = threading.Lock()
        self._closed = False

    def start(self, hear: Callable[[Heard | Inject], None], lost: Callable[[str], None]) -> None:
        def listen() -> None:
            try:
                while True:
                    (length,) = _length.unpack(self._exactly(_length.size))
                    if length > MAX_MESSAGE:
                        raise LineBroken(f"a message of {length} bytes is too long")
                    hear(_heard.decode(self._exactly(length)))
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                if not self._closed:
                    lost(str(error))

        threading.Thread(target=listen, name="understudy line", daemon=True).start()

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._sock.recv(count - len(data))
            if not part:
                raise LineBroken("the agent is gone")
            data += part
        return bytes(data)

    def say(self, message: Said | Aside) -> None:
        """Never fails: without an agent this process is about to end anyway."""
        with self._lock, suppress(OSError):
            self._sock.sendall(encode(message))

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
