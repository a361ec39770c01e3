"""Assigns unassigned micro-shards to live holders with room, and moves as few others as possible.

Each micro-shard takes the cheapest path: to a holder with room, or to a full holder that passes another micro-shard
on, and so on. A move costs 1; a micro-shard that stays or returns costs nothing. The paths are shortest paths in the
residual graph, with potentials to avoid negative costs, so the result is a flow of minimal cost: no other arrangement
within the same limit moves less. If there is no path, the reached replicas and shards prove it: these shards have no
other live holders and exceed the limit of these replicas. The proof gives the limit that is needed.

Tables are not copied: entries that do not change are read from the given tables, so the cost of a failure is in
proportion to what moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from understudy.masking.coverage import Alive, live_count
from understudy.masking.placement import Placement

UNASSIGNED = -1

Where = Sequence[tuple[int, ...]]
"""For each shard, the replicas of its parts in the order of the parts; `UNASSIGNED` for a part without a replica."""

Held = Sequence[tuple[int, ...]]
"""For each replica the shards of which it computes a part, ascending."""


class Kept(NamedTuple):
    """Parts that do not count as moved: `parts(shard, replica)` parts of the shard on the replica.

    `elsewhere(shard)` says whether such parts can be on replicas to which no part of the shard is assigned.
    """

    parts: Callable[[int, int], int]
    elsewhere: Callable[[int], bool]


class TooTight(Exception):
    """No arrangement keeps the limit; every arrangement needs a limit of at least `needed`."""

    def __init__(self, needed: int) -> None:
        self.needed = needed


class Spread:
    """An arrangement that is being completed. `limit` is the largest load of a replica.

    By default, `kept` are the parts that are assigned at the beginning.
    """

    def __init__(
        self, placement: Placement, alive: Alive, limit: int, where: Where, held: Held, kept: Kept | None = None
    ) -> None:
        self._placement = placement
        self._alive = alive
        self._limit = limit
        self._where = where
        self._held = held
        self._kept = kept or Kept(lambda shard, replica: where[shard].count(replica), lambda shard: False)
        self._counts: dict[int, dict[int, int]] = {}
        self._shards: dict[int, set[int]] = {}
        self._loads: dict[int, int] = {}
        self._potential: dict[int, int] = {}
        self._next = 0
        self._whole = len(where[0]) == 1

    def place(self, shard: int, parts: int) -> None:
        """Assigns `parts` more parts of the shard, or raises `TooTight`."""
        while parts:
            parts -= self._deal(shard) if self._placement.everywhere else self._walk(shard, parts)

    def outcome(self) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]]:
        """The changed entries: replicas of the parts by shard, and shards by replica."""
        where = {shard: self._parts(shard, counts) for shard, counts in self._counts.items()}
        held = {replica: tuple(sorted(shards)) for replica, shards in self._shards.items()}
        return where, held

    def load(self, replica: int) -> int:
        """Parts that the replica computes."""
        found = self._loads.get(replica)
        if found is None:
            held = self._held[replica]
            found = len(held) if self._whole else sum([self._where[shard].count(replica) for shard in held])
            self._loads[replica] = found
        return found

    def _deal(self, shard: int) -> int:
        """Assigns one part to the next live replica with room around the ring, if every replica holds every shard."""
        replicas = self._placement.replicas
        for step in range(replicas):
            replica = (self._next + step) % replicas
            if self._alive[replica] and self.load(replica) < self._limit:
                self._put(shard, replica, 1)
                self._loads[replica] += 1
                self._next = replica + 1
                return 1
        raise TooTight(-(-len(self._where[shard]) * replicas // live_count(self._alive)))

    def _walk(self, shard: int, parts: int) -> int:
        """Takes the cheapest path to a replica with room, by Dijkstra with buckets: costs are small integers.

        Assigns one part if that replica holds the shard, so that holders share evenly; else as many parts as the path
        allows at this cost. Returns the number of parts.
        """
        alive, limit, hosts = self._alive, self._limit, self._placement.hosts
        kept, elsewhere = self._kept.parts, self._kept.elsewhere
        potential, loads, counts = self._potential, self._loads, self._counts
        distance: dict[int, int] = {}  # full replica: its distance after potentials
        arrival: dict[int, tuple[int, int]] = {}  # replica: the shard that arrives, and its source
        reached: dict[int, int] = {}  # shard: the cost of moving it away
        fresh = bytearray(alive)  # live replicas that are not reached yet
        end, nearest, room = UNASSIGNED, 1 << 60, 0
        buckets: list[list[int]] = [[]]

        def leave(moving: int, source: int, cost: int) -> None:
            if reached.get(moving, cost + 1) <= cost:
                return
            reached[moving] = cost
            settled = moving not in counts and not elsewhere(moving)  # then every move away costs 1
            if cost + settled >= nearest:
                return
            if settled and not potential:  # every reached replica was reached at least as cheaply
                for replica in hosts[moving]:
                    if fresh[replica]:
                        arrive(replica, moving, source, cost + 1)
                return
            for replica in hosts[moving]:
                if alive[replica] and replica != source:
                    far = cost + 1 - potential.get(replica, 0)
                    if not settled and (keeps := kept(moving, replica)) and self._count(moving, replica) < keeps:
                        far -= 1
                    if far <= nearest and distance.get(replica, far + 1) > far:
                        arrive(replica, moving, source, far)

        def arrive(replica: int, moving: int, source: int, far: int) -> None:
            nonlocal end, nearest, room
            fresh[replica] = 0
            load = loads.get(replica)
            free = limit - (self.load(replica) if load is None else load)
            if free > 0:
                if far < nearest or (far == nearest and source == UNASSIGNED and free > room):
                    end, nearest, room = replica, far, free
                    arrival[replica] = moving, source
            elif far < nearest:
                distance[replica] = far
                arrival[replica] = moving, source
                while len(buckets) <= far:
                    buckets.append([])
                buckets[far].append(replica)

        leave(shard, UNASSIGNED, 0)
        level = 0
        while level < len(buckets) and level < nearest:
            for replica in buckets[level]:  # grows during the loop if a move costs nothing
                if nearest <= level:
                    break
                if distance[replica] == level:
                    so_far = level + potential.get(replica, 0)
                    changed = self._shards.get(replica)
                    for moving in self._held[replica] if changed is None else sorted(changed):
                        surplus = moving in counts and self._count(moving, replica) > kept(moving, replica)
                        leave(moving, replica, so_far - 1 if surplus else so_far)
            level += 1

        if end == UNASSIGNED:
            raise TooTight(-(-len(self._where[shard]) * len(reached) // len(distance)))
        for replica, far in distance.items():
            if far < nearest:
                potential[replica] = potential.get(replica, 0) + far - nearest
        way = [(*arrival[end], end)]
        while way[-1][1] != UNASSIGNED:
            way.append((*arrival[way[-1][1]], way[-1][1]))
        amount = 1 if len(way) == 1 else min(parts, room, *(self._at_this_cost(*move) for move in way))
        self._loads[end] += amount
        for moving, source, target in way:
            self._put(moving, target, amount)
            if source != UNASSIGNED:
                self._put(moving, source, -amount)
        return amount

    def _at_this_cost(self, shard: int, source: int, target: int) -> int:
        """Number of parts of the shard that can move at the same cost."""
        many = len(self._where[shard])
        wanted = self._kept.parts(shard, target) - self._count(shard, target)
        if source == UNASSIGNED:
            return wanted if wanted > 0 else many
        there = self._count(shard, source)
        surplus = there - self._kept.parts(shard, source)
        return min(wanted if wanted > 0 else many, surplus if surplus > 0 else there)

    def _count(self, shard: int, replica: int) -> int:
        counts = self._counts.get(shard)
        return self._where[shard].count(replica) if counts is None else counts.get(replica, 0)

    def _put(self, shard: int, replica: int, change: int) -> None:
        counts = self._counts.get(shard)
        if counts is None:
            counts = self._counts[shard] = dict(Counter(self._where[shard]))
            counts.pop(UNASSIGNED, None)
        shards = self._shards.get(replica)
        if shards is None:
            shards = self._shards[replica] = set(self._held[replica])
        counts[replica] = counts.get(replica, 0) + change
        if counts[replica]:
            shards.add(shard)
        else:
            shards.remove(shard)

    def _parts(self, shard: int, counts: dict[int, int]) -> tuple[int, ...]:
        """The parts, unchanged as far as the counts allow; the others in order of holders."""
        left = dict(counts)
        parts = []
        for replica in self._where[shard]:
            stays = left.get(replica, 0) > 0
            parts.append(replica if stays else UNASSIGNED)
            if stays:
                left[replica] -= 1
        others = iter([replica for replica in self._placement.holders(shard) for _ in range(left.get(replica, 0))])
        return tuple(next(others) if replica == UNASSIGNED else replica for replica in parts)
