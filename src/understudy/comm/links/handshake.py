"""Opening a link: both workers prove that they know the job's secret, which itself never travels."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from understudy.comm.topology import LinkId
from understudy.protocol.framing import FramingError
from understudy.protocol.roster import WorkerAddress

from . import wire
from .wire import Accept, Challenge, Farewell, Hello, Message, Refusal, Response, WireError

LIMIT_S = 5.0
"""Seconds that one message of a handshake may take."""


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
    hello = Hello(
        magic=wire.MAGIC,
        job=job,
        generation=generation,
        kind=link.kind,
        group=link.group,
        rail=link.rail,
        source=link.source,
        target=link.target,
        nonce=wire.nonce(),
    )
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
