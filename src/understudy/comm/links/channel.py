"""One group's links in one generation, as seen by one worker."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Container
from contextlib import suppress

import torch

from understudy.comm.faults import Fault, Poison
from understudy.comm.native.arena import Arena, ArenaMember, ArenaRounds
from understudy.comm.ops import describe
from understudy.comm.topology import Layout, LinkId

from . import wire
from .link import Inlet, Link, Outlet, pump
from .pairs import INTERNAL, Pairs

PIECE = 1 << 21
"""Bytes that travel together; the reduction of one piece overlaps the transfer of the next."""
SEGMENT = 1 << 21
"""Bytes of partial sums that a worker may hold between two neighbours; bounds the scratch memory."""


class ChannelScratch:
    """A fixed amount of private memory for partial sums, allocated when first needed and kept."""

    def __init__(self) -> None:
        self._blocks: dict[str, torch.Tensor] = {}

    def take(self, name: str, size: int) -> torch.Tensor:
        block = self._blocks.get(name)
        if block is None or block.numel() < size:
            with torch.inference_mode(False):  # a block is used within the mode and outside of it
                block = self._blocks[name] = torch.empty(size, dtype=torch.uint8)
        return block[:size]


class Channel:
    """What a collective works with: the place in the layout, links by purpose, arena, poison, deadline.

    `inquire` asks another worker in the background which operation it is in."""

    def __init__(
        self,
        layout: Layout,
        uid: str,
        *,
        era: int,
        memory: Arena | None,
        links: dict[LinkId, Link],
        pairs: Pairs,
        poison: Poison,
        scratch: ChannelScratch,
        limit: float,
        inquire: Callable[[Channel, str], None],
    ) -> None:
        role = layout.roster.role_of(uid)
        assert role is not None
        self.layout, self.memory, self.links, self.pairs = layout, memory, links, pairs
        self.poison, self.scratch, self.limit, self.inquire = poison, scratch, limit, inquire
        self.era = era
        """The first generation from which links are inherited."""
        self.pair_links: dict[int, Link] = {}
        """Links for `pairs`, by rank: those opened before this generation is entered; after it is left, all."""
        self.left = False
        self.generation = layout.roster.generation
        self.rank = layout.rank_of[role]
        self.size = len(layout.key.roles)
        self.peers = tuple(rank for rank in range(self.size) if rank != self.rank and rank not in layout.vacant)
        self.cell = layout.cell_of[self.rank]
        self.place = layout.alive.index(self.cell)
        self.cells = len(layout.alive)
        self.is_leader = layout.leader(self.cell) == self.rank
        self.arena: ArenaRounds | None = None
        if memory is not None:
            cell, names = layout.cells[self.cell], layout.roster.names
            uids = {cell.index(rank): layout.uid(rank) for rank in layout.members[self.cell]}
            members = tuple(ArenaMember(slot, names(other), other) for slot, other in uids.items())
            self.arena = ArenaRounds(memory, cell.index(self.rank), members, self.generation, poison)
        self.call = (0, 0)
        """Number and signature of the running operation, for workers that inquire."""
        self.sequence = 0
        self.signature = 0
        self.deadline = 0.0
        self.rails: list[tuple[int, Link, Link]] = []
        """(rail, link from the cell before, link to the cell after) for each rail that this worker drives."""
        self.branches: dict[int, Link] = {}
        """Tree links of a leader, by neighbouring cell."""
        if self.cells > 1:
            by_source = {(link.rail, link.target): links[link] for link in links if link.kind == "ring"}
            by_target = {(link.rail, link.source): links[link] for link in links if link.kind == "ring"}
            for rail in range(layout.rails):
                if layout.driver(self.cell, rail) == self.rank:
                    self.rails.append((rail, by_source[rail, uid], by_target[rail, uid]))
            if self.is_leader:
                around = {*layout.children[self.cell], layout.parents[self.cell]} - {None}
                of = {link.peer: link for link in links.values() if link.id.kind == "tree"}
                self.branches = {c: of[layout.uid(layout.leader(c))] for c in around if c is not None}

    def start(self, signature: int, limit: float | None = None) -> None:
        """Begin the next operation. It may take `limit` seconds, by default as many as all others."""
        self.poison.check()
        self.sequence += 1
        self.signature = signature
        self.call = (self.sequence, signature)
        self.deadline = time.monotonic() + (limit or self.limit)
        if self.arena is not None:
            self.arena.announce(self.sequence, signature)

    def __str__(self) -> str:
        """The running operation, as an answer to workers that inquire."""
        return f"{self.call[0]} {self.call[1]}"

    def outlet(self, link: Link, sent: Callable[[], None] | None = None) -> Outlet:
        """A flow out of this operation, its header already queued."""

        def header_left() -> None:
            outlet.passed = sent

        outlet = Outlet(link, header_left)
        outlet.push(wire.pack_header(wire.Header(self.generation, self.sequence, self.signature, 0)))
        return outlet

    def inlet(self, link: Link, filled: Callable[[], None] | None = None) -> Inlet:
        """A flow into this operation; its header is checked before anything behind it is used."""
        head = bytearray(wire.HEADER)

        def check() -> None:
            self._agree(link, head)
            inlet.passed = filled

        inlet = Inlet(link, check)
        inlet.push(memoryview(head))
        return inlet

    def pump(self, inlets: list[Inlet], outlets: list[Outlet]) -> None:
        def stalled() -> None:
            self.look_around({flow.link.fd for flow in (*inlets, *outlets)})
            for inlet in inlets:
                if inlet.queue:
                    self.inquire(self, inlet.link.peer)

        pump(inlets, outlets, self.poison, self.deadline, stalled)

    def look_around(self, busy: Container[int] = (), *, exchanging: bool = False) -> None:
        """Raise if another worker is in another operation under the same number, as seen on links not used here."""
        if self.arena is not None:
            self.arena.look_around()
        for link in self.links.values():
            head = link.peek(wire.HEADER) if link.fd not in busy else b""
            if len(head) == wire.HEADER:
                theirs = wire.unpack_header(head)
                if (theirs.generation, theirs.sequence) == (self.generation, self.sequence):
                    self._agree(link, head)
        for link in () if exchanging else self.pairs.idle():
            with suppress(wire.WireError, struct.error):
                theirs = wire.unpack_header(link.peek(wire.HEADER))
                if (theirs.generation, theirs.sequence) == (self.generation, self.sequence | INTERNAL):
                    reason = f"{link.who} is in an exchange but this role called {describe(self.signature)}"
                    raise self.poison.fail(Fault("mismatch", reason))

    def _agree(self, link: Link, head: bytes | bytearray) -> None:
        try:
            theirs = wire.unpack_header(head)
        except wire.WireError as error:
            raise self.poison.fail(Fault("garbage", f"{link.id.kind} link to {link.who}: {error}", link.peer)) from None
        if theirs.generation != self.generation:
            reason = f"{link.who} sent for generation {theirs.generation} in generation {self.generation}"
            raise self.poison.fail(Fault("mismatch", reason, link.peer))
        if theirs.signature != self.signature or theirs.sequence != self.sequence:
            call = f"{describe(theirs.signature)} as operation {theirs.sequence} of {self.layout.name}"
            mine = f"{describe(self.signature)} as operation {self.sequence}"
            raise self.poison.fail(Fault("mismatch", f"{link.who} called {call} but this role called {mine}"))
