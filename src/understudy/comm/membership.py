"""The generations of one worker: the current one, those that it prepares, and the news of faults in them."""

from __future__ import annotations

import asyncio
import logging
import socket
from concurrent.futures import Future
from typing import Any

from understudy.host.tasks import together
from understudy.protocol.roster import Roster, RosterError, WorkerAddress

from .endpoint import Endpoint
from .faults import Fault, Interrupted, Poison, PrepareFailed, SwitchRefused
from .links.control import ControlLink
from .links.handshake import LinkRefused
from .links.rendezvous import EXACT, IoLoop, Rendezvous
from .links.wire import Farewell, Hello, Message, Poisoned
from .topology import Delta, LinkId, control_links, delta, layout

log = logging.getLogger("understudy.comm")

_SPREAD = 4096
"""Characters of a fault's reason that travel to other workers: a message has a limit. The log has the whole reason."""


class Generation:
    """A roster, and all that this worker holds to take part in it."""

    def __init__(self, roster: Roster, follows: Generation | None) -> None:
        self.roster = roster
        self.number = roster.generation
        self.follows = follows
        """The generation that was current when this one was prepared."""
        self.poison = Poison()
        self.control: dict[LinkId, ControlLink] = {}
        self.change = Delta(frozenset(), frozenset(), frozenset())
        """Of the control links."""
        self.groups: dict[str, tuple[Endpoint, Any]] = {}
        """By name, and what the transport has prepared."""
        self.task: asyncio.Task[None] | None = None
        self.settled = asyncio.Event()
        """Set when the preparation has ended, with success or without."""
        self.ready = False
        self.openings: set[asyncio.Task[Any]] = set()
        """Groups that are being opened after the generation was entered."""


class Membership:
    """Thread-safe, apart from methods that begin with an underscore: those run on the event loop.

    `endpoints` holds the groups by name; the fabric adds and removes them. `Fabric` documents the methods that it has,
    too.
    """

    def __init__(
        self, worker: WorkerAddress, rendezvous: Rendezvous, io: IoLoop, endpoints: dict[str, Endpoint]
    ) -> None:
        self.worker, self.uid = worker, worker.uid
        self.role: int | None = None
        self.current: Generation | None = None
        self.rehearsal: Generation | None = None
        """The generation of the mates with which this worker rehearses."""
        self.prepared: dict[int, Generation] = {}
        self._rendezvous, self._io, self._endpoints = rendezvous, io, endpoints
        self._highest = 0
        self._early: dict[int, Fault] = {}
        """Faults of generations that this worker has not begun to prepare."""

    @property
    def generation(self) -> int:
        return 0 if self.current is None else self.current.number

    @property
    def ready(self) -> int:
        current = self.current
        healthy = (
            gen.number
            for gen in list(self.prepared.values())
            if gen.ready and gen.follows is current and gen.poison.fault is None
        )
        return max(healthy, default=self.generation)

    # -- phase one -------------------------------------------------------------------------------------------------

    def prepare(self, roster: Roster) -> Future[None]:
        where = f"roster of generation {roster.generation}"
        if roster.generation <= self._highest:
            raise RosterError(
                f"generation {roster.generation} is not after generation {self._highest}, which {self.uid} has "
                "prepared before; a number is used once"
            )
        role = roster.role_of(self.uid)
        if role is not None and self.role is not None and role != self.role:
            raise RosterError(f"{where} gives role {role} to {self.uid}, which has role {self.role}")
        listed = roster.worker(self.uid)
        if listed is not None and listed != self.worker:
            raise RosterError(f"{where} lists {self.uid} at another address than its own")
        gen = Generation(roster, self.current)
        self._highest = roster.generation
        self.prepared[roster.generation] = gen
        gen.poison.tell = lambda fault: self._io.soon(self._spread, gen, fault)
        return self._io.start(self._prepare(gen))

    async def _prepare(self, gen: Generation) -> None:
        gen.task = asyncio.ensure_future(self._build(gen))
        if (fault := self._early.pop(gen.number, None)) is not None:
            gen.poison.set(fault)
        if gen.poison.fault is not None:
            gen.task.cancel()
        try:
            async with asyncio.timeout(self._rendezvous.setup_limit):
                await gen.task
            gen.poison.check()
            if gen.follows is not self.current:
                raise Interrupted
            gen.ready = True
        except BaseException as error:
            if gen.poison.fault is not None:
                why = str(gen.poison.fault)
            elif gen.follows is not self.current:
                why = f"generation {self.generation} was entered meanwhile; prepare a later one"
            elif isinstance(error, asyncio.CancelledError):
                why = "it was cancelled"
            else:
                why = _reason(error)
                self._tell(gen, Fault("eof", why, noticed_by=self.uid))
            await self._drop(gen)
            raise PrepareFailed(f"generation {gen.number} could not be prepared by {self.uid}: {why}") from None
        finally:
            gen.settled.set()

    async def _build(self, gen: Generation) -> None:
        roster, old = gen.roster, gen.follows
        held = {} if old is None else {link: control for link, control in old.control.items() if control.alive}
        gen.change = delta(held, control_links(roster, self.uid), fresh=roster.fresh)
        gen.control = {link: held[link] for link in gen.change.kept}
        endpoints = list(self._endpoints.values()) if roster.role_of(self.uid) is not None else []

        async def control(link: LinkId) -> None:
            opened = await self._rendezvous.link(roster, link)
            gen.control[link] = ControlLink(opened.sock, opened.peer, self._heard, self._lost)

        async def group(endpoint: Endpoint) -> None:
            gen.groups[endpoint.name] = (endpoint, await endpoint.transport.prepare(roster, gen.poison))

        await together(*(control(link) for link in gen.change.opened), *(group(endpoint) for endpoint in endpoints))

    def cancel(self, generation: int) -> None:
        """Give up a generation as `abandon` does, and wait until its links are closed."""
        gen = self.prepared.get(generation)
        if gen is not None:
            self._io.start(self._give_up(gen)).result()

    def abandon(self, generation: int) -> None:
        gen = self.prepared.get(generation)
        if gen is not None:
            self._rendezvous.background(self._give_up(gen))

    async def _give_up(self, gen: Generation) -> None:
        """End a generation that will not be entered, whatever its preparation has reached."""
        if gen.task is not None:
            gen.task.cancel()
        await gen.settled.wait()
        if gen.ready:
            await self._drop(gen)

    async def _drop(self, gen: Generation) -> None:
        """Close what a generation that will not be entered has opened."""
        gen.poison.tell = None
        self.prepared.pop(gen.number, None)
        for endpoint, prepared in gen.groups.values():
            endpoint.transport.cancel(prepared)
        for link in gen.change.opened & gen.control.keys():
            await gen.control[link].close()
        self._rendezvous.end(lambda generation: generation == gen.number)

    # -- phase two -------------------------------------------------------------------------------------------------

    def switch(self, generation: int) -> None:
        gen, old = self.prepared.get(generation), self.current
        if gen is None or not gen.ready:
            raise SwitchRefused(f"{self.uid} has not prepared generation {generation}")
        if gen.follows is not old:
            raise SwitchRefused(f"generation {generation} was prepared to follow another one than {self.generation}")
        if old is not None and old.poison.fault is not None and not gen.roster.fresh and gen.poison.fault is None:
            raise SwitchRefused(
                f"generation {old.number} was interrupted ({old.poison.fault}); generation {generation} would inherit "
                "its half-sent messages; prepare one from a roster with fresh=True"
            )
        self.current = gen  # before it is no longer among the prepared: news of it must find it
        del self.prepared[generation]
        gen.follows = None
        if old is not None:
            old.poison.tell = None
        leftovers = []
        self.role = gen.roster.role_of(self.uid)
        if self.role is None:
            why = f"{self.uid} was released: it has no role in generation {generation}"
            leftovers = [(endpoint, endpoint.release(why)) for endpoint in self._endpoints.values()]
        else:
            for name, endpoint in self._endpoints.items():
                _, prepared = gen.groups.get(name, (endpoint, None))
                vacant = layout(gen.roster, endpoint.key).vacant
                leftovers.append((endpoint, endpoint.enter(prepared, vacant, gen.poison)))
        dropped = [] if old is None else [old.control[link] for link in gen.change.dropped]
        self._io.soon(self._retire, gen, leftovers, dropped, gen.number)

    def _retire(
        self, new: Generation | None, leftovers: list[tuple[Endpoint, Any]], dropped: list[ControlLink], first: int
    ) -> None:
        """Close what the generation before had and `new` has not. Generations before the number `first` are over."""
        for endpoint, leftover in leftovers:
            endpoint.transport.discard(leftover)
        groups = {} if new is None else new.groups
        for name in groups.keys() - self._endpoints.keys():
            endpoint, prepared = groups.pop(name)
            endpoint.transport.cancel(prepared)
        for control in dropped:
            self._rendezvous.tasks.start(control.close())
        for gen in list(self.prepared.values()):
            if gen.follows is not new:
                self._rendezvous.tasks.start(self._give_up(gen))
        self._rendezvous.end(lambda generation: generation < first)
        self._early = {number: fault for number, fault in self._early.items() if number >= first}

    def withdraw(self) -> None:
        old, self.current = self.current, None
        if old is None:
            return
        old.poison.tell = None
        why = f"{self.uid} has left generation {old.number} and is in no other"
        leftovers = [(endpoint, endpoint.release(why)) for endpoint in self._endpoints.values()]
        self._io.soon(self._retire, None, leftovers, list(old.control.values()), old.number + 1)

    # -- rehearsals among mates ------------------------------------------------------------------------------------

    def drop(self, gen: Generation) -> None:
        """Close, in the background, what a generation that is not entered any more has opened."""
        self._rendezvous.background(self._drop(gen))

    # -- groups that are made late ---------------------------------------------------------------------------------

    def open_late(self, endpoint: Endpoint) -> None:
        """Bring a group into the current generation, which was prepared before the group was made; or poison it."""
        gen = self.current
        assert gen is not None
        with endpoint.opening:
            if endpoint.name in gen.groups:
                return
            prepared = self.open_group(gen, endpoint)
            if prepared is not None:
                gen.groups[endpoint.name] = (endpoint, prepared)
                endpoint.enter_within(prepared, endpoint.vacant, gen.poison)

    def open_group(self, gen: Generation, endpoint: Endpoint) -> Any:
        """What the transport needs of a group in a generation; None if that failed, which poisons the generation."""
        return self._io.start(self._open_group(gen, endpoint)).result()

    async def _open_group(self, gen: Generation, endpoint: Endpoint) -> Any:
        task: asyncio.Task[Any] = asyncio.ensure_future(endpoint.transport.prepare(gen.roster, gen.poison))
        gen.openings.add(task)
        if gen.poison.fault is not None:
            task.cancel()
        try:
            async with asyncio.timeout(self._rendezvous.setup_limit):
                return await task
        except BaseException as error:
            if gen.poison.fault is None:
                why = f"group {endpoint.name} could not be opened: {_reason(error)}"
                gen.poison.set(Fault("eof", why, noticed_by=self.uid))
            return None
        finally:
            gen.openings.discard(task)

    # -- news of faults --------------------------------------------------------------------------------------------

    def interrupt(self, reason: str, who: str = "") -> None:
        if (gen := self.current) is not None:
            gen.poison.set(Fault("interrupt", reason, who, self.uid))

    def _generations(self) -> list[Generation]:
        return [gen for gen in (self.current, self.rehearsal, *self.prepared.values()) if gen is not None]

    def _heard(self, control: ControlLink, message: Message) -> None:
        if isinstance(message, Farewell):
            for gen in self._generations():
                if control in gen.control.values():
                    gen.poison.gone.add(control.peer)
        elif isinstance(message, Poisoned):
            for gen in self._generations():
                if gen.number == message.generation:
                    gen.poison.set(message.fault)
                    return
            if message.generation > self.generation:
                self._early[message.generation] = message.fault

    def _lost(self, control: ControlLink, how: str) -> None:
        for gen in self._generations():
            if control in gen.control.values() and gen.roster.role_of(self.uid) is not None:
                reason = f"{gen.roster.names(control.peer)} is gone: its control link {how}"
                gen.poison.set(Fault("eof", reason, control.peer, self.uid))

    def _spread(self, gen: Generation, fault: Fault) -> None:
        log.warning("%s: generation %d is interrupted: %s", self.uid, gen.number, fault)
        self._tell(gen, fault)
        if gen.task is not None and not gen.ready:
            gen.task.cancel()
        for task in gen.openings:
            task.cancel()

    def _tell(self, gen: Generation, fault: Fault) -> None:
        """Send a fault to the neighbours in its generation, and to those in the generation that it was to follow."""
        by = fault.noticed_by or self.uid
        news = Poisoned(gen.number, Fault(fault.how, fault.reason[:_SPREAD], fault.who, by, fault.when))
        before = {} if gen.follows is None else gen.follows.control
        for control in {*gen.control.values(), *before.values()}:
            if control.alive:
                control.send(news)

    # -- connections from other workers ----------------------------------------------------------------------------

    async def welcome(self, hello: Hello, sock: socket.socket) -> None:
        """Bring an authenticated connection to its receiver, as soon as there is one. Runs on the event loop."""
        self._admit(hello)
        if hello.link.kind in EXACT and self._has_all(hello):
            raise LinkRefused(f"this worker expects no such link in generation {hello.generation}")
        thing = await self._rendezvous.await_host(hello)
        self._admit(hello)
        names = next((gen.roster.names for gen in self._generations() if gen.number == hello.generation), str)
        await self._rendezvous.bring(hello, sock, thing, names(hello.link.source))

    def _admit(self, hello: Hello) -> None:
        """Refuse a worker that is stale or has no place in its generation, as far as this worker knows."""
        source, target, group = hello.link.source, hello.link.target, hello.link.group
        if target != self.uid:
            raise LinkRefused(f"this is {self.uid}, not {target}")
        if hello.generation < self.generation:
            raise LinkRefused(f"generation {hello.generation} is stale, this worker is in generation {self.generation}")
        for gen in self._generations():
            if gen.number == hello.generation:
                if gen.roster.worker(source) is None and hello.link.kind != "state":  # a leaver gives state, too
                    raise LinkRefused(f"{source} is not in the roster of generation {hello.generation}")
                endpoint = self._endpoints.get(group)
                if endpoint is not None and gen.roster.role_of(source) not in endpoint.key.roles:
                    raise LinkRefused(f"{source} has no role of {group}")

    def _has_all(self, hello: Hello) -> bool:
        """Whether all links of a kind were opened when the current generation was entered or the group made."""
        gen, link = self.current, hello.link
        if gen is None or gen.number != hello.generation:
            return False
        return link.kind == "control" or link.group in gen.groups

    def close(self) -> list[Generation]:
        """End every operation. Returns the generations to `shut`."""
        entered = [gen for gen in (self.current, self.rehearsal) if gen is not None]
        for gen in entered:
            gen.poison.tell = None
            gen.poison.set(Fault("interrupt", f"{self.uid} has closed its fabric"))
        return entered

    async def shut(self, entered: list[Generation]) -> None:
        """Give up what is prepared and say farewell to the neighbours. Runs on the event loop."""
        for gen in list(self.prepared.values()):
            await self._give_up(gen)
        await asyncio.gather(*(control.close() for gen in entered for control in gen.control.values()))


def _reason(error: BaseException) -> str:
    return "time limit" if isinstance(error, TimeoutError) else str(error) or repr(error)
