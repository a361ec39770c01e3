"""What masking does to a step, asked of the functions that the runtime asks: one object per way, for `steps`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Protocol

from understudy.masking.assignment import assign
from understudy.masking.coverage import wiped
from understudy.masking.placement import Placement
from understudy.masking.stacks import after_failure, after_refill, stacked
from understudy.planning.setting import Setting
from understudy.planning.strategy import Strategy, placed


class Patch:
    """What a step lacks: shards for the one who has most of them to compute, and how many compute some."""

    def __init__(self, shards: float, by: int) -> None:
        self.shards, self.by = shards, by


NOTHING = Patch(0.0, 0)


class Masking(Protocol):
    @property
    def load(self) -> float:
        """Shards that a unit computes in a step."""
        ...

    def lose(self, units: Collection[int]) -> Patch: ...

    def join(self, units: Collection[int]) -> None: ...

    def lost(self, alive: bytes, unit: int) -> bool:
        """Whether something of the unit that has just gone cannot be computed by those alive."""
        ...


class Reordered:
    """Whole shards in stacks, as SPARe does."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.stacks = placement, stacked(placement)

    @property
    def load(self) -> float:
        return float(self.stacks.depth)

    def lose(self, units: Collection[int]) -> Patch:
        self.stacks = after_failure(self.stacks, units)
        return _most(self.stacks.assignment.where[shard][0] for shard in self.stacks.patch)

    def join(self, units: Collection[int]) -> None:
        self.stacks = after_refill(self.stacks, units)

    def lost(self, alive: bytes, unit: int) -> bool:
        return bool(wiped(self.placement, alive, self.placement.stack(unit)))


class Shared:
    """Micro-shards on whoever holds them; whole ones where everybody holds everything."""

    def __init__(self, placement: Placement, q: int) -> None:
        self.placement, self.q = placement, q
        self.live = set(range(placement.replicas))
        self.now = assign(placement, q, self.live)

    @property
    def load(self) -> float:
        return self.now.depth

    def lose(self, units: Collection[int]) -> Patch:
        before = self.now
        self.live -= set(units)
        self.now = assign(self.placement, self.q, self.live)
        numbers = [number for unit in units for number in before.of(unit)]
        most = _most(self.now.where[number // self.q][number % self.q] for number in numbers)
        return Patch(most.shards / self.q, most.by)

    def join(self, units: Collection[int]) -> None:
        self.live |= set(units)
        self.now = assign(self.placement, self.q, self.live)

    def lost(self, alive: bytes, unit: int) -> bool:
        return bool(wiped(self.placement, alive, self.placement.stack(unit)))


class Even:
    """The batch is smaller, or the work of the missing is spread without a remainder."""

    def __init__(self, units: int) -> None:
        self.units, self.live = units, units

    @property
    def load(self) -> float:
        return self.units / self.live

    def lose(self, units: Collection[int]) -> Patch:
        self.live -= len(units)
        return NOTHING

    def join(self, units: Collection[int]) -> None:
        self.live += len(units)

    def lost(self, alive: bytes, unit: int) -> bool:
        return not any(alive)


class Copied:
    """Classic replication: whoever is left of a block has computed it all anyway."""

    load = 1.0

    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def lose(self, units: Collection[int]) -> Patch:
        return NOTHING

    def join(self, units: Collection[int]) -> None:
        pass

    def lost(self, alive: bytes, unit: int) -> bool:
        return bool(wiped(self.placement, alive, self.placement.stack(unit)))


def masking(setting: Setting, strategy: Strategy) -> Masking:
    """Everybody live."""
    units = strategy.units(setting)
    if strategy.answer != "mask" or strategy.evenly:
        return Even(units)
    placement = placed(strategy.placement, units)
    if strategy.redundancy > 1:
        return Copied(placement)
    if strategy.q or placement.everywhere:
        return Shared(placement, strategy.q or 1)
    return Reordered(placement)


def _most(replicas: Iterable[int]) -> Patch:
    each = Counter(replicas)
    return Patch(float(max(each.values())), len(each)) if each else NOTHING
