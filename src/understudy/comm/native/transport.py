"""Understudy's own transport: arenas within a machine, links between machines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from understudy.comm.collectives.moving import all_gather, all_to_all, broadcast, gather, scatter
from understudy.comm.collectives.reducing import all_reduce, barrier, reduce, reduce_scatter
from understudy.comm.faults import Fault, LinkFailed, Poison
from understudy.comm.links.channel import Channel, ChannelScratch
from understudy.comm.links.link import Link
from understudy.comm.links.pairs import Pairs, Receive, Send
from understudy.comm.links.rendezvous import Rendezvous
from understudy.comm.ops import Op, describe
from understudy.comm.topology import GroupKey, Layout, LinkId, delta, layout
from understudy.device.cpu import HOST
from understudy.protocol.roster import Roster

from .arena import Arena

_ALL = (all_reduce, reduce_scatter, reduce, barrier, all_gather, broadcast, gather, scatter, all_to_all)
_COLLECTIVES: dict[str, Callable[[Channel, Op], None]] = {run.__name__: run for run in _ALL}
_INQUIRE_S = 1.0
"""Seconds between two inquiries of a stalled operation at the same worker."""


class NativeGroup:
    """One group over arenas and links."""

    def __init__(self, key: GroupKey, services: Rendezvous) -> None:
        self._key, self._name, self._services = key, str(key), services
        self._scratch = ChannelScratch()
        self._seat: Channel | None = None
        self._switching = threading.Lock()
        self._inquired: dict[str, float] = {}
        self._pairs = Pairs(self._name, self._connect, services.limit)

    async def prepare(self, roster: Roster, poison: Poison) -> Channel:
        now = None if roster.fresh else self._seat
        services, plan = self._services, layout(roster, self._key)
        held, kept_memory = ({}, None) if now is None else (now.links, now.memory)
        change = delta(held, plan.links_of(services.uid))
        memory = await self._arena(plan, kept_memory)
        try:
            opened = await services.links(roster, change.opened)
        except BaseException:
            if memory is not None and memory is not kept_memory:
                memory.close()
            raise
        seat = Channel(
            plan,
            services.uid,
            era=roster.generation if now is None else now.era,
            memory=memory,
            links={link: held[link] for link in change.kept} | {link.id: link for link in opened},
            pairs=self._pairs,
            poison=poison,
            scratch=self._scratch,
            limit=services.limit,
            inquire=self._inquire,
        )
        services.offer(roster.generation, "call", self._name, seat)
        services.offer(roster.generation, "pair", self._name, partial(self._use_pair, seat))
        try:
            await self._renew_pairs(seat)
        except BaseException:
            self.cancel(seat)
            raise
        return seat

    async def _arena(self, plan: Layout, now: Arena | None) -> Arena | None:
        """The cell's arena: kept, made, or fetched from the worker that has it."""
        services, roster = self._services, plan.roster
        if not plan.has_arenas:
            return None
        cell = plan.cell_of[plan.uids.index(services.uid)]
        slots, provider = len(plan.cells[cell]), plan.provider(cell)
        if provider == services.uid:
            arena = now or Arena.create(slots, services.slot_bytes)
            services.offer(roster.generation, "arena", self._name, arena)
            return arena
        if now is not None:
            return now
        fd = await services.fetch_arena(roster, self._name, provider)
        try:
            return Arena(fd, slots, services.slot_bytes)
        except ValueError as error:
            os.close(fd)
            raise LinkFailed(f"arena of {self._name} from {roster.names(provider)}: {error}") from None

    def _use_pair(self, seat: Channel, link: Link) -> None:
        """Use a pair link that was opened for a seat: now, once the seat is entered, or never if the seat was left."""
        rank = seat.layout.uids.index(link.peer)
        with self._switching:
            now = self._seat
            if now is not None and now.era == seat.era and now.layout.uids[rank] == link.peer:
                self._pairs.attach(rank, link)
            elif not seat.left:
                seat.pair_links[rank] = link
            else:
                link.close()

    async def _renew_pairs(self, seat: Channel) -> None:
        """Dial new links for pairs in use that need one. The lower rank dials. A joiner does not know of the pair: if
        the joiner is the lower rank, it dials with its first message."""
        plan, dials = seat.layout, {}
        for rank, link in self._pairs.links().items():
            uid = plan.uids[rank]
            inherited = self._seat is not None and self._seat.era == seat.era and uid == link.peer
            if uid is not None and not inherited and seat.rank < rank:
                dials[rank] = self._pair(uid)
        seat.pair_links.update(zip(dials, await self._services.links(plan.roster, dials.values()), strict=True))

    def _pair(self, uid: str) -> LinkId:
        return LinkId("pair", self._name, 0, self._services.uid, uid)

    def _connect(self, rank: int) -> None:
        """Of two ranks that begin to talk, the lower one dials."""
        seat = self._seat
        if seat is not None and seat.rank < rank:
            self._services.background(self._open_pair(seat, rank))

    async def _open_pair(self, seat: Channel, rank: int) -> None:
        plan = seat.layout
        try:
            link = await self._services.link(plan.roster, self._pair(plan.uid(rank)))
        except LinkFailed as error:
            if self._seat is seat:
                seat.poison.set(Fault("eof", str(error), plan.uid(rank)))
        else:
            self._use_pair(seat, link)

    def _inquire(self, channel: Channel, uid: str) -> None:
        """Ask a worker in the background which operation it is in: roles that wait for each other in different
        operations send nothing by which they could notice."""
        now = time.monotonic()
        if self._inquired.get(uid, 0.0) < now:
            self._inquired[uid] = now + _INQUIRE_S
            self._services.background(self._compare(channel, uid, *channel.call))

    async def _compare(self, channel: Channel, uid: str, sequence: int, signature: int) -> None:
        roster = channel.layout.roster
        with suppress(LinkFailed):
            answer = await self._services.ask(roster, "call", self._name, uid)
            theirs = [int(number) for number in answer.split()]
            if theirs[0] == sequence and theirs[1] != signature:
                who, call = roster.names(uid), describe(theirs[1])
                reason = f"{who} called {call} but this role called {describe(signature)}"
                channel.poison.set(Fault("mismatch", reason))

    def switch(self, prepared: Channel | None) -> tuple[Channel | None, Channel | None]:
        self._inquired.clear()
        with self._switching:
            old, self._seat = self._seat, prepared
            if old is not None:
                old.left = True
                old.pair_links = self._pairs.links()
            if prepared is not None:
                uids = prepared.layout.uids
                if old is not None and old.era == prepared.era:
                    prepared.pair_links |= {r: link for r, link in old.pair_links.items() if uids[r] == link.peer}
                self._pairs.adopt(prepared.generation, prepared.poison, prepared.peers, prepared.pair_links)
                if prepared.arena is not None:
                    prepared.arena.arrive()
        return old, prepared

    def cancel(self, prepared: Channel) -> None:
        with self._switching:
            prepared.left = True
        self.discard((prepared, self._seat))

    def discard(self, leftover: tuple[Channel | None, Channel | None]) -> None:
        gone, stays = leftover
        if gone is None:
            return
        keep = set() if stays is None else {id(link) for link in (*stays.links.values(), *stays.pair_links.values())}
        for link in (*gone.links.values(), *gone.pair_links.values()):
            if id(link) not in keep:
                link.close()
        if gone.memory is not None and (stays is None or stays.memory is not gone.memory):
            gone.memory.close()

    def run(self, op: Op) -> None:
        seat = self._seat
        assert seat is not None
        seat.start(op.signature, op.limit)
        _COLLECTIVES[op.kind](seat, op)

    def post(self, *jobs: Send | Receive) -> None:
        self._pairs.submit(*jobs)

    def links(self) -> list[Link]:
        seat = self._seat
        return [] if seat is None else [*seat.links.values(), *self._pairs.links().values()]

    def close(self) -> None:
        self.discard(self.switch(None))
        self._pairs.close()


class NativeTransport:
    """The transport of Understudy."""

    devices: tuple[str, ...] = (HOST.name,)

    def group(self, key: GroupKey, services: Rendezvous) -> NativeGroup:
        return NativeGroup(key, services)
