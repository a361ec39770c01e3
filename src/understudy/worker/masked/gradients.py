"""Gradients summed over all replicas, in a way that can be interrupted anywhere and gone on with."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from understudy.comm.group import RoleGroup

from .buckets import BYTES, Bucket, BucketScratch, buckets_of
from .exchange import Exchange, broadcast
from .segments import ShardPlan
from .share import Gradients, Share

NONE = 1 << 40
"""Greater than any rank and any number of micro-shards."""
IN_FLIGHT = 2


class Miscounted(RuntimeError):
    """The replicas do not agree about the step that they are in."""


class SumInterrupted(Exception):
    """What has come meanwhile may be undefined; what was settled before is not."""


class Synchroniser:
    """One role's end of the group of those that hold the same state; its rank in it is its unit."""

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
        """Whether what a framework would have reduced still has to be divided by the number of replicas."""
        self._sound = sound
        self._scratch = BucketScratch(IN_FLIGHT)

    def run(self, share: Share, plan: ShardPlan, *, check: bool = True) -> dict[str, float]:
        """Afterwards all buckets are settled, and the parameters have the mean over all micro-shards as gradients.
        Returns the means of what was logged. Raises Interrupted where `sound` has become false on the way; what is
        settled by then is complete. `check` is off where nobody else is there."""
        share.store()
        roots, present = self._agree(share, plan, check=check)
        means = self._means(share, plan)
        under_way: deque[tuple[Bucket, Callable[[], torch.Tensor]]] = deque()
        try:
            for bucket in self.buckets:
                if len(under_way) == IN_FLIGHT:
                    self._settle(share, present, *under_way.popleft())
                root = roots[bucket.number]
                place = bucket.number % IN_FLIGHT
                under_way.append((bucket, self._start(share, plan, bucket, root if root < NONE else None, place)))
            while under_way:
                self._settle(share, present, *under_way.popleft())
        except SumInterrupted:
            for _, finish in under_way:
                finish()  # at once, and whatever it is
            raise
        for bucket in self.buckets:
            for member, total in zip(bucket.members, share.totals[bucket.number], strict=True):
                self.parameters[member].grad = total
        return means

    def _agree(self, share: Share, plan: ShardPlan, *, check: bool) -> tuple[list[int], list[bool]]:
        """Who has the total of each bucket already, and which parameters anybody has a gradient of."""
        units, rank = plan.units, self.group.endpoint.rank
        counts = [NONE] * units
        counts[rank] = len(share.done)
        names = _code(_names(share))
        roots = [rank if bucket.number in share.totals else NONE for bucket in self.buckets]
        absent = [1] * len(self.parameters)
        for bucket in self.buckets:
            totals = share.totals.get(bucket.number)
            for place, member in enumerate(bucket.members):
                sums: Gradients = (
                    [found[member] for found in share.sums.values()] if totals is None else [totals[place]]
                )
                absent[member] = int(all(grad is None for grad in sums))
        numbers = torch.tensor([*counts, names, -names, *roots, *absent])
        self._all_reduce(numbers, dist.ReduceOp.MIN).wait()
        self._check()
        least: list[int] = numbers.tolist()
        if check:
            _check_counts(least[:units], plan)
            if least[units] != -least[units + 1]:
                raise Miscounted("replicas have logged values of different names; log the same ones for every shard")
        at = units + 2
        return least[at : at + len(roots)], [not flag for flag in least[at + len(roots) :]]

    def _means(self, share: Share, plan: ShardPlan) -> dict[str, float]:
        """Of what was logged, over all micro-shards; summed from the first to the last, if the order is to be kept."""
        names = _names(share)
        if not names:
            return {}
        rows = plan.count if plan.deterministic else 1
        table = torch.zeros(rows, len(names), dtype=torch.float64)
        for number in share.done:
            row = number if plan.deterministic else 0
            for column, name in enumerate(names):
                table[row, column] += share.values[number].get(name, 0.0)
        self._all_reduce(table, dist.ReduceOp.SUM).wait()
        self._check()
        sums = [0.0] * len(names)
        for line in table.tolist():
            sums = [so_far + value for so_far, value in zip(sums, line, strict=True)]
        return {name: total / plan.count for name, total in zip(names, sums, strict=True)}

    def _start(
        self, share: Share, plan: ShardPlan, bucket: Bucket, root: int | None, place: int
    ) -> Callable[[], torch.Tensor]:
        """Begin to reduce a bucket; what is returned waits for it."""
        divides = self.divides or not bucket.divided
        if not bucket.elements:  # this role's parts of small tensors may be empty, and then its twins' are
            return lambda: torch.empty(0, dtype=bucket.dtype, device=bucket.device)
        if root is not None or not plan.deterministic:
            flat = self._scratch.flat(place, bucket.elements, bucket.dtype, bucket.device)
            if root is not None:
                if root == self.group.endpoint.rank:
                    bucket.gather(_by_member(bucket, share.totals[bucket.number], len(self.parameters)), flat)
                work = broadcast(self.group, flat, root)
            else:
                bucket.gather(share.sums.get(0, [None] * len(self.parameters)), flat)
                work = self._all_reduce(flat, dist.ReduceOp.AVG if divides else dist.ReduceOp.SUM)

            def finish() -> torch.Tensor:
                work.wait()
                return flat

            return finish
        exchange = Exchange(self.group, plan, bucket, share.sums)
        return lambda: exchange.finish(plan.units if divides else 1)

    @torch.no_grad()
    def _settle(self, share: Share, present: list[bool], bucket: Bucket, finish: Callable[[], torch.Tensor]) -> None:
        flat = finish()
        self._check()
        if bucket.number in share.totals:
            return
        targets = [self._target(share, member) if present[member] else None for member in bucket.members]
        bucket.spread(flat, targets)
        share.settle(bucket.number, bucket.members, targets)

    def _target(self, share: Share, member: int) -> torch.Tensor:
        """Memory for a total: where a sum was, if there was one."""
        held = (found[member] for found in share.sums.values())
        grad = next((grad for grad in held if grad is not None), None)
        return torch.zeros_like(self.parameters[member]) if grad is None else grad

    def _check(self) -> None:
        if not self._sound():
            raise SumInterrupted

    def _all_reduce(self, tensor: torch.Tensor, kind: Any) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(kind)
        options.asyncOp = True
        return self.group.allreduce([tensor], options)


def _by_member(bucket: Bucket, totals: Gradients, count: int) -> Gradients:
    found: Gradients = [None] * count
    for member, total in zip(bucket.members, totals, strict=True):
        found[member] = total
    return found


def _names(share: Share) -> list[str]:
    return sorted({name for values in share.values.values() for name in values})


def _code(names: list[str]) -> int:
    """A number by which lists of names can be compared."""
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=7).digest(), "little")


def _check_counts(counts: list[int], plan: ShardPlan) -> None:
    """Every micro-shard is in the sum exactly once."""
    for unit, due in enumerate(plan.loads):
        if counts[unit] != (due or NONE):
            raise Miscounted(
                f"replica {unit} has computed {counts[unit]} micro-shards of {plan.count} where {due} are due; all "
                "replicas must give step.shards(...) the same number"
            )
