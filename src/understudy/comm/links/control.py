"""Control links, along which the news of a failure spreads."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from . import wire
from .handshake import receive
from .wire import Farewell, Message, WireError


class ControlLink:
    """A link for messages instead of tensors. Calls `heard` for each message, `lost` if it ends without a farewell."""

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        heard: Callable[[ControlLink, Message], None],
        lost: Callable[[ControlLink, str], None],
    ) -> None:
        self.sock, self.peer, self.alive = sock, peer, True
        self._heard, self._lost = heard, lost
        self._outbox: list[bytes] = []
        self._reader = asyncio.ensure_future(self._read())
        self._writer: asyncio.Future[None] | None = None

    def send(self, message: Message) -> None:
        """Queue a message; call on the event loop."""
        self._outbox.append(wire.MESSAGES.encode(message))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while self._outbox:
                await loop.sock_sendall(self.sock, self._outbox.pop(0))

    async def _read(self) -> None:
        try:
            while True:
                message = await receive(self.sock)
                self._heard(self, message)
                if isinstance(message, Farewell):
                    self.alive = False
                    return
        except (OSError, WireError) as error:
            if self.alive:
                self.alive = False
                self._lost(self, str(error))
        finally:
            if self._writer is not None:
                self._writer.cancel()
            self.sock.close()

    async def close(self) -> None:
        if self.alive:
            self.alive = False
            self.send(Farewell())
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=1.0)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        self.sock.close()
