"""Who computes which micro-shards while replicas are missing.

A step has N shards of q micro-shards each; micro-shard number `shard * q + part`. Each is computed exactly once, by a
live holder of its shard, and no live replica computes more than it must: the largest load is the smallest possible.

There are two ways to an assignment, and both are pure:

- `assign(placement, q, live)` is **canonical**: it depends on nothing but its arguments. Every worker that knows the
  live set computes the same without a message, also one that has joined later. As few micro-shards as possible are away
  from their own replica. The price: from one live set to the next, micro-shards of other vacant replicas may change
  places as well.
- `mask(assignment, replicas)` and `refill(assignment, replicas)` go **step by step**: a failure moves the fewest
  micro-shards possible, which is what counts when a step is patched while it runs. The price: the result depends on the
  order of failures. It is an immutable value that follows from that order alone, so whoever knows the order can compute
  it again.

Both have the same load, and both are the normal assignment when everybody is live: each replica its own q micro-shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from understudy.masking.coverage import Alive, alive_of, live_count, wiped
from understudy.masking.placement import Placement
from understudy.masking.spread import NOBODY, Kept, Spread, Where
from understudy.protocol.sentences import SHOWN, counted, named


@dataclass(frozen=True)
class Assignment:
    """Who computes what. After a wipe-out `lost` names the shards without a live holder, and nobody computes anything.

    `load` is the largest number of micro-shards of one replica, `moved` how many changed place to get here, and
    `changed` the shards they belong to: since the assignment before, or, for a canonical one, since the normal one.
    """

    placement: Placement
    q: int
    alive: Alive
    load: int
    moved: int
    changed: tuple[int, ...]
    lost: tuple[int, ...]
    reason: str
    where: tuple[tuple[int, ...], ...]
    held: tuple[tuple[int, ...], ...]

    @property
    def live(self) -> tuple[int, ...]:
        return tuple(replica for replica, is_live in enumerate(self.alive) if is_live)

    @property
    def depth(self) -> float:
        """The load in shards: how many times as long as normally a step computes."""
        return self.load / self.q

    def of(self, replica: int) -> tuple[int, ...]:
        """The micro-shards that the replica computes, in order: its own first."""
        held = self.held[replica] if self.held else ()
        own_first = sorted(held, key=lambda shard: (shard != replica, shard))
        return tuple(
            shard * self.q + part
            for shard in own_first
            for part, computing in enumerate(self.where[shard])
            if computing == replica
        )

    @property
    def numbers(self) -> dict[int, tuple[int, ...]]:
        """Every live replica's micro-shards."""
        return {replica: self.of(replica) for replica in self.live}


def load_bound(replicas: int, q: int, vacant: int) -> int:
    """No assignment has a smaller load: all micro-shards evenly on all live replicas."""
    return -(-q * replicas // (replicas - vacant))


def assign(placement: Placement, q: int, live: Iterable[int]) -> Assignment:
    """The canonical assignment: a function of the placement, q and the live set, the same on every worker."""
    if q < 1:
        raise ValueError(f"a shard has at least one micro-shard, not {q}")
    alive = alive_of(placement, live)
    gone = wiped(placement, alive, range(placement.replicas))
    if gone:
        return _wiped(placement, q, alive, gone.shards, gone.reason)
    where = [((shard if alive[shard] else NOBODY),) * q for shard in range(placement.replicas)]
    vacant = [shard for shard in range(placement.replicas) if not alive[shard]]
    held: list[tuple[int, ...]] = [(replica,) if alive[replica] else () for replica in range(placement.replicas)]
    normal = [(shard,) * q for shard in range(placement.replicas)]
    limit = load_bound(placement.replicas, q, placement.replicas - live_count(alive))
    return arrange(placement, q, alive, limit, normal, lambda _: PartialAssignment(where, held, vacant, vacant))


def mask(assignment: Assignment, replicas: Iterable[int], kept: Kept | None = None) -> Assignment:
    """After these replicas have failed: no smaller load is possible, and with it no fewer moves.

    `kept` names parts that a replica computes although they are not assigned to it, and may take over for nothing.
    """
    placement, q = assignment.placement, assignment.q
    alive, failed = _without(assignment.alive, replicas)
    if assignment.lost:
        return assign(placement, q, _live(alive))
    gone = wiped(placement, alive, sorted({shard for replica in failed for shard in placement.stack(replica)}))
    if gone:
        return _wiped(placement, q, alive, gone.shards, gone.reason)
    start = taken_from(assignment, failed)
    limit = max(assignment.load, load_bound(placement.replicas, q, placement.replicas - live_count(alive)))
    return arrange(placement, q, alive, limit, assignment.where, lambda _: start, kept)


def refill(assignment: Assignment, replicas: Iterable[int]) -> Assignment:
    """After these replicas are live again: what belongs to a live replica goes home, the rest stays if the load allows.

    The load is as small as it can be, and nothing of the past is replayed.
    """
    placement, q = assignment.placement, assignment.q
    alive = alive_of(placement, [*assignment.live, *replicas])
    if assignment.lost:
        return assign(placement, q, _live(alive))
    home = [(shard,) * q if alive[shard] else parts for shard, parts in enumerate(assignment.where)]
    limit = load_bound(placement.replicas, q, placement.replicas - live_count(alive))
    return arrange(placement, q, alive, limit, assignment.where, lambda limit: _lifted(home, limit))


@dataclass(frozen=True)
class PartialAssignment:
    """Tables with gaps: `gaps` are the shards with parts that nobody computes, `changed` those unlike before."""

    where: list[tuple[int, ...]]
    held: list[tuple[int, ...]]
    gaps: Sequence[int]
    changed: Sequence[int]


def arrange(
    placement: Placement,
    q: int,
    alive: Alive,
    limit: int,
    before: Where,
    start: Callable[[int], PartialAssignment],
    kept: Kept | None = None,
) -> Assignment:
    """Fill the gaps of `start(limit)`, raising the limit only where it is proved to be too tight."""
    while True:
        begin = start(limit)
        spread = Spread(placement, alive, limit, begin.where, begin.held, kept)
        needed = _fill(spread, begin)
        if needed is None:
            break
        limit = needed
    new_where, new_held = spread.outcome()
    where, held = _replaced(begin.where, new_where), _replaced(begin.held, new_held)
    changed = tuple(sorted(shard for shard in {*begin.changed, *new_where} if where[shard] != before[shard]))
    moved = sum(old != new for shard in changed for old, new in zip(before[shard], where[shard], strict=True))
    reason = _reason(placement, q, alive, limit, moved)
    return Assignment(placement, q, alive, limit, moved, changed, (), reason, where, held)


def taken_from(assignment: Assignment, failed: Iterable[int]) -> PartialAssignment:
    """The assignment with nobody in the place of the failed replicas."""
    where, held = list(assignment.where), list(assignment.held)
    gaps: set[int] = set()
    for gone in failed:
        for shard in held[gone]:
            where[shard] = tuple(NOBODY if replica == gone else replica for replica in where[shard])
        gaps.update(held[gone])
        held[gone] = ()
    return PartialAssignment(where, held, sorted(gaps), sorted(gaps))


def _fill(spread: Spread, start: PartialAssignment) -> int | None:
    for shard in start.gaps:
        blocked = spread.place(shard, start.where[shard].count(NOBODY))
        if blocked is not None:
            return blocked.needed
    return None


def _lifted(where: list[tuple[int, ...]], limit: int) -> PartialAssignment:
    """The same with every replica's guests beyond the limit taken off, those with the highest numbers first."""
    numbers: list[list[tuple[int, int]]] = [[] for _ in where]
    for shard, parts in enumerate(where):
        for part, replica in enumerate(parts):
            numbers[replica].append((shard, part))
    lifted: dict[int, list[int]] = {}
    for replica, computed in enumerate(numbers):
        guests = [number for number in computed if number[0] != replica]
        for shard, part in guests[len(guests) - max(0, len(computed) - limit) :]:
            lifted.setdefault(shard, list(where[shard]))[part] = NOBODY
            computed.remove((shard, part))
    held = [tuple(dict.fromkeys(shard for shard, _ in computed)) for computed in numbers]
    rows = [tuple(lifted[shard]) if shard in lifted else parts for shard, parts in enumerate(where)]
    return PartialAssignment(rows, held, sorted(lifted), range(len(where)))


def _replaced(table: list[tuple[int, ...]], changes: dict[int, tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    for index, row in changes.items():
        table[index] = row
    return tuple(table)


def _live(alive: Alive) -> list[int]:
    return [replica for replica, is_live in enumerate(alive) if is_live]


def _without(alive: Alive, replicas: Iterable[int]) -> tuple[Alive, list[int]]:
    left, failed = bytearray(alive), []
    for replica in sorted(set(replicas)):
        if not 0 <= replica < len(alive):
            raise ValueError(f"there is no replica {replica}: they are numbered 0 to {len(alive) - 1}")
        if left[replica]:
            left[replica] = 0
            failed.append(replica)
    return bytes(left), failed


def _wiped(placement: Placement, q: int, alive: Alive, lost: tuple[int, ...], reason: str) -> Assignment:
    return Assignment(placement, q, alive, 0, 0, (), lost, reason, (), ())


def _reason(placement: Placement, q: int, alive: Alive, load: int, moved: int) -> str:
    replicas, vacant = placement.replicas, placement.replicas - live_count(alive)
    if not vacant:
        own = "its own micro-shard" if q == 1 else f"its own {q} micro-shards"
        return f"all {replicas:,} replicas are live: each computes {own}"
    bound = load_bound(replicas, q, vacant)
    even = "the even share" if load == bound else f"the even share would be {bound}"
    who = f": {named('replica', _vacant(alive))}" if vacant <= SHOWN else ""
    most = counted(load, "micro-shard")
    return f"{vacant:,} of {replicas:,} replicas vacant{who}; at most {most} each, {even}; {moved:,} moved"


def _vacant(alive: Alive) -> list[int]:
    return [replica for replica, is_live in enumerate(alive) if not is_live]
