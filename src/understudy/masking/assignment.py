"""Assigns micro-shards to live replicas.

A step has N shards of q micro-shards each; a micro-shard has the number `shard * q + part`. Each micro-shard is
computed exactly once, by a live holder of its shard, and the largest load of a replica is as small as possible.

Two pure functions make an assignment:

- `assign(placement, q, live)` is **canonical**: it depends on its arguments only. Every worker that knows the live set
  computes the same assignment without a message, and so does a worker that joined later. As few micro-shards as
  possible are away from their own replica. From one live set to the next, micro-shards of other vacant replicas may
  move as well.
- `mask(assignment, replicas)` and `refill(assignment, replicas)` are **incremental**: a failure moves as few
  micro-shards as possible, which matters when a running step is patched. The result depends on the order of failures
  and on nothing else.

Both give the same load. With all replicas live, both give the normal assignment: each replica has its own q
micro-shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from understudy.masking.coverage import Alive, WipeOut, alive_of, live_count, wiped
from understudy.masking.placement import Placement
from understudy.masking.spread import UNASSIGNED, Kept, Spread, TooTight, Where
from understudy.protocol.sentences import SHOWN, counted, named


@dataclass(frozen=True)
class Assignment:
    """The replica of each micro-shard. After a wipe-out, `lost` has the shards without a live holder and all else is
    empty.

    `load` is the largest number of micro-shards of one replica. `moved` counts the micro-shards that have moved since
    the assignment before (for a canonical one: since the normal assignment); `changed` are the shards that they
    belong to. `where` has the replicas of each shard's parts, `held` the shards of each replica.
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
        """The load in shards: computing time of a step, in normal computing times."""
        return self.load / self.q

    def of(self, replica: int) -> tuple[int, ...]:
        """The micro-shards that the replica computes, its own first."""
        held = self.held[replica] if self.held else ()
        own_first = sorted(held, key=lambda shard: (shard != replica, shard))
        return tuple(
            shard * self.q + part
            for shard in own_first
            for part, computing in enumerate(self.where[shard])
            if computing == replica
        )


def load_bound(replicas: int, q: int, vacant: int) -> int:
    """Lower bound of the load: all micro-shards spread evenly over the live replicas."""
    return -(-q * replicas // (replicas - vacant))


def assign(placement: Placement, q: int, live: Iterable[int]) -> Assignment:
    """The canonical assignment: a function of the placement, q and the live set, the same on every worker."""
    if q < 1:
        raise ValueError(f"a shard has at least one micro-shard, not {q}")
    alive = alive_of(placement, live)
    replicas = range(placement.replicas)
    gone = wiped(placement, alive, replicas)
    if gone:
        return _wiped(placement, q, alive, gone)
    where = [((shard if alive[shard] else UNASSIGNED),) * q for shard in replicas]
    vacant = _vacant(alive)
    held: list[tuple[int, ...]] = [(replica,) if alive[replica] else () for replica in replicas]
    normal = [(shard,) * q for shard in replicas]
    limit = load_bound(placement.replicas, q, len(vacant))
    return arrange(placement, q, alive, limit, normal, lambda _: PartialAssignment(where, held, vacant, vacant))


def mask(assignment: Assignment, replicas: Iterable[int], kept: Kept | None = None) -> Assignment:
    """The assignment after these replicas have failed, with the smallest possible load and then the fewest moves.

    `kept` names parts that a replica computes although they are not assigned to it; moving them there costs nothing.
    """
    placement, q = assignment.placement, assignment.q
    alive, failed = _without(assignment.alive, replicas)
    if assignment.lost:
        return assign(placement, q, set(assignment.live).difference(failed))
    gone = wiped(placement, alive, sorted({shard for replica in failed for shard in placement.stack(replica)}))
    if gone:
        return _wiped(placement, q, alive, gone)
    start = taken_from(assignment, failed)
    limit = max(assignment.load, load_bound(placement.replicas, q, placement.replicas - live_count(alive)))
    return arrange(placement, q, alive, limit, assignment.where, lambda _: start, kept)


def refill(assignment: Assignment, replicas: Iterable[int]) -> Assignment:
    """The assignment after these replicas are live again, with the smallest possible load.

    Micro-shards return to their own live replicas; the others stay if the load allows. The order of earlier failures
    is not replayed.
    """
    placement, q = assignment.placement, assignment.q
    live = [*assignment.live, *replicas]
    if assignment.lost:
        return assign(placement, q, live)
    alive = alive_of(placement, live)
    home = [(shard,) * q if alive[shard] else parts for shard, parts in enumerate(assignment.where)]
    limit = load_bound(placement.replicas, q, placement.replicas - live_count(alive))
    return arrange(placement, q, alive, limit, assignment.where, lambda limit: _lifted(home, limit))


@dataclass(frozen=True)
class PartialAssignment:
    """An assignment with gaps: `gaps` are the shards with unassigned parts, `changed` the shards that have changed."""

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
    """Fills the gaps of `start(limit)`; raises the limit only if it is proved to be too small."""
    while True:
        begin = start(limit)
        spread = Spread(placement, alive, limit, begin.where, begin.held, kept)
        try:
            for shard in begin.gaps:
                spread.place(shard, begin.where[shard].count(UNASSIGNED))
            break
        except TooTight as tight:
            limit = tight.needed
    new_where, new_held = spread.outcome()
    where, held = _replaced(begin.where, new_where), _replaced(begin.held, new_held)
    changed = tuple(sorted(shard for shard in {*begin.changed, *new_where} if where[shard] != before[shard]))
    moved = sum(old != new for shard in changed for old, new in zip(before[shard], where[shard], strict=True))
    reason = _reason(placement, q, alive, limit, moved)
    return Assignment(
        placement, q, alive, load=limit, moved=moved, changed=changed, lost=(), reason=reason, where=where, held=held
    )


def taken_from(assignment: Assignment, failed: Iterable[int]) -> PartialAssignment:
    """The assignment with the parts of the failed replicas unassigned."""
    where, held = list(assignment.where), list(assignment.held)
    gaps: set[int] = set()
    for gone in failed:
        for shard in held[gone]:
            where[shard] = tuple(UNASSIGNED if replica == gone else replica for replica in where[shard])
        gaps.update(held[gone])
        held[gone] = ()
    return PartialAssignment(where, held, sorted(gaps), sorted(gaps))


def _lifted(where: list[tuple[int, ...]], limit: int) -> PartialAssignment:
    """The assignment with foreign parts beyond the limit unassigned, highest numbers first."""
    numbers: list[list[tuple[int, int]]] = [[] for _ in where]
    for shard, parts in enumerate(where):
        for part, replica in enumerate(parts):
            numbers[replica].append((shard, part))
    lifted: dict[int, list[int]] = {}
    for replica, computed in enumerate(numbers):
        foreign = [number for number in computed if number[0] != replica]
        for shard, part in foreign[len(foreign) - max(0, len(computed) - limit) :]:
            lifted.setdefault(shard, list(where[shard]))[part] = UNASSIGNED
            computed.remove((shard, part))
    held = [tuple(dict.fromkeys(shard for shard, _ in computed)) for computed in numbers]
    rows = [tuple(lifted[shard]) if shard in lifted else parts for shard, parts in enumerate(where)]
    return PartialAssignment(rows, held, sorted(lifted), range(len(where)))


def _replaced(table: list[tuple[int, ...]], changes: dict[int, tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    for index, row in changes.items():
        table[index] = row
    return tuple(table)


def _without(alive: Alive, replicas: Iterable[int]) -> tuple[Alive, list[int]]:
    left, failed = bytearray(alive), []
    for replica in sorted(set(replicas)):
        if not 0 <= replica < len(alive):
            raise ValueError(f"there is no replica {replica}: replicas are numbered 0 to {len(alive) - 1}")
        if left[replica]:
            left[replica] = 0
            failed.append(replica)
    return bytes(left), failed


def _wiped(placement: Placement, q: int, alive: Alive, gone: WipeOut) -> Assignment:
    lost, reason = gone.shards, gone.reason
    return Assignment(placement, q, alive, load=0, moved=0, changed=(), lost=lost, reason=reason, where=(), held=())


def _reason(placement: Placement, q: int, alive: Alive, load: int, moved: int) -> str:
    replicas, vacant = placement.replicas, placement.replicas - live_count(alive)
    if not vacant:
        own = "its own micro-shard" if q == 1 else f"its own {q} micro-shards"
        return f"all {replicas:,} replicas are live: each computes {own}"
    bound = load_bound(replicas, q, vacant)
    even = "the even share" if load == bound else f"the even share would be {bound}"
    which = f": {named('replica', _vacant(alive))}" if vacant <= SHOWN else ""
    most = counted(load, "micro-shard")
    return f"{vacant:,} of {replicas:,} replicas vacant{which}; at most {most} each, {even}; {moved:,} moved"


def _vacant(alive: Alive) -> list[int]:
    return [replica for replica, is_live in enumerate(alive) if not is_live]
