"""The membership of one worker: which generation it is in, which one it prepares, and what has gone wrong."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

from understudy.protocol.roster import Roster, RosterError, WorkerAddress

from .endpoint import Endpoint
from .faults import Fault, Interrupted, StepFailed
from .generation import Generation, PrepareFailed, SwitchRefused, reason_of
from .links.handshake import LinkRefused
from .links.io import IoLoop
from .links.listener import Listener
from .links.meetings import EXACT, Meetings
from .links.spine import SpineLink
from .links.wire import Farewell, Hello, Message, Poisoned
from .native.transport import Native
from .recording import Recorder
from .sandbox import Sandbox
from .topology import LinkId, layout, spine_of
from .transport import Transport

log = logging.getLogger("understudy.comm")

_TOLD = 4096
"""Characters of a fault's reason that travel: a message has a limit, and whoever noticed it has the rest in its log."""


class Membership:
    """Without the groups: those are in fabric.py."""

    def __init__(
        self,
        uid: str,
        machine: str,
        *,
        job: str,
        secret: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        transport: Transport | None = None,
        limit: float = 300.0,
        setup_limit: float = 30.0,
        slot_bytes: int = 1 << 20,
        io: IoLoop | None = None,
    ) -> None:
        if not secret:
            raise ValueError("the job's secret is empty; give every worker of the job the same non-empty bytes")
        self.uid, self.machine, self.job, self._secret = uid, machine, job, secret
        self.limit, self.setup_limit = limit, setup_limit
        self.transport: Transport = transport or Native()
        self.role: int | None = None
        self._listener = Listener(uid, secret, job, host, port, self._welcome)
        self._io, self._own_io = (io, False) if io is not None else (IoLoop(), True)
        self._meetings = Meetings(
            uid, machine, job, secret, limit=limit, setup_limit=setup_limit, slot_bytes=slot_bytes, io=self._io
        )
        self.worker = WorkerAddress(uid, machine, host, self._listener.port, self._listener.local)
        self._current: Generation | None = None
        self._prepared: dict[int, Generation] = {}
        self._highest = 0
        self._early: dict[int, Fault] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._ordinals: Counter[tuple[int, ...]] = Counter()
        self._sandbox: Sandbox | None = None
        self._recorder: Recorder | None = None
        self._vouching = False
        self._troupe: Generation | None = None
        """Those with whom this worker rehearses."""
        self._closed = False
        self._io.start(self._open()).result()

    async def _open(self) -> None:
        self._listener.start()

    # -- what is ---------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation in play; 0 before the first."""
        return 0 if self._current is None else self._current.number

    @property
    def roster(self) -> Roster | None:
        return None if self._current is None else self._current.roster

    @property
    def prepared(self) -> int:
        """The highest generation this worker could switch to: what it says in the vote."""
        current = self._current
        healthy = (
            gen.number
            for gen in list(self._prepared.values())
            if gen.ready and gen.follows is current and gen.poison.fault is None
        )
        return max(healthy, default=self.generation)

    @property
    def fault(self) -> Fault | None:
        """Why the generation in play has failed, if it has."""
        return None if self._current is None else self._current.poison.fault

    def check(self) -> None:
        """Raise StepFailed where results since the last boundary are undefined."""
        if (fault := self.fault) is not None:
            raise StepFailed(fault)

    def longest_wait(self) -> tuple[Endpoint, int, str, float] | None:
        """The collective that has been under way for longest: its group, number and kind, and its seconds."""
        now = time.monotonic()
        waits = [
            (endpoint, *doing[:2], now - doing[2])
            for endpoint in list(self._endpoints.values())
            if (doing := endpoint.doing) is not None
        ]
        return max(waits, key=lambda wait: wait[3], default=None)

    # -- membership ------------------------------------------------------------------------------------------------

    def prepare(self, roster: Roster) -> Future[None]:
        """Open what this worker needs to play in `roster`, beside what runs now; or fail with PrepareFailed."""
        current = self._current
        if roster.generation <= self._highest:
            raise RosterError(
                f"generation {roster.generation} is not after generation {self._highest}, which {self.uid} has "
                "prepared before; a number is used once"
            )
        role = roster.role_of(self.uid)
        if role is not None and self.role is not None and role != self.role:
            raise RosterError(
                f"roster of generation {roster.generation} gives role {role} to {self.uid}, which plays {self.role}"
            )
        listed = roster.worker(self.uid)
        if listed is not None and listed != self.worker:
            raise RosterError(
                f"roster of generation {roster.generation} lists {self.uid} at another address than its own"
            )
        gen = Generation(roster, current)
        self._highest = roster.generation
        self._prepared[roster.generation] = gen
        gen.poison.tell = lambda fault: self._io.soon(self._spread, gen, fault)
        return self._io.start(self._prepare(gen))

    async def _prepare(self, gen: Generation) -> None:
        where = f"generation {gen.number} could not be prepared by {self.uid}"
        gen.task = asyncio.ensure_future(self._build(gen))
        if (fault := self._early.pop(gen.number, None)) is not None:
            gen.poison.set(fault)
        if gen.poison.fault is not None:
            gen.task.cancel()
        try:
            async with asyncio.timeout(self.setup_limit):
                await gen.task
            gen.poison.check()
            if gen.follows is not self._current:
                raise Interrupted
            gen.ready = True
        except BaseException as error:
            if gen.poison.fault is not None:
                why = str(gen.poison.fault)
            elif gen.follows is not self._current:
                why = f"generation {self.generation} was entered meanwhile; prepare a later one"
            elif isinstance(error, asyncio.CancelledError):
                why = "it was cancelled"
            else:
                why = reason_of(error)
                self._tell(gen, Fault("eof", why, noticed_by=self.uid))
            await self._drop(gen)
            raise PrepareFailed(f"{where}: {why}") from None
        finally:
            gen.settled.set()

    async def _build(self, gen: Generation) -> None:
        roster, old = gen.roster, gen.follows
        wanted = spine_of(roster, self.uid)
        held = {} if old is None or roster.fresh else old.spine
        gen.spine = {link: held[link] for link in wanted if link in held and held[link].alive}
        missing = [link for link in wanted if link not in gen.spine]
        endpoints = list(self._endpoints.values()) if roster.role_of(self.uid) is not None else []

        async def spine(link: LinkId) -> None:
            opened = await self._meetings.link(roster, link)
            gen.spine[link] = SpineLink(opened.sock, opened.peer, self._heard, self._lost)

        async def group(endpoint: Endpoint) -> None:
            vacant = frozenset(layout(roster, endpoint.key).vacant)
            gen.groups[endpoint.name] = (endpoint, await endpoint.transport.prepare(roster, gen.poison), vacant)

        work = [*(spine(link) for link in missing), *(group(endpoint) for endpoint in endpoints)]
        tasks = [asyncio.ensure_future(part) for part in work]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def switch(self, generation: int) -> None:
        """Play in a prepared generation from now on. Only at a step boundary: no operation may be under way."""
        gen, old = self._prepared.get(generation), self._current
        if gen is None or not gen.ready:
            raise SwitchRefused(f"{self.uid} has not prepared generation {generation}")
        if gen.follows is not old:
            raise SwitchRefused(f"generation {generation} was prepared to follow another one than {self.generation}")
        if old is not None and old.poison.fault is not None and not gen.roster.fresh and gen.poison.fault is None:
            raise SwitchRefused(
                f"generation {old.number} was interrupted ({old.poison.fault}); generation {generation} would inherit "
                "its half-sent messages; prepare one from a roster with fresh=True"
            )
        self._current = gen  # before it is no longer among the prepared: news of it must find it
        del self._prepared[generation]
        gen.follows = None
        if old is not None:
            old.poison.tell = None
        leftovers = []
        self.role = gen.roster.role_of(self.uid)
        if self.role is None:
            why = f"{self.uid} was released: it plays no role in generation {generation}"
            leftovers = [(endpoint, endpoint.release(why)) for endpoint in self._endpoints.values()]
        else:
            for name, endpoint in self._endpoints.items():
                if name in gen.groups:
                    _, prepared, vacant = gen.groups[name]
                else:
                    prepared, vacant = None, frozenset(layout(gen.roster, endpoint.key).vacant)
                leftovers.append((endpoint, endpoint.play(prepared, vacant, gen.poison)))
        self._io.soon(self._retire, old, gen, leftovers)

    def withdraw(self) -> None:
        """Leave the generation in play, and wait for a later one in the same role. Only where no operation is under
        way."""
        old, self._current = self._current, None
        if old is None:
            return
        old.poison.tell = None
        why = f"{self.uid} has left generation {old.number} and is in no other"
        leftovers = [(endpoint, endpoint.release(why)) for endpoint in self._endpoints.values()]
        self._io.soon(self._dissolve, old, leftovers)

    def cancel(self, generation: int) -> None:
        """Give up a generation that is being or has been prepared. The one in play goes on."""
        gen = self._prepared.get(generation)
        if gen is not None:
            self._io.start(self._give_up(gen)).result()

    def abandon(self, generation: int) -> None:
        """The same, without waiting for it."""
        gen = self._prepared.get(generation)
        if gen is not None:
            self._io.soon(lambda: self._meetings.keep(self._give_up(gen)))

    # -- trouble ---------------------------------------------------------------------------------------------------

    def interrupt(self, reason: str, who: str = "") -> None:
        """Let every blocked and later operation of this generation return at once, on all workers."""
        if (gen := self._current) is not None:
            gen.poison.set(Fault("interrupt", reason, who, self.uid))

    # -- background ------------------------------------------------------------------------------------------------

    def _retire(self, old: Generation | None, new: Generation, leftovers: list[tuple[Endpoint, Any]]) -> None:
        for endpoint, leftover in leftovers:
            endpoint.transport.discard(leftover)
        for name in new.groups.keys() - self._endpoints.keys():
            endpoint, prepared, _ = new.groups.pop(name)
            endpoint.transport.cancel(prepared)
        if old is not None:
            for link, spine in old.spine.items():
                if link not in new.spine or new.spine[link] is not spine:
                    self._meetings.keep(spine.close(farewell=True))
        for gen in list(self._prepared.values()):
            if gen.follows is not new:
                self._meetings.keep(self._give_up(gen))
        self._meetings.end(lambda generation: generation < new.number)
        for number in [number for number in self._early if number <= new.number]:
            del self._early[number]

    def _dissolve(self, old: Generation, leftovers: list[tuple[Endpoint, Any]]) -> None:
        for endpoint, leftover in leftovers:
            endpoint.transport.discard(leftover)
        for spine in old.spine.values():
            self._meetings.keep(spine.close(farewell=True))
        for gen in list(self._prepared.values()):
            if gen.follows is old:
                self._meetings.keep(self._give_up(gen))
        self._meetings.end(lambda generation: generation <= old.number)

    async def _give_up(self, gen: Generation) -> None:
        """A generation will not be played, however far its preparation has come."""
        if gen.task is not None:
            gen.task.cancel()
        await gen.settled.wait()
        if gen.ready:
            await self._drop(gen)

    async def _drop(self, gen: Generation) -> None:
        """Close what a generation that will not be played has opened."""
        gen.poison.tell = None
        self._prepared.pop(gen.number, None)
        for endpoint, prepared, _ in gen.groups.values():
            endpoint.transport.cancel(prepared)
        held = {} if self._current is None else self._current.spine
        for link, spine in gen.spine.items():
            if held.get(link) is not spine:
                await spine.close(farewell=True)
        self._meetings.end(lambda generation: generation == gen.number)

    def _generations(self) -> list[Generation]:
        return [gen for gen in (self._current, self._troupe, *self._prepared.values()) if gen is not None]

    def _heard(self, spine: SpineLink, message: Message) -> None:
        if isinstance(message, Farewell):
            for gen in self._generations():
                if spine in gen.spine.values():
                    gen.poison.gone.add(spine.peer)
        elif isinstance(message, Poisoned):
            for gen in self._generations():
                if gen.number == message.generation:
                    gen.poison.set(message.fault)
                    return
            if message.generation > self.generation:
                self._early[message.generation] = message.fault

    def _lost(self, spine: SpineLink, how: str) -> None:
        for gen in self._generations():
            if spine in gen.spine.values() and gen.roster.role_of(self.uid) is not None:
                reason = f"{gen.roster.names(spine.peer)} is gone: its control link {how}"
                gen.poison.set(Fault("eof", reason, spine.peer, self.uid))

    def _spread(self, gen: Generation, fault: Fault) -> None:
        log.warning("%s: generation %d is interrupted: %s", self.uid, gen.number, fault)
        self._tell(gen, fault)
        if gen.task is not None and not gen.ready:
            gen.task.cancel()
        for task in gen.openings:
            task.cancel()

    def _tell(self, gen: Generation, fault: Fault) -> None:
        """Pass it on to the neighbours: those in that generation, and those from whom it was to be reached."""
        news = Poisoned(
            gen.number, Fault(fault.how, fault.reason[:_TOLD], fault.who, fault.noticed_by or self.uid, fault.when)
        )
        before = {} if gen.follows is None else gen.follows.spine
        for spine in {*gen.spine.values(), *before.values()}:
            if spine.alive:
                spine.send(news)

    # -- the door --------------------------------------------------------------------------------------------------

    async def _welcome(self, hello: Hello, sock: socket.socket) -> None:
        """Bring an authenticated connection to whoever expects it, once they do."""
        self._admit(hello)
        if hello.kind in EXACT and self._has_all(hello.generation, hello.kind, hello.group):
            raise LinkRefused(f"nobody here expects it in generation {hello.generation}")
        thing = await self._meetings.await_host(hello)
        self._admit(hello)
        names = next((gen.roster.names for gen in self._generations() if gen.number == hello.generation), str)
        await self._meetings.bring(hello, sock, thing, names(hello.source))

    def _admit(self, hello: Hello) -> None:
        """Refuse who is stale or has no place in that generation, as far as it is known here."""
        if hello.target != self.uid:
            raise LinkRefused(f"this is {self.uid}, not {hello.target}")
        if hello.generation < self.generation:
            raise LinkRefused(f"generation {hello.generation} is stale, this worker is in generation {self.generation}")
        for gen in self._generations():
            if gen.number == hello.generation:
                if gen.roster.worker(hello.source) is None and hello.kind != "state":  # a leaver gives, too
                    raise LinkRefused(f"{hello.source} is not in the roster of generation {hello.generation}")
                endpoint = self._endpoints.get(hello.group)
                if endpoint is not None and gen.roster.role_of(hello.source) not in endpoint.key.roles:
                    raise LinkRefused(f"{hello.source} plays no role of {hello.group}")

    def _has_all(self, generation: int, kind: str, group: str) -> bool:
        """Whether all links of that kind were opened when the generation in play was entered or the group made."""
        gen = self._current
        return gen is not None and gen.number == generation and (kind == "spine" or group in gen.groups)

    def close(self) -> None:
        """Leave: say farewell where that is possible, close everything, free every thread and descriptor."""
        if self._closed:
            return
        self._closed = True
        playing = [gen for gen in (self._current, self._troupe) if gen is not None]
        for gen in playing:
            gen.poison.tell = None
            gen.poison.set(Fault("interrupt", f"{self.uid} has closed its fabric"))
        self._io.start(self._shut(playing)).result()
        for endpoint in self._endpoints.values():
            endpoint.close()
        self._endpoints.clear()
        self._current = self._troupe = None
        if self._own_io:
            self._io.close()

    async def _shut(self, playing: list[Generation]) -> None:
        await self._listener.close()
        for gen in list(self._prepared.values()):
            await self._give_up(gen)
        await asyncio.gather(*(spine.close(farewell=True) for gen in playing for spine in gen.spine.values()))
        await self._meetings.close()
