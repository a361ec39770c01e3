"""Understudy's own transport: arenas within a machine, links between machines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from .arena import Arena
from .channel import Channel, Scratch
from .collectives import exchange
from .collectives.all_gather import all_gather
from .collectives.all_reduce import all_reduce
from .collectives.barrier import barrier
from .collectives.broadcast import broadcast
from .collectives.reduce import reduce
from .collectives.reduce_scatter import reduce_scatter
from .faults import Fault, Poison
from .link import Link
from .ops import Op
from .pairs import Pairs, Receive, Send
from .roster import Roster
from .stage import Stage
from .topology import GroupKey, Layout, LinkId, layout
from .transport import LinkFailed, Services, open_all

_COLLECTIVES: dict[str, Callable[[Channel, Op], None]] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "broadcast": broadcast,
    "reduce": reduce,
    "barrier": barrier,
}
_EXCHANGES: dict[str, Callable[[Channel, Op, Pairs], None]] = {
    "gather": exchange.gather,
    "scatter": exchange.scatter,
    "all_to_all": exchange.all_to_all,
}


class Seat:
    """A worker's channel and pair links in one generation."""

    def __init__(self, channel: Channel, arena: Arena | None) -> None:
        self.channel = channel
        self.arena = arena
        self.pairs: dict[int, Link] = {}


class NativeGroup:
    def __init__(self, key: GroupKey, services: Services) -> None:
        self._key = key
        self._name = str(key)
        self._services = services
        self._scratch = Scratch()
        self._seat: Seat | None = None
        self._pairs = Pairs(self._name, self._connect, services.limit)

    async def prepare(self, roster: Roster, poison: Poison) -> Seat:
        now = self._seat
        services, plan = self._services, layout(roster, self._key)
        needed = plan.links_of(services.uid)
        held = {} if now is None or roster.fresh else now.channel.links
        kept = {link: held[link] for link in needed & held.keys()}
        missing = [link for link in needed if link not in kept]
        opened: list[Link] = []
        arena: Arena | None = None
        try:
            arena = await self._arena(plan, None if now is None else now.arena)
            opened += await open_all([services.link(roster, link) for link in missing])
            channel = Channel(
                plan,
                services.uid,
                kept | {link.id: link for link in opened},
                poison,
                self._scratch,
                services.limit,
            )
            seat = Seat(channel, arena)
            channel.idle_pairs = self._pairs.idle
            self._welcome_pairs(seat)
            await self._renew_pairs(roster, seat, now)
        except BaseException:
            for link in opened:
                link.close()
            if arena is not None and (now is None or arena is not now.arena):
                arena.close()
            raise
        if arena is not None:
            cell = plan.cells[channel.cell]
            members = tuple((cell.index(rank), roster.names(plan.uid(rank))) for rank in plan.members[channel.cell])
            channel.stage = Stage(arena, cell.index(channel.rank), members, roster.generation, poison)
        return seat

    async def _arena(self, plan: Layout, now: Arena | None) -> Arena | None:
        """The cell's arena: kept, made, or fetched from the worker that has it."""
        services, roster = self._services, plan.roster
        ranks = plan.arena_of(services.uid)
        if not ranks:
            return None
        cell = plan.cell_of[ranks[0]]
        slots, provider = len(plan.cells[cell]), plan.provider(cell)
        if provider == services.uid:
            arena = now or Arena.create(slots, services.slot_bytes)
            services.offer(roster.generation, "arena", self._name, arena)
            return arena
        if now is not None:
            return now
        return Arena(await services.fetch_arena(roster, self._name, provider), slots, services.slot_bytes)

    def _welcome_pairs(self, seat: Seat) -> None:
        ranks = seat.channel.layout.uids

        def take(link: Link) -> None:
            rank = ranks.index(link.peer)
            if self._seat is seat:
                self._pairs.attach(rank, link)
            else:
                seat.pairs[rank] = link

        self._services.offer(seat.channel.generation, "pair", self._name, take)

    async def _renew_pairs(self, roster: Roster, seat: Seat, now: Seat | None) -> None:
        """Pairs in use stay in use. Towards a newcomer, who cannot know of them, this side dials."""
        if now is None:
            return
        before, after = now.channel.layout.uids, seat.channel.layout.uids
        me, dials = seat.channel.rank, {}
        for rank, link in self._pairs.links().items():
            uid = after[rank]
            if uid is None:
                continue
            if uid == before[rank] and not roster.fresh:
                seat.pairs[rank] = link
            elif uid != before[rank] or me < rank:
                dials[rank] = self._dial(roster, uid)
        seat.pairs.update(zip(dials, await open_all(list(dials.values())), strict=True))

    def _dial(self, roster: Roster, uid: str) -> Awaitable[Link]:
        return self._services.link(roster, LinkId("pair", self._name, 0, self._services.uid, uid))

    def _connect(self, rank: int) -> None:
        """Of two ranks that begin to talk, the lower one dials."""
        seat = self._seat
        if seat is not None and seat.channel.rank < rank:
            self._services.background(self._open_pair(seat, rank))

    async def _open_pair(self, seat: Seat, rank: int) -> None:
        plan = seat.channel.layout
        try:
            self._pairs.attach(rank, await self._dial(plan.roster, plan.uid(rank)))
        except LinkFailed as error:
            seat.channel.poison.set(Fault("eof", str(error), plan.uid(rank)))

    def switch(self, prepared: Seat | None) -> tuple[Seat | None, Seat | None]:
        old, self._seat = self._seat, prepared
        if old is not None:
            old.pairs = self._pairs.links()
        if prepared is not None:
            channel = prepared.channel
            peers = tuple(rank for rank, uid in enumerate(channel.layout.uids) if uid not in (None, channel.uid))
            self._pairs.adopt(channel.generation, channel.poison, peers, prepared.pairs)
            if prepared.channel.stage is not None:
                prepared.channel.stage.arrive()
        return old, prepared

    def cancel(self, prepared: Seat) -> None:
        self.discard((prepared, self._seat))

    def discard(self, leftover: tuple[Seat | None, Seat | None]) -> None:
        gone, stays = leftover
        if gone is None:
            return
        keep = set() if stays is None else {id(link) for link in (*stays.channel.links.values(), *stays.pairs.values())}
        for link in (*gone.channel.links.values(), *gone.pairs.values()):
            if id(link) not in keep:
                link.close()
        if gone.arena is not None and (stays is None or stays.arena is not gone.arena):
            gone.arena.close()

    def run(self, op: Op) -> None:
        seat = self._seat
        assert seat is not None
        channel = seat.channel
        channel.start(op.signature)
        collective = _COLLECTIVES.get(op.kind)
        if collective is not None:
            collective(channel, op)
        else:
            _EXCHANGES[op.kind](channel, op, self._pairs)

    def post(self, *jobs: Send | Receive) -> None:
        self._pairs.submit(*jobs)

    def close(self) -> None:
        self.discard(self.switch(None))
        self._pairs.close()


class Native:
    name = "native"

    def group(self, key: GroupKey, services: Services) -> NativeGroup:
        return NativeGroup(key, services)
