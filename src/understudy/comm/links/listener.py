"""The listening sockets of a worker: accept connections, authenticate them and hand them on."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .handshake import LinkRefused, authenticate, send
from .wire import Hello, Refusal, WireError

log = logging.getLogger("understudy.comm")

MAX_HANDSHAKES = 1024
"""Connections that may be in their handshake at the same time."""

Welcome = Callable[[Hello, socket.socket], Awaitable[None]]


class Listener:
    """Listens on a TCP port and on a Unix socket without a name in the file system."""

    def __init__(self, name: str, secret: bytes, job: str, host: str, port: int, welcome: Welcome) -> None:
        self.name, self._secret, self._job, self._welcome = name, secret, job, welcome
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._tcp = socket.create_server((host, port), family=family, backlog=1024)
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.port: int = self._tcp.getsockname()[1]
        self._unix.bind("")  # the kernel picks a free name in the abstract namespace
        self.local: str = self._unix.getsockname()[1:].decode("ascii")
        self._unix.listen(1024)
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes = 0
        self._closed = False

    def start(self) -> None:
        for listening in (self._tcp, self._unix):
            listening.setblocking(False)
            self._watch(listening)

    def _watch(self, listening: socket.socket) -> None:
        if not self._closed:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("%s: cannot take a connection: %s", self.name, error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening)
            loop.call_later(0.1, self._watch, listening)
            return
        sock.setblocking(False)
        if self._handshakes >= MAX_HANDSHAKES:
            sock.close()
        else:
            self._keep(self._receive(sock, f"{address[0]}:{address[1]}" if address else "this machine"))

    async def _receive(self, sock: socket.socket, origin: str) -> None:
        self._handshakes += 1
        try:
            hello = await authenticate(sock, self._secret, self._job)
        except (OSError, WireError, LinkRefused, TimeoutError) as error:
            reason = "no greeting in time" if isinstance(error, TimeoutError) else error
            log.warning("%s: refused a connection from %s: %s", self.name, origin, reason)
            sock.close()
            return
        except BaseException:
            sock.close()
            raise
        finally:
            self._handshakes -= 1
        try:
            await self._welcome(hello, sock)
        except LinkRefused as error:
            log.warning("%s: refused a %s link from %s at %s: %s", self.name, hello.kind, hello.source, origin, error)
            with suppress(OSError):
                await send(sock, Refusal(str(error)))
            sock.close()
        except OSError as error:
            log.warning("%s: lost a %s link from %s: %s", self.name, hello.kind, hello.source, error)
            sock.close()
        except BaseException:
            sock.close()
            raise

    async def close(self) -> None:
        self._closed = True
        for listening in (self._tcp, self._unix):
            asyncio.get_running_loop().remove_reader(listening)
        await asyncio.sleep(0)  # a task that was made just now must begin, so that it closes its socket
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tcp.close()
        self._unix.close()
