"""Pure functions from a roster to its links. The work of a replacement is the difference of two sets."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from understudy.protocol.roster import Roster

Kind = Literal["ring", "tree", "pair", "control", "arena", "store", "call", "state", "copy"]


class GroupKey(NamedTuple):
    """A group is its roles, in order, and a number that tells apart groups over the same roles."""

    roles: tuple[int, ...]
    ordinal: int = 0

    def __str__(self) -> str:
        low, high, count = min(self.roles), max(self.roles), len(self.roles)
        if self.roles == tuple(range(low, high + 1)):
            listed = f"{low}-{high}"
        elif count > 8:
            digest = hashlib.blake2b(repr(self.roles).encode(), digest_size=8).hexdigest()
            listed = f"{low}..{high}:{digest}"
        else:
            listed = ",".join(map(str, self.roles))
        return f"g{self.ordinal}[{listed}]"


class LinkId(NamedTuple):
    """A stream between two workers. The first one dials, the second accepts."""

    kind: Kind
    group: str
    rail: int
    source: str
    target: str

    def touches(self, uid: str) -> bool:
        return uid in (self.source, self.target)

    def peer(self, uid: str) -> str:
        return self.target if uid == self.source else self.source


class Delta(NamedTuple):
    """What a change of roster does to the links of one worker, or of all."""

    kept: frozenset[LinkId]
    opened: frozenset[LinkId]
    dropped: frozenset[LinkId]


def delta(held: Iterable[LinkId], needed: Iterable[LinkId], *, fresh: bool = False) -> Delta:
    """The difference between the links that are open and those that a new roster needs.

    Phase one of a replacement opens `opened` while training continues; phase two drops `dropped`; `kept` is untouched.
    With `fresh` no link is kept, because links of an interrupted generation may hold half-sent messages."""
    before, after = frozenset(held), frozenset(needed)
    kept = frozenset[LinkId]() if fresh else before & after
    return Delta(kept, after - kept, before - kept)


@dataclass(frozen=True)
class Layout:
    """The places of one group's roles under one roster. Ranks are positions within the group; cells are in rank order.

    A vacant rank takes part in nothing, and a cell without a live rank is skipped: its ring neighbours become
    neighbours of each other, its tree children hang on the nearest live ancestor. All other edges stay as they are.
    """

    roster: Roster
    key: GroupKey

    @cached_property
    def name(self) -> str:
        return str(self.key)

    @cached_property
    def rank_of(self) -> dict[int, int]:
        return {role: rank for rank, role in enumerate(self.key.roles)}

    @cached_property
    def uids(self) -> tuple[str | None, ...]:
        return tuple(self.roster.seats[role] for role in self.key.roles)

    @cached_property
    def cells(self) -> tuple[tuple[int, ...], ...]:
        """Every cell's ranks, vacant ones included."""
        found: dict[int, list[int]] = {}
        for rank, role in enumerate(self.key.roles):
            found.setdefault(self.roster.cells[role], []).append(rank)
        return tuple(tuple(ranks) for ranks in found.values())

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Every cell's live ranks."""
        return tuple(tuple(rank for rank in cell if self.uids[rank] is not None) for cell in self.cells)

    @cached_property
    def alive(self) -> tuple[int, ...]:
        """Cells with at least one live rank."""
        return tuple(cell for cell, members in enumerate(self.members) if members)

    @cached_property
    def cell_of(self) -> dict[int, int]:
        return {rank: cell for cell, ranks in enumerate(self.cells) for rank in ranks}

    @cached_property
    def vacant(self) -> frozenset[int]:
        return frozenset(rank for rank, uid in enumerate(self.uids) if uid is None)

    @cached_property
    def has_arenas(self) -> bool:
        """Whether data passes through shared memory, because some cell has more than one rank."""
        return any(len(cell) > 1 for cell in self.cells)

    @cached_property
    def rails(self) -> int:
        """The number of rings that run side by side: one for each rank of the smallest cell."""
        return min(len(cell) for cell in self.cells)

    @cached_property
    def parents(self) -> dict[int, int | None]:
        """The tree over live cells: a binary heap over all cells, from which vacant ones are contracted."""
        root = self.alive[0] if self.alive else -1
        found: dict[int, int | None] = {}
        for cell in self.alive:
            above = cell
            while above > 0:
                above = (above - 1) // 2
                if self.members[above]:
                    break
            found[cell] = None if cell == root else above if above != cell and self.members[above] else root
        return found

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {cell: [] for cell in self.alive}
        for cell, parent in self.parents.items():
            if parent is not None:
                found[parent].append(cell)
        return {cell: tuple(below) for cell, below in found.items()}

    def leader(self, cell: int) -> int:
        return self.members[cell][0]

    def driver(self, cell: int, rail: int) -> int:
        """The rank that carries this rail's traffic for its cell."""
        members = self.members[cell]
        return members[rail % len(members)]

    def uid(self, rank: int) -> str:
        uid = self.uids[rank]
        assert uid is not None
        return uid

    def _ring(self, cell: int, following: int) -> Iterable[LinkId]:
        for rail in range(self.rails):
            source, target = (self.uid(self.driver(end, rail)) for end in (cell, following))
            yield LinkId("ring", self.name, rail, source, target)

    def _branch(self, parent: int, child: int) -> LinkId:
        return LinkId("tree", self.name, 0, self.uid(self.leader(parent)), self.uid(self.leader(child)))

    @cached_property
    def _place(self) -> dict[int, int]:
        return {cell: place for place, cell in enumerate(self.alive)}

    def neighbours(self, cell: int) -> tuple[int, int]:
        """The live cells before and after this one on the ring."""
        where = self._place[cell]
        return self.alive[where - 1], self.alive[(where + 1) % len(self.alive)]

    def links_of(self, uid: str) -> frozenset[LinkId]:
        """The links between machines that this worker needs. O(degree) once the layout's tables are computed."""
        role = self.roster.role_of(uid)
        if role is None or role not in self.rank_of or len(self.alive) < 2:
            return frozenset()
        cell = self.cell_of[self.rank_of[role]]
        before, after = self.neighbours(cell)
        found = {*self._ring(before, cell), *self._ring(cell, after)}
        parent = self.parents[cell]
        if parent is not None:
            found.add(self._branch(parent, cell))
        found.update(self._branch(cell, child) for child in self.children[cell])
        return frozenset(link for link in found if link.touches(uid))

    def provider(self, cell: int) -> str:
        """The uid of the worker that makes the cell's arena, or has it: the one with its role for longest."""
        ranks = self.members[cell]
        return self.uid(min(ranks, key=lambda rank: (self.roster.since[self.key.roles[rank]], rank)))


def layout(roster: Roster, key: GroupKey) -> Layout:
    """The group's layout under this roster, computed once per roster object."""
    cache: dict[GroupKey, Layout] = roster.__dict__.setdefault("_layouts", {})
    found = cache.get(key)
    if found is None:
        found = cache[key] = Layout(roster, key)
    return found


def _world(roster: Roster) -> Layout:
    """All roles as one group."""
    found: Layout | None = roster.__dict__.get("_world")
    if found is None:
        found = roster.__dict__["_world"] = layout(roster, GroupKey(tuple(range(len(roster.seats)))))
    return found


def control_links(roster: Roster, uid: str) -> frozenset[LinkId]:
    """The control links of one worker: a tree over the cells' leaders and, within a cell, a star around its leader.

    If a worker dies, every part of the tree that remains connected has a neighbour of the dead worker: so all workers
    hear of the death.
    """
    role = roster.role_of(uid)
    if role is None:
        return frozenset()
    world = _world(roster)
    cell = world.cell_of[role]
    leader = world.leader(cell)

    def control(upper: int, lower: int) -> LinkId:
        return LinkId("control", "", 0, world.uid(upper), world.uid(lower))

    if role != leader:
        return frozenset({control(leader, role)})
    found = {control(leader, member) for member in world.members[cell][1:]}
    parent = world.parents[cell]
    if parent is not None:
        found.add(control(world.leader(parent), leader))
    found.update(control(leader, world.leader(child)) for child in world.children[cell])
    return frozenset(found)


def backup_of(roster: Roster, role: int, twins: Collection[int] = ()) -> str | None:
    """The worker that keeps a copy of this role's state: the one in the same place on the next machine, in role order.

    None if no copy is needed, because a role with the same state (`twins`) is on another machine; and if no copy is
    possible, because there is no other machine or the role is vacant."""
    worker = roster.worker_of(role)
    if worker is None:
        return None
    if any(twin is not None and twin.machine != worker.machine for twin in map(roster.worker_of, twins)):
        return None
    machines: dict[str, list[str]] = {}
    for each in map(roster.worker_of, range(len(roster.seats))):
        if each is not None:
            machines.setdefault(each.machine, []).append(each.uid)
    if len(machines) < 2:
        return None
    names = list(machines)
    following = machines[names[(names.index(worker.machine) + 1) % len(names)]]
    return following[machines[worker.machine].index(worker.uid) % len(following)]
