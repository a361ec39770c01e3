"""Gradients over replicas: summed for a masked step, in a way that can be interrupted anywhere and continued, or
averaged for plain modules.

With `--deterministic` the sum has one order, independent of the replicas that compute its terms: a bucket is cut into
one part for each live replica; each replica sends its terms of a part to the part's owner, which sums them from the
first shard to the last and broadcasts the result.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from understudy.comm.group import RoleGroup
from understudy.comm.ops import accumulator
from understudy.state.kinds import Tracked, module_tensors
from understudy.worker.runtime import JobError

from .partial_sums import BYTES, Bucket, Gradients, PartialSums, buckets_of, local_gradient
from .shard_plan import Segment, ShardPlan

NONE = 1 << 40
"""Greater than any rank and any number of micro-shards."""
IN_FLIGHT = 2


class Miscounted(RuntimeError):
    """The replicas do not agree on the micro-shards of a step."""


class SumInterrupted(Exception):
    """The sum was interrupted. Buckets that were settled before are complete; the others are undefined."""


class Synchroniser:
    """One role's end of the group of roles that hold the same state. Its rank in the group is its replica."""

    def __init__(
        self,
        group: RoleGroup,
        parameters: Sequence[torch.Tensor],
        managed: frozenset[int],
        sound: Callable[[], bool],
        limit: int = BYTES,
    ) -> None:
        self.group, self.parameters = group, parameters
        self.buckets = buckets_of(parameters, managed, limit)
        self.divides = True
        """Whether gradients that a framework would have reduced have to be divided by the number of replicas."""
        self._sound = sound
        self._memory: list[torch.Tensor | None] = [None] * IN_FLIGHT

    def run(self, sums: PartialSums, plan: ShardPlan, *, check: bool = True) -> dict[str, float]:
        """Settle all buckets and give the parameters the mean over all micro-shards as gradients.

        Returns the means of the logged values. Raises SumInterrupted if `sound` becomes false; buckets that are settled
        by then are complete. `check` False, in a rehearsal: the other replicas' numbers are made up."""
        sums.store()
        roots, present = self._agree(sums, plan, check=check)
        means = self._means(sums, plan)
        under_way: deque[tuple[Bucket, Callable[[], torch.Tensor]]] = deque()
        try:
            for bucket in self.buckets:
                if len(under_way) == IN_FLIGHT:
                    self._settle(sums, present, *under_way.popleft())
                root = roots[bucket.number]
                place = bucket.number % IN_FLIGHT
                under_way.append((bucket, self._start(sums, plan, bucket, root if root < NONE else None, place)))
            while under_way:
                self._settle(sums, present, *under_way.popleft())
        except SumInterrupted:
            for _, finish in under_way:
                finish()  # returns at once; the result is undefined
            raise
        for bucket in self.buckets:
            for member, total in zip(bucket.members, sums.totals[bucket.number], strict=True):
                self.parameters[member].grad = total
        return means

    def _agree(self, sums: PartialSums, plan: ShardPlan, *, check: bool) -> tuple[list[int], list[bool]]:
        """The replica that has the total of each bucket already, and whether any replica has a gradient of each
        parameter."""
        replicas, rank = plan.replicas, self.group.endpoint.rank
        counts = [NONE] * replicas
        counts[rank] = len(sums.done)
        names = _code(_names(sums))
        roots = [rank if bucket.number in sums.totals else NONE for bucket in self.buckets]
        absent = [1] * len(self.parameters)
        for bucket in self.buckets:
            totals = sums.totals.get(bucket.number)
            for place, member in enumerate(bucket.members):
                found: Gradients = (
                    [each[member] for each in sums.by_segment.values()] if totals is None else [totals[place]]
                )
                absent[member] = int(all(grad is None for grad in found))
        numbers = torch.tensor([*counts, names, -names, *roots, *absent])
        all_reduce(self.group, numbers, dist.ReduceOp.MIN).wait()
        self._check()
        least: list[int] = numbers.tolist()
        if check:
            _check_counts(least[:replicas], plan)
            if least[replicas] != -least[replicas + 1]:
                raise Miscounted("replicas have logged values of different names; log the same ones for every shard")
        at = replicas + 2
        return least[at : at + len(roots)], [not flag for flag in least[at + len(roots) :]]

    def _means(self, sums: PartialSums, plan: ShardPlan) -> dict[str, float]:
        """The means of the logged values over all micro-shards; deterministic steps sum from the first to the last."""
        names = _names(sums)
        if not names:
            return {}
        rows = plan.count if plan.deterministic else 1
        table = torch.zeros(rows, len(names), dtype=torch.float64)
        for number in sums.done:
            row = number if plan.deterministic else 0
            for column, name in enumerate(names):
                table[row, column] += sums.values[number].get(name, 0.0)
        all_reduce(self.group, table, dist.ReduceOp.SUM).wait()
        self._check()
        columns = zip(*table.tolist(), strict=True)
        return {name: reduce(add, column, 0.0) / plan.count for name, column in zip(names, columns, strict=True)}

    def _start(
        self, sums: PartialSums, plan: ShardPlan, bucket: Bucket, root: int | None, place: int
    ) -> Callable[[], torch.Tensor]:
        """Begin to reduce a bucket. Returns a function that waits for the result."""
        divides = self.divides or not bucket.divided
        if not bucket.elements:  # a role's parts of small tensors may be empty, on all of its twins alike
            return lambda: torch.empty(0, dtype=bucket.dtype, device=bucket.device)
        if root is not None or not plan.deterministic:
            flat = self._flat(place, bucket)
            if root is not None:
                if root == self.group.endpoint.rank:
                    bucket.gather(dict(zip(bucket.members, sums.totals[bucket.number], strict=True)), flat)
                work = broadcast(self.group, flat, root)
            else:
                bucket.gather(sums.by_segment.get(0, [None] * len(self.parameters)), flat)
                work = all_reduce(self.group, flat, dist.ReduceOp.AVG if divides else dist.ReduceOp.SUM)

            def finish() -> torch.Tensor:
                work.wait()
                return flat

            return finish
        exchange = Exchange(self.group, plan, bucket, sums.by_segment)
        return lambda: exchange.finish(plan.replicas if divides else 1)

    def _flat(self, place: int, bucket: Bucket) -> torch.Tensor:
        """Memory for a flat bucket, which is used again: as much as the largest bucket at this place."""
        size, memory = bucket.elements * bucket.dtype.itemsize, self._memory[place]
        if memory is None or memory.numel() < size or memory.device != bucket.device:
            memory = self._memory[place] = torch.empty(size, dtype=torch.uint8, device=bucket.device)
        return memory[:size].view(bucket.dtype)

    @torch.no_grad()
    def _settle(
        self, sums: PartialSums, present: list[bool], bucket: Bucket, finish: Callable[[], torch.Tensor]
    ) -> None:
        flat = finish()
        self._check()
        if bucket.number in sums.totals:
            return
        targets = [self._target(sums, member) if present[member] else None for member in bucket.members]
        bucket.spread(flat, targets)
        sums.settle(bucket.number, bucket.members, targets)

    def _target(self, sums: PartialSums, member: int) -> torch.Tensor:
        """Memory for a total: that of a partial sum, if there is one."""
        held = (found[member] for found in sums.by_segment.values())
        grad = next((grad for grad in held if grad is not None), None)
        return torch.zeros_like(self.parameters[member]) if grad is None else grad

    def _check(self) -> None:
        if not self._sound():
            raise SumInterrupted


def _names(sums: PartialSums) -> list[str]:
    return sorted({name for values in sums.values.values() for name in values})


def _code(names: list[str]) -> int:
    """A number that stands for a list of names in an all-reduce."""
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=7).digest(), "little")


def _check_counts(counts: list[int], plan: ShardPlan) -> None:
    """Raise Miscounted unless every micro-shard is in the sum exactly once."""
    for replica, due in enumerate(plan.loads):
        if counts[replica] != (due or NONE):
            raise Miscounted(
                f"replica {replica} has computed {counts[replica]} micro-shards of {plan.count} and not {due}; all "
                "replicas must give step.shards(...) the same number"
            )


class Exchange:
    """The ordered sum of one bucket. The constructor starts its messages."""

    def __init__(self, group: RoleGroup, plan: ShardPlan, bucket: Bucket, sums: Mapping[int, Gradients]) -> None:
        self._group, self._plan, self._bucket, self._replica = group, plan, bucket, plan.replica
        self._cuts = cuts(bucket.elements, plan.live)
        segments = [segment for shard in plan.shards for segment in shard]
        self._mine: dict[int, torch.Tensor] = {}
        self._theirs: dict[int, torch.Tensor] = {}
        self._works: list[Any] = []
        low, high = self._cuts[self._replica]
        tagged = list(enumerate(segments, bucket.number * len(segments)))
        for tag, segment in tagged:
            if segment.replica != self._replica and high > low:
                self._theirs[segment.name] = part = self._empty(high - low)
                self._works.append(group.recv([part], segment.replica, tag))
        for tag, segment in tagged:
            if segment.replica == self._replica:
                self._mine[segment.name] = flat = bucket.gather(sums[segment.name], self._empty(bucket.elements))
                for replica, (first, last) in self._cuts.items():
                    if replica != self._replica and last > first:
                        self._works.append(group.send([flat[first:last]], replica, tag))

    def _empty(self, elements: int) -> torch.Tensor:
        return torch.empty(elements, dtype=self._bucket.dtype, device=self._bucket.device)

    @torch.no_grad()
    def finish(self, divisor: int) -> torch.Tensor:
        """Wait for all terms and return the whole sum, divided."""
        for work in self._works:
            work.wait()
        result = self._empty(self._bucket.elements)
        low, high = self._cuts[self._replica]
        result[low:high] = self._fold(low, high).div_(divisor)
        self._mine.clear()
        self._theirs.clear()
        parts = [(replica, result[first:last]) for replica, (first, last) in self._cuts.items() if last > first]
        for work in [broadcast(self._group, part, replica) for replica, part in parts]:
            work.wait()
        return result

    def _fold(self, low: int, high: int) -> torch.Tensor:
        """Sum all terms from zero on, so that a missing gradient counts like a zero."""
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
        if segment.replica == self._replica:
            return self._mine[segment.name][low:high]
        return self._theirs.get(segment.name, self._empty(0))


def all_reduce(group: RoleGroup, tensor: torch.Tensor, kind: Any) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp, options.asyncOp = dist.ReduceOp(kind), True
    return group.allreduce([tensor], options)


def broadcast(group: RoleGroup, flat: torch.Tensor, root: int) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank, options.asyncOp = root, True
    return group.broadcast([flat], options)


def cuts(elements: int, live: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """The part of a bucket that each live replica sums."""
    step = -(-elements // len(live))
    return {
        replica: (min(place * step, elements), min((place + 1) * step, elements)) for place, replica in enumerate(live)
    }


def check_tracked(modules: Sequence[nn.Module], tracked: Tracked) -> None:
    """Raise JobError unless all parameters of averaged modules are tracked."""
    known = {id(tensor) for _, tensor in module_tensors(tracked)}
    if any(id(parameter) not in known for module in modules for parameter in module.parameters()):
        raise JobError("job.average: a module is averaged that is not tracked; name it in job.track(...), too")


class Averaging:
    """Gradients of plain modules, averaged with one all-reduce for each parameter: `job.average` without `--mask`."""

    def __init__(self, modules: Sequence[nn.Module], group: RoleGroup) -> None:
        self._parameters = list({id(p): p for module in modules for p in module.parameters()}.values())
        self._group = group

    @torch.no_grad()
    def run(self) -> None:
        size = self._group.endpoint.size
        for parameter in self._parameters if size > 1 else ():
            if parameter.grad is not None:
                local, options = local_gradient(parameter.grad), dist.AllreduceOptions()
                options.asyncOp = False
                self._group.allreduce([local], options).wait()
                local /= size
