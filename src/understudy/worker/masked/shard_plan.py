"""Which replica computes which micro-shards of a step, and the order in which their gradients are summed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from understudy.masking.assignment import Assignment


@dataclass(frozen=True)
class Segment:
    """Micro-shards of one shard that one replica sums on its own."""

    replica: int
    numbers: tuple[int, ...]

    @property
    def name(self) -> int:
        return self.numbers[0]


@dataclass(frozen=True)
class ShardPlan:
    """One attempt of a step. All replicas derive the same plan from the set of live replicas."""

    assignment: Assignment
    replica: int
    deterministic: bool

    @property
    def replicas(self) -> int:
        return self.assignment.placement.replicas

    @property
    def count(self) -> int:
        return self.replicas * self.assignment.q

    @cached_property
    def live(self) -> tuple[int, ...]:
        return self.assignment.live

    @cached_property
    def mine(self) -> tuple[int, ...]:
        """The micro-shards that this replica computes, in order: its own first."""
        return self.assignment.of(self.replica)

    @cached_property
    def loads(self) -> tuple[int, ...]:
        """Micro-shards of each replica; 0 for a vacant one."""
        loads = Counter(replica for where in self.assignment.where for replica in where)
        return tuple(loads[replica] for replica in range(self.replicas))

    def own(self, number: int) -> bool:
        return number // self.assignment.q == self.replica

    @cached_property
    def shards(self) -> tuple[tuple[Segment, ...], ...]:
        """The segments of every shard, in the order in which they are summed.

        A shard is summed micro-shard by micro-shard, so that the result does not depend on the replicas that compute
        them. The first micro-shards of one replica make one segment; each later micro-shard is a segment of its own."""
        return tuple(_cut(shard, where) for shard, where in enumerate(self.assignment.where))

    @cached_property
    def _segment(self) -> dict[int, int]:
        return {number: each.name for shard in self.shards for each in shard for number in each.numbers}

    def segment(self, number: int) -> int:
        """The name of the segment that a micro-shard belongs to."""
        return self._segment[number] if self.deterministic else 0


def _cut(shard: int, where: tuple[int, ...]) -> tuple[Segment, ...]:
    first, q = where[0], len(where)
    head = next((part for part, replica in enumerate(where) if replica != first), q)
    numbers = tuple(range(shard * q, shard * q + q))
    return (Segment(first, numbers[:head]), *(Segment(where[part], (numbers[part],)) for part in range(head, q)))


def still_good(done: list[int], plan: ShardPlan) -> bool:
    """Whether the micro-shards that a replica has computed are the first ones of its plan."""
    return tuple(done) == plan.mine[: len(done)]
