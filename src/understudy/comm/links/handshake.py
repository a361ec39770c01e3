"""Opening a link: both workers prove that they know the job's secret, which itself never travels."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from understudy.comm.topology import LinkId
from understudy.host.tasks import BackgroundTasks
from understudy.protocol.framing import FramingError
from understudy.protocol.roster import WorkerAddress

from . import wire
from .wire import Accept, Challenge, Farewell, Hello, Message, Refusal, Response, WireError

log = logging.getLogger("understudy.comm")

LIMIT_S = 5.0
"""Seconds that one message of a handshake may take."""
MAX_HANDSHAKES = 1024
"""Connections that may be in their handshake at the same time."""
Welcome = Callable[[Hello, socket.socket], Awaitable[None]]
"""Takes an authenticated connection."""


class LinkRefused(Exception):
    """A link is refused: by the other worker, or by this one because the other does not know the secret."""


async def send(sock: socket.socket, message: Message) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, wire.MESSAGES.encode(message))


async def receive(sock: socket.socket) -> Message:
    loop = asyncio.get_running_loop()
    try:
        return await wire.MESSAGES.receive_async(lambda count: loop.sock_recv(sock, count))
    except FramingError as error:
        raise WireError(f"not an Understudy message: {error}") from None


async def connect(worker: WorkerAddress, *, local: bool) -> socket.socket:
    """A connected socket: within a machine through its Unix socket, otherwise TCP."""
    if local and worker.local:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: object = "\0" + worker.local
    else:
        sock = socket.socket(socket.AF_INET6 if ":" in worker.host else socket.AF_INET, socket.SOCK_STREAM)
        address = (worker.host, worker.port)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)  # type: ignore[arg-type]
    except BaseException:
        sock.close()
        raise
    return sock


async def introduce(
    sock: socket.socket, secret: bytes, job: str, generation: int, link: LinkId, *, patience: float
) -> None:
    """The dialling side of a handshake. Returns once the other side has taken the link, for which it has `patience`
    seconds."""
    hello = Hello(wire.MAGIC, job, generation, link, wire.nonce())
    async with asyncio.timeout(LIMIT_S):
        await send(sock, hello)
        challenge = await receive(sock)
        if isinstance(challenge, Refusal):
            raise LinkRefused(challenge.reason)
        if not isinstance(challenge, Challenge):
            raise WireError(f"{type(challenge).__name__} instead of a challenge")
        if not wire.proven(secret, "server", hello, challenge.nonce, challenge.proof):
            await send(sock, Refusal("the secrets differ"))
            raise LinkRefused("it does not know this job's secret")
        await send(sock, Response(wire.prove(secret, "client", hello, challenge.nonce)))
    try:
        async with asyncio.timeout(patience):
            verdict = await receive(sock)
    except BaseException:
        with suppress(OSError):  # it may have been taken just now: giving it up is no death
            sock.send(wire.MESSAGES.encode(Farewell()))
        raise
    if isinstance(verdict, Refusal):
        raise LinkRefused(verdict.reason)
    if not isinstance(verdict, Accept):
        raise WireError(f"{type(verdict).__name__} instead of a verdict")


async def authenticate(sock: socket.socket, secret: bytes, job: str) -> Hello:
    """The accepting side of a handshake, until the other worker is known. Raises with the reason otherwise."""
    async with asyncio.timeout(LIMIT_S):
        hello = await receive(sock)
        if not isinstance(hello, Hello) or hello.magic != wire.MAGIC:
            raise WireError("not an Understudy greeting")
        nonce = wire.nonce()
        await send(sock, Challenge(nonce, wire.prove(secret, "server", hello, nonce)))
        response = await receive(sock)
    if isinstance(response, Refusal):
        raise LinkRefused(f"wrong secret ({response.reason})")
    if not isinstance(response, Response) or not wire.proven(secret, "client", hello, nonce, response.proof):
        await send(sock, Refusal("wrong secret"))
        raise LinkRefused("wrong secret")
    if hello.job != job:
        await send(sock, Refusal(f"this is job {job}, not {hello.job}"))
        raise LinkRefused(f"it is of job {hello.job}")
    return hello


class Listener:
    """Listens on a TCP port and on a Unix socket without a name in the file system."""

    def __init__(self, name: str, secret: bytes, job: str, host: str, port: int) -> None:
        self.name, self._secret, self._job = name, secret, job
        self._welcome: Welcome | None = None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._tcp = socket.create_server((host, port), family=family, backlog=1024)
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.port: int = self._tcp.getsockname()[1]
        self._unix.bind("")  # the kernel picks a free name in the abstract namespace
        self.local: str = self._unix.getsockname()[1:].decode("ascii")
        self._unix.listen(1024)
        self._tasks = BackgroundTasks()
        self._handshakes = 0
        self._closed = False

    async def start(self, welcome: Welcome) -> None:
        """Accept connections from now on, and call `welcome` with each that is authenticated."""
        self._welcome = welcome
        for listening in (self._tcp, self._unix):
            listening.setblocking(False)
            self._watch(listening)

    def _watch(self, listening: socket.socket) -> None:
        if not self._closed:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

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
            self._tasks.start(self._receive(sock, f"{address[0]}:{address[1]}" if address else "this machine"))

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
        link = hello.link
        assert self._welcome is not None
        try:
            await self._welcome(hello, sock)
        except LinkRefused as error:
            log.warning("%s: refused a %s link from %s at %s: %s", self.name, link.kind, link.source, origin, error)
            with suppress(OSError):
                await send(sock, Refusal(str(error)))
            sock.close()
        except OSError as error:
            log.warning("%s: lost a %s link from %s: %s", self.name, link.kind, link.source, error)
            sock.close()
        except BaseException:
            sock.close()
            raise

    async def close(self) -> None:
        self._closed = True
        for listening in (self._tcp, self._unix):
            asyncio.get_running_loop().remove_reader(listening)
        await asyncio.sleep(0)  # a task that was made just now must begin, so that it closes its socket
        await self._tasks.cancel()
        self._tcp.close()
        self._unix.close()
