"""A sum in one order, whoever has computed what.

A bucket is cut into as many parts as there are live replicas. Everybody sends what it has of a part to the part's
owner, which sums it from the first shard to the last, and gives the result to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from understudy.comm.group import RoleGroup
from understudy.comm.reduction import accumulator

from .buckets import Bucket
from .segments import Segment, ShardPlan
from .share import Gradients


class Exchange:
    """One bucket on its way; messages are under way once this is made."""

    def __init__(self, group: RoleGroup, plan: ShardPlan, bucket: Bucket, sums: Mapping[int, Gradients]) -> None:
        self._group, self._plan, self._bucket = group, plan, bucket
        self._unit = plan.unit
        self._cuts = cuts(bucket.elements, plan.live)
        segments = [segment for shard in plan.shards for segment in shard]
        self._mine: dict[int, torch.Tensor] = {}
        self._theirs: dict[int, torch.Tensor] = {}
        self._works: list[Any] = []
        low, high = self._cuts[self._unit]
        for place, segment in enumerate(segments):
            tag = bucket.number * len(segments) + place
            if segment.unit != self._unit and high > low:
                self._theirs[segment.name] = part = self._empty(high - low)
                self._works.append(group.recv([part], segment.unit, tag))
        for place, segment in enumerate(segments):
            tag = bucket.number * len(segments) + place
            if segment.unit == self._unit:
                self._mine[segment.name] = flat = bucket.gather(sums[segment.name], self._empty(bucket.elements))
                for unit, (first, last) in self._cuts.items():
                    if unit != self._unit and last > first:
                        self._works.append(group.send([flat[first:last]], unit, tag))

    def _empty(self, elements: int) -> torch.Tensor:
        return torch.empty(elements, dtype=self._bucket.dtype, device=self._bucket.device)

    @torch.no_grad()
    def finish(self, divisor: int) -> torch.Tensor:
        """The whole sum, divided."""
        for work in self._works:
            work.wait()
        result = self._empty(self._bucket.elements)
        low, high = self._cuts[self._unit]
        result[low:high] = self._fold(low, high).div_(divisor)
        self._mine.clear()
        self._theirs.clear()
        works = []
        for unit, (first, last) in self._cuts.items():
            if last > first:
                works.append(broadcast(self._group, result[first:last], unit))
        for work in works:
            work.wait()
        return result

    def _fold(self, low: int, high: int) -> torch.Tensor:
        """From zero on, so that it makes no difference whether a gradient is missing or zero."""
        total = torch.zeros(high - low, dtype=accumulator(self._bucket.dtype), device=self._bucket.device)
        for shard in self._plan.shards:
            first, *others = (self._part(segment, low, high) for segment in shard)
            if others:
                first = first.clone()
            for other in others:
                first += other
            total += first
        return total

    def _part(self, segment: Segment, low: int, high: int) -> torch.Tensor:
        if segment.unit == self._unit:
            return self._mine[segment.name][low:high]
        return self._theirs.get(segment.name, self._empty(0))


def broadcast(group: RoleGroup, flat: torch.Tensor, root: int) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank, options.asyncOp = root, True
    return group.broadcast([flat], options)


def cuts(elements: int, live: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Which part of a bucket each of them sums."""
    step = -(-elements // len(live))
    return {unit: (min(place * step, elements), min((place + 1) * step, elements)) for place, unit in enumerate(live)}
