"""Who computes which micro-shards of a step, and in which order their gradients are summed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from understudy.masking.assignment import Assignment


@dataclass(frozen=True)
class Segment:
    """Micro-shards of one shard that one unit sums up on its own."""

    unit: int
    numbers: tuple[int, ...]

    @property
    def name(self) -> int:
        return self.numbers[0]


@dataclass(frozen=True)
class ShardPlan:
    """One attempt of a step, the same for all who know who is live."""

    assignment: Assignment
    unit: int
    deterministic: bool

    @property
    def units(self) -> int:
        return self.assignment.placement.replicas

    @property
    def count(self) -> int:
        return self.units * self.assignment.q

    @cached_property
    def live(self) -> tuple[int, ...]:
        return self.assignment.live

    @cached_property
    def mine(self) -> tuple[int, ...]:
        """The micro-shards that this unit computes, in order: its own first."""
        return self.assignment.of(self.unit)

    @cached_property
    def loads(self) -> tuple[int, ...]:
        """How many each unit computes; none where it is vacant."""
        found = [0] * self.units
        for where in self.assignment.where:
            for unit in where:
                found[unit] += 1
        return tuple(found)

    def own(self, number: int) -> bool:
        return number // self.assignment.q == self.unit

    @cached_property
    def shards(self) -> tuple[tuple[Segment, ...], ...]:
        """For every shard its segments, in the order in which they are summed.

        The sum of a shard is that of its micro-shards from left to right, whoever computes them. A unit that computes
        the first ones can sum them up itself without a difference; each later one of another unit is a segment."""
        return tuple(_cut(shard, where) for shard, where in enumerate(self.assignment.where))

    @cached_property
    def _segment(self) -> dict[int, int]:
        return {number: each.name for shard in self.shards for each in shard for number in each.numbers}

    def segment(self, number: int) -> int:
        """The name of the segment that a micro-shard belongs to."""
        return self._segment[number] if self.deterministic else 0


def _cut(shard: int, where: tuple[int, ...]) -> tuple[Segment, ...]:
    first, q = where[0], len(where)
    head = next((part for part, unit in enumerate(where) if unit != first), q)
    numbers = tuple(range(shard * q, shard * q + q))
    return (
        Segment(first, numbers[:head]),
        *(Segment(where[part], (numbers[part],)) for part in range(head, q)),
    )


def still_good(done: list[int], plan: ShardPlan) -> bool:
    """Whether what a unit has computed is the beginning of what it is to compute."""
    return tuple(done) == plan.mine[: len(done)]
