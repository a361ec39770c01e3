"""The place where a worker that dials a link and the worker that expects the link meet, in either order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from understudy.comm.faults import LinkFailed
from understudy.comm.native.arena import Arena
from understudy.comm.topology import LinkId
from understudy.protocol.roster import Roster

from .handshake import LinkRefused, connect, introduce, receive, send
from .io import IoLoop
from .link import Link
from .wire import Accept, Answer, Hello, WireError

EXACT = ("control", "ring", "tree")
"""Kinds of which both ends know that the link is due; of other kinds only the dialler knows."""


class Rendezvous:
    """The services of a fabric to its transports. All methods but `background` run on the event loop."""

    def __init__(
        self,
        uid: str,
        machine: str,
        job: str,
        secret: bytes,
        *,
        limit: float,
        setup_limit: float,
        slot_bytes: int,
        io: IoLoop,
    ) -> None:
        self.uid, self.limit, self.setup_limit, self.slot_bytes = uid, limit, setup_limit, slot_bytes
        self._machine, self._job, self._secret, self._io = machine, job, secret, io
        self._open: dict[tuple[int, LinkId | tuple[str, str]], asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a coroutine from any thread."""
        self._io.soon(self.keep, work)

    def keep(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a coroutine on the event loop, and keep it until it ends."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, over: Callable[[int], bool]) -> None:
        """Refuse all dials of generations that are over."""
        for key in [key for key in self._open if over(key[0])]:
            self._open.pop(key).cancel()

    async def close(self) -> None:
        self.end(lambda _: True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _meeting(self, generation: int, what: LinkId | tuple[str, str]) -> asyncio.Future[Any]:
        key = (generation, what)
        if key not in self._open:
            self._open[key] = asyncio.get_running_loop().create_future()
        return self._open[key]

    async def link(self, roster: Roster, link: LinkId) -> Link:
        peer = link.peer(self.uid)
        who = roster.names(peer)
        try:
            if link.source == self.uid:
                sock = await self._dial(roster, link, peer)
            else:
                waiting: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
                self._meeting(roster.generation, link).set_result(waiting)
                try:
                    async with asyncio.timeout(self.setup_limit):
                        sock = await waiting
                except BaseException:
                    if waiting.done() and not waiting.cancelled():
                        waiting.result().close()
                    raise
                finally:
                    self._open.pop((roster.generation, link), None)
        except (OSError, WireError, LinkRefused) as error:
            reason = "time limit" if isinstance(error, TimeoutError) else error
            raise LinkFailed(f"{link.kind} link with {who}: {reason}") from None
        return Link(sock, link, peer, who)

    async def _dial(self, roster: Roster, link: LinkId, peer: str) -> socket.socket:
        worker = roster.worker(peer)
        assert worker is not None
        sock = await connect(worker, local=worker.machine == self._machine)
        try:
            await introduce(sock, self._secret, self._job, roster.generation, link, patience=self.setup_limit)
        except BaseException:
            sock.close()
            raise
        return sock

    def offer(self, generation: int, kind: str, group: str, thing: Any) -> None:
        meeting = self._meeting(generation, (kind, group))
        if not meeting.done():
            meeting.set_result(thing)

    async def fetch_arena(self, roster: Roster, group: str, provider: str) -> int:
        link = LinkId("arena", group, 0, self.uid, provider)
        try:
            sock = await self._dial(roster, link, provider)
        except (OSError, WireError, LinkRefused) as error:
            raise LinkFailed(f"arena of {group} from {roster.names(provider)}: {error}") from None
        with sock:
            readable, loop = asyncio.Event(), asyncio.get_running_loop()
            loop.add_reader(sock, readable.set)
            try:
                async with asyncio.timeout(self.setup_limit):
                    await readable.wait()
            finally:
                loop.remove_reader(sock)
            _, fds, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not fds:
            raise LinkFailed(f"arena of {group} from {roster.names(provider)}: it sent none")
        return fds[0]

    async def ask(self, roster: Roster, kind: str, group: str, of: str) -> str:
        if of == self.uid:
            return str(await self._meeting(roster.generation, (kind, group)))
        link = LinkId(kind, group, 0, self.uid, of)  # type: ignore[arg-type]
        try:
            with await self._dial(roster, link, of) as sock:
                async with asyncio.timeout(self.setup_limit):
                    answer = await receive(sock)
            if not isinstance(answer, Answer):
                raise WireError(f"{type(answer).__name__} instead of an answer")
        except (OSError, WireError, LinkRefused) as error:
            raise LinkFailed(f"{kind} of {group} from {roster.names(of)}: {error}") from None
        return answer.value

    async def await_host(self, hello: Hello) -> Any:
        """What this worker has for a dial: a future that takes the socket, or the thing on offer."""
        meeting = self._meeting(hello.generation, _link(hello) if hello.kind in EXACT else (hello.kind, hello.group))
        try:
            async with asyncio.timeout(self.setup_limit):
                thing = await asyncio.shield(meeting)
        except (TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not meeting.cancelled():
                raise
            raise LinkRefused(f"this worker expects no such link in generation {hello.generation}") from None
        return thing

    async def bring(self, hello: Hello, sock: socket.socket, thing: Any, who: str) -> None:
        """Accept a dial: hand over its socket, or send what is on offer."""
        exact = hello.kind in EXACT
        if exact and thing.done():
            raise LinkRefused("this worker does not wait for it any more")
        await send(sock, Accept())
        if exact:
            if thing.done():
                raise LinkRefused("this worker does not wait for it any more")
            thing.set_result(sock)
        elif isinstance(thing, Arena):
            with sock:
                socket.send_fds(sock, [b"A"], [thing.fd])
        elif hello.kind in ("pair", "state", "copy"):
            thing(Link(sock, _link(hello), hello.source, who))
        else:
            with sock:
                await send(sock, Answer(str(thing)))


def _link(hello: Hello) -> LinkId:
    return LinkId(hello.kind, hello.group, hello.rail, hello.source, hello.target)  # type: ignore[arg-type]
