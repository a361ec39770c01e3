"""Whole shards and ordered stacks, as SPARe masks: every live replica computes the first `depth` shards of its stack.

More is computed than needed, and that is what makes most failures free. After a failure, in this order:

- phase 0: the survivors' first `depth` shards still cover everything: nothing changes;
- phase 1: otherwise, the smallest depth at which the survivors can cover everything;
- phase 2: at that depth, the arrangement with the fewest shards that were not computed anyway; they are computed in
  addition to what was (`patch`), and the stacks are permuted so that they stand among the first.

Depth never falls while replicas only fail, so a failure starts from max(depth, ceil(N / live)) and looks for ways only
for the shards that were lost. All three answers are exact. The stacks follow from the order of failures and refills;
`assignment` says which replica a shard is counted for, since each counts once in the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from understudy.masking.assignment import Assignment, assign, mask, refill
from understudy.masking.coverage import live_count
from understudy.masking.placement import Placement, PlacementError
from understudy.masking.spread import Kept
from understudy.protocol.sentences import counted, named


@dataclass(frozen=True)
class Stacks:
    """Every replica's stack in the order of computation.

    `copies` is how many live replicas compute a shard, empty where a byte might not hold it. `phase` is where the last
    failure ended: 0 nothing to do, 1 wipe-out, 2 reordered.
    """

    assignment: Assignment
    order: tuple[tuple[int, ...], ...]
    copies: bytes
    phase: int
    patch: tuple[int, ...]
    reason: str

    @property
    def depth(self) -> int:
        return self.assignment.load

    @property
    def live(self) -> tuple[int, ...]:
        return self.assignment.live

    @property
    def lost(self) -> tuple[int, ...]:
        """After a wipe-out the shards without a live holder."""
        return self.assignment.lost

    def computed(self, replica: int) -> tuple[int, ...]:
        """The shards that the replica computes."""
        return self.order[replica][: self.depth]


def stacked(placement: Placement) -> Stacks:
    """Everybody live, depth 1: each replica computes its own shard."""
    if placement.everywhere:
        raise PlacementError("anywhere has no stacks to reorder: spread micro-shards instead")
    normal = assign(placement, 1, range(placement.replicas))
    order = tuple(placement.stack(replica) for replica in range(placement.replicas))
    return Stacks(normal, order, _copies(normal, order), 0, (), normal.reason)


def after_failure(stacks: Stacks, replicas: Iterable[int]) -> Stacks:
    """Phases 0, 1 and 2 after these replicas have failed."""
    before, order, depth = stacks.assignment, stacks.order, stacks.depth
    copies, failed = bytearray(stacks.copies), [replica for replica in sorted(set(replicas)) if before.alive[replica]]
    for replica in failed if copies else ():
        for shard in stacks.computed(replica):
            copies[shard] -= 1

    def computes(shard: int, replica: int) -> int:
        return 1 if shard in order[replica][:depth] else 0

    def elsewhere(shard: int) -> bool:
        return not copies or copies[shard] > 1 or before.where[shard][0] in failed

    after = mask(before, failed, Kept(computes, elsewhere))
    if after.lost:
        return Stacks(after, order, stacks.copies, 1, (), after.reason)
    patch = tuple(shard for shard in after.changed if not computes(shard, after.where[shard][0]))
    if not patch:
        return Stacks(after, order, bytes(copies), 0, (), _failure_reason(after, depth, patch))
    rows = list(order)
    for shard in patch:
        replica = after.where[shard][0]
        row = _brought_forward(rows[replica], shard, after.held[replica], depth, after.load)
        if copies and after.load == depth:
            copies[shard] += 1
            copies[row[rows[replica].index(shard)]] -= 1
        rows[replica] = row
    table = tuple(rows)
    counted_anew = _copies(after, table) if after.load > depth else bytes(copies)
    return Stacks(after, table, counted_anew, 2, patch, _failure_reason(after, depth, patch))


def after_refill(stacks: Stacks, replicas: Iterable[int]) -> Stacks:
    """After these replicas are live again: the smallest depth, own shards first; with everybody live all is normal."""
    after = refill(stacks.assignment, replicas)
    if after.lost:
        return Stacks(after, stacks.order, stacks.copies, 1, (), after.reason)
    placement, back = after.placement, set(replicas)
    if 0 not in after.alive:
        return stacked(placement)
    rows = list(stacks.order)
    for replica, held in enumerate(after.held):
        if replica in back or not set(held) <= set(rows[replica][: after.load]):
            stack = placement.stack(replica)
            rows[replica] = tuple(sorted(stack, key=lambda shard: (shard not in held, stack.index(shard))))
    reason = f"{counted(len(back), 'replica')} back: depth {after.load}; {after.reason}"
    table = tuple(rows)
    return Stacks(after, table, _copies(after, table), 0, (), reason)


def _copies(assignment: Assignment, order: tuple[tuple[int, ...], ...]) -> bytes:
    if assignment.placement.r > 255:
        return b""
    found = bytearray(len(order))
    for replica in assignment.live:
        for shard in order[replica][: assignment.load]:
            found[shard] += 1
    return bytes(found)


def _brought_forward(
    stack: tuple[int, ...], shard: int, counted_here: tuple[int, ...], depth: int, new_depth: int
) -> tuple[int, ...]:
    """The shard among the first `new_depth`, for one that is not counted here; a place just opened first."""
    now = stack.index(shard)
    if now < new_depth:
        return stack
    places = [*range(depth, new_depth), *range(min(depth, new_depth) - 1, -1, -1)]
    place = next(place for place in places if stack[place] not in counted_here)
    row = list(stack)
    row[place], row[now] = row[now], row[place]
    return tuple(row)


def _failure_reason(after: Assignment, depth: int, patch: tuple[int, ...]) -> str:
    live = f"{live_count(after.alive):,} of {after.placement.replicas:,} replicas live"
    if not patch:
        return f"phase 0: {live}, their first {counted(depth, 'shard')} still cover everything"
    deeper = f"depth {depth} becomes {after.load}" if after.load > depth else f"depth stays {depth}"
    return f"phase 2: {live}, {deeper}; computed in addition: {named('shard', patch)}"
