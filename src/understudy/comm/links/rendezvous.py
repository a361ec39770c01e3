"""The place where a worker that dials a link and the worker that expects the link meet, in either order."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from understudy.comm.faults import LinkFailed
from understudy.comm.native.arena import Arena
from understudy.comm.topology import Kind, LinkId
from understudy.host.tasks import BackgroundTasks
from understudy.protocol.roster import Roster

from .handshake import LinkRefused, connect, introduce, receive, send
from .link import Link
from .wire import Accept, Answer, Hello, WireError

T = TypeVar("T")
EXACT = ("control", "ring", "tree")
"""Kinds of which both ends know that the link is due; of other kinds only the dialler knows."""


class IoLoop:
    """An event loop on its own thread, for all that waits but is on no training step's path. Fabrics may share it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="understudy io", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:  # cancels what still runs in the end
            runner.get_loop().run_forever()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def soon(self, call: Callable[..., object], *args: object) -> None:
        """Run a call on the loop's thread. Does nothing once the loop is closed."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call, *args)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.soon(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()


class Rendezvous:
    """The services of a fabric to its transports. All methods but `background` run on the event loop.

    `limit` bounds one operation, `setup_limit` the opening of links, in seconds."""

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
        self.tasks = BackgroundTasks()

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a coroutine from any thread."""
        self._io.soon(self.tasks.start, work)

    def end(self, over: Callable[[int], bool]) -> None:
        """Refuse all dials of generations that are over."""
        for key in [key for key in self._open if over(key[0])]:
            self._open.pop(key).cancel()

    async def close(self) -> None:
        self.end(lambda _: True)
        await self.tasks.cancel()

    def _meeting(self, generation: int, what: LinkId | tuple[str, str]) -> asyncio.Future[Any]:
        key = (generation, what)
        if key not in self._open:
            self._open[key] = asyncio.get_running_loop().create_future()
        return self._open[key]

    async def links(self, roster: Roster, links: Iterable[LinkId]) -> list[Link]:
        """Open all of these links or none: if one fails, the others are closed again."""
        tasks = [asyncio.ensure_future(self.link(roster, link)) for link in links]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            for done in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(done, Link):
                    done.close()
            raise

    async def link(self, roster: Roster, link: LinkId) -> Link:
        """A link to another worker: dialled, or accepted if the other worker dials."""
        peer = link.peer(self.uid)
        who = roster.names(peer)
        with _explained(f"{link.kind} link with {who}"):
            sock = await (self._dial if link.source == self.uid else self._await_dial)(roster, link)
        return Link(sock, link, peer, who)

    async def _await_dial(self, roster: Roster, link: LinkId) -> socket.socket:
        waiting: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._meeting(roster.generation, link).set_result(waiting)
        try:
            async with asyncio.timeout(self.setup_limit):
                return await waiting
        except BaseException:
            if waiting.done() and not waiting.cancelled():
                waiting.result().close()
            raise
        finally:
            self._open.pop((roster.generation, link), None)

    async def _dial(self, roster: Roster, link: LinkId) -> socket.socket:
        worker = roster.worker(link.target)
        assert worker is not None
        sock = await connect(worker, local=worker.machine == self._machine)
        try:
            await introduce(sock, self._secret, self._job, roster.generation, link, patience=self.setup_limit)
        except BaseException:
            sock.close()
            raise
        return sock

    def offer(self, generation: int, kind: str, group: str, thing: Any) -> None:
        """Keep something ready for workers that dial with this kind: an arena, a taker of links, an answer."""
        meeting = self._meeting(generation, (kind, group))
        if not meeting.done():
            meeting.set_result(thing)

    async def fetch_arena(self, roster: Roster, group: str, provider: str) -> int:
        """The descriptor of the arena that the provider offers."""
        arena = f"arena of {group} from {roster.names(provider)}"
        with _explained(arena):
            sock = await self._dial(roster, LinkId("arena", group, 0, self.uid, provider))
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
            raise LinkFailed(f"{arena}: it sent none")
        return fds[0]

    async def ask(self, roster: Roster, kind: Kind, group: str, of: str) -> str:
        """The text that the worker `of` offers under this kind."""
        with _explained(f"{kind} of {group} from {roster.names(of)}"):
            with await self._dial(roster, LinkId(kind, group, 0, self.uid, of)) as sock:
                async with asyncio.timeout(self.setup_limit):
                    answer = await receive(sock)
            if not isinstance(answer, Answer):
                raise WireError(f"{type(answer).__name__} instead of an answer")
            return answer.value

    async def await_host(self, hello: Hello) -> Any:
        """What this worker has for a dial: a future that takes the socket, or the thing on offer."""
        link = hello.link
        meeting = self._meeting(hello.generation, link if link.kind in EXACT else (link.kind, link.group))
        try:
            async with asyncio.timeout(self.setup_limit):
                return await asyncio.shield(meeting)
        except (TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not meeting.cancelled():
                raise
            raise LinkRefused(f"this worker expects no such link in generation {hello.generation}") from None

    async def bring(self, hello: Hello, sock: socket.socket, thing: Any, who: str) -> None:
        """Accept a dial: hand over its socket, or send what is on offer."""
        exact = hello.link.kind in EXACT
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
        elif hello.link.kind in ("pair", "state", "copy"):
            thing(Link(sock, hello.link, hello.link.source, who))
        else:
            with sock:
                await send(sock, Answer(str(thing)))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn the ways in which a dial fails into LinkFailed."""
    try:
        yield
    except (OSError, WireError, LinkRefused) as error:
        raise LinkFailed(f"{what}: {'time limit' if isinstance(error, TimeoutError) else error}") from None
