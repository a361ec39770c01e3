"""SPARe's masking with whole shards: every live replica computes the first `depth` shards of its ordered stack.

Replicas compute more shards than needed, which makes most failures free. After a failure:

- phase 0: if the survivors' first `depth` shards still cover all shards, nothing changes;
- phase 1: otherwise, find the smallest depth at which the survivors can cover all shards;
- phase 2: at that depth, find the arrangement with the fewest additional shards. These are computed in addition
  (`patch`), and the stacks are permuted so that these shards are among the first.

The depth never falls while replicas only fail, so a failure starts from max(depth, ceil(N / live)) and searches only
for the lost shards. All three phases are exact. The stacks follow from the order of failures and refills; `assignment`
names the replica that counts for each shard, because each shard counts once in the gradient.
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
    """The stack of every replica, in order of computation.

    `copies` is the number of live replicas that compute each shard, empty if a byte might be too small. `phase` is the
    phase in which the last failure ended: 0 nothing to do, 1 wipe-out, 2 reordered.
    """

    assignment: Assignment
    order: tuple[tuple[int, ...], ...]
    copies: bytes
    phase: int
    patch: tuple[int, ...]
    reason: str

    @property
    def depth(self) -> int:
        """Number of shards that every live replica computes."""
        return self.assignment.load

    def computed(self, replica: int) -> tuple[int, ...]:
        """The shards that the replica computes."""
        return self.order[replica][: self.depth]


def stacked(placement: Placement) -> Stacks:
    """Stacks with all replicas live, at depth 1: each replica computes its own shard."""
    if placement.everywhere:
        raise PlacementError("placement anywhere has no stacks to reorder; spread micro-shards instead")
    normal = assign(placement, 1, range(placement.replicas))
    order = tuple(placement.stack(replica) for replica in range(placement.replicas))
    return Stacks(normal, order, _copies(normal, order), 0, (), normal.reason)


def after_failure(stacks: Stacks, replicas: Iterable[int]) -> Stacks:
    """The stacks after these replicas have failed: phases 0, 1 and 2."""
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
    """The stacks after these replicas are live again: the smallest depth, own shards first.

    With all replicas live, the result is `stacked`.
    """
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
    """The stack with the shard among its first `new_depth`, exchanged for one that does not count here.

    Positions from `depth` on, which the new depth has added, are used first.
    """
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
        return f"phase 0: {live}, their first {counted(depth, 'shard')} still cover all shards"
    deeper = f"depth {depth} becomes {after.load}" if after.load > depth else f"depth stays {depth}"
    return f"phase 2: {live}, {deeper}; computed in addition: {named('shard', patch)}"
