"""What masking does to a step, by the runtime's own functions: one class per kind of masking, for `steps`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Protocol

from understudy.masking.assignment import assign
from understudy.masking.placement import Placement
from understudy.masking.stacks import after_failure, after_refill, stacked
from understudy.planning.strategy import Strategy

Patch = tuple[float, int]
"""Work that a step lacks: shards of the replica with the most of it, and the number of replicas that share it."""
NOTHING: Patch = (0.0, 0)


class StepMasking(Protocol):
    """Which members are live, and what each computes in a step."""

    @property
    def load(self) -> float:
        """Shards that a member computes in a step."""

    def lose(self, members: Collection[int]) -> Patch:
        """Masks these members; returns the work that the current step lacks."""

    def join(self, members: Collection[int]) -> None:
        """Refills these members."""


class StackMasking:
    """Whole shards in stacks, as SPARe does."""

    def __init__(self, placement: Placement) -> None:
        self.stacks = stacked(placement)

    @property
    def load(self) -> float:
        return float(self.stacks.depth)

    def lose(self, members: Collection[int]) -> Patch:
        self.stacks = after_failure(self.stacks, members)
        return _most(self.stacks.assignment.where[shard][0] for shard in self.stacks.patch)

    def join(self, members: Collection[int]) -> None:
        self.stacks = after_refill(self.stacks, members)


class MicroShardMasking:
    """Micro-shards, spread over the live holders; with the placement `anywhere`, also whole shards."""

    def __init__(self, placement: Placement, q: int) -> None:
        self.placement, self.q = placement, q
        self.live = set(range(placement.replicas))
        self.now = assign(placement, q, self.live)

    @property
    def load(self) -> float:
        return self.now.depth

    def lose(self, members: Collection[int]) -> Patch:
        before = self.now
        self.live -= set(members)
        self.now = assign(self.placement, self.q, self.live)
        numbers = [number for member in members for number in before.of(member)]
        most, by = _most(self.now.where[number // self.q][number % self.q] for number in numbers)
        return most / self.q, by

    def join(self, members: Collection[int]) -> None:
        self.live |= set(members)
        self.now = assign(self.placement, self.q, self.live)


class EvenMasking:
    """A smaller batch, or the work of missing members spread without a remainder."""

    def __init__(self, members: int) -> None:
        self.members, self.live = members, members

    @property
    def load(self) -> float:
        return self.members / self.live

    def lose(self, members: Collection[int]) -> Patch:
        self.live -= len(members)
        return NOTHING

    def join(self, members: Collection[int]) -> None:
        self.live += len(members)


class ReplicatedMasking:
    """Classic replication: each live replica of a block has computed all of the block's shards."""

    load = 1.0

    def lose(self, members: Collection[int]) -> Patch:
        return NOTHING

    def join(self, members: Collection[int]) -> None:
        pass


def step_masking(strategy: Strategy, members: int, placement: Placement | None) -> StepMasking:
    """The masking of a strategy, with all members live. Without a placement, work is spread evenly."""
    if placement is None:
        return EvenMasking(members)
    if strategy.redundancy > 1:
        return ReplicatedMasking()
    if strategy.q or placement.everywhere:
        return MicroShardMasking(placement, strategy.q or 1)
    return StackMasking(placement)


def _most(replicas: Iterable[int]) -> Patch:
    each = Counter(replicas)
    return (float(max(each.values())), len(each)) if each else NOTHING
