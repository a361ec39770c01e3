"""The gradients that one replica has computed of a step, kept so that they survive an interruption, and their flat
layout in buckets, which is the same on all roles that hold the same parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from understudy.state.memory import is_dtensor, local_part

Gradients = list[torch.Tensor | None]
"""One gradient for each parameter; None: the parameter has none."""
BYTES = 25 << 20


class PartialSums:
    """The sums of this replica's gradients, by segment, and the totals over all replicas, by bucket.

    A segment is summed on its own: the whole step or, with `--deterministic`, the part of a shard that one replica
    computes. The sum under way stays in the parameters' `grad`, where autograd adds to it; it is copied on request
    only."""

    def __init__(self, step: int, micro: int, parameters: Sequence[torch.Tensor]) -> None:
        self.step, self.micro = step, micro
        self.done: list[int] = []
        """Micro-shards in the sums, in order."""
        self.values: dict[int, dict[str, float]] = {}
        """The logged values of each micro-shard."""
        self.by_segment: dict[int, Gradients] = {}
        self.totals: dict[int, Gradients] = {}
        """By bucket: the gradients of its members, reduced over all replicas."""
        self._parameters = parameters
        self._members: dict[int, list[int]] = {}
        """Micro-shards of each segment."""
        self._loaded: int | None = None
        self._copy: Gradients | None = None

    def load(self, segment: int, *, copy: bool = False) -> None:
        """Put the sum of a segment into the parameters, so that the next micro-shards add to it."""
        if self._loaded == segment:
            return
        self.store()
        found = self.by_segment.get(segment)
        for number, parameter in enumerate(self._parameters):
            parameter.grad = None if found is None else found[number]
        self._loaded = segment
        self._copy = _copied(found, None) if copy and found is not None else None

    def add(self, number: int, values: dict[str, float], *, copy: bool = False) -> None:
        """Count a micro-shard: its gradients are complete and defined."""
        assert self._loaded is not None
        self.done.append(number)
        self.values[number] = values
        self._members.setdefault(self._loaded, []).append(number)
        if copy:
            self._copy = _copied([parameter.grad for parameter in self._parameters], self._copy)

    def store(self) -> None:
        """Take the sum under way out of the parameters."""
        segment, self._loaded = self._loaded, None
        if segment is not None:
            self.by_segment[segment] = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        self._copy = None

    def spoil(self) -> None:
        """Discard the sum under way, which has undefined values in it: restore its copy if there is one; otherwise the
        whole segment is to be computed again."""
        segment, copy = self._loaded, self._copy
        self.store()
        if segment is None:
            return
        if copy is not None:
            self.by_segment[segment] = copy
        else:
            del self.by_segment[segment]
            lost = set(self._members.pop(segment, ()))
            self.done = [number for number in self.done if number not in lost]

    def forget(self) -> None:
        """Discard this replica's sums; the totals stay."""
        self._loaded = self._copy = None
        self.done.clear()
        self.by_segment.clear()
        self._members.clear()
        self.values.clear()

    def settle(self, bucket: int, members: Sequence[int], totals: Gradients) -> None:
        """Keep the totals of a bucket, and free the sums that went into them."""
        self.totals[bucket] = totals
        for found in self.by_segment.values():
            for member in members:
                found[member] = None


@torch.no_grad()
def _copied(gradients: Gradients, into: Gradients | None) -> Gradients:
    """A copy, in the memory of an earlier copy if there is one."""
    old: Gradients = [None] * len(gradients) if into is None else into
    return [
        None if grad is None else grad.detach().clone() if kept is None else kept.copy_(grad)
        for grad, kept in zip(gradients, old, strict=True)
    ]


@dataclass(frozen=True)
class Bucket:
    """Parameters of one dtype and device; their gradients are reduced together."""

    number: int
    members: tuple[int, ...]
    """Numbers of the parameters."""
    sizes: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    divided: bool
    """Whether a framework reduces these gradients and may have divided them by the number of replicas already."""

    @property
    def elements(self) -> int:
        return sum(self.sizes)

    @torch.no_grad()
    def gather(self, gradients: Gradients | Mapping[int, torch.Tensor | None], out: torch.Tensor) -> torch.Tensor:
        """Copy the members' gradients into `out`, one after the other; zeros for a missing one."""
        for member, piece in zip(self.members, out.split(self.sizes), strict=True):
            grad = gradients[member]
            if grad is None:
                piece.zero_()
            else:
                local = local_gradient(grad)
                piece.view(local.shape).copy_(local)
        return out

    @torch.no_grad()
    def spread(self, flat: torch.Tensor, targets: Iterable[torch.Tensor | None]) -> None:
        """Copy a flat buffer into the members' gradients."""
        for target, piece in zip(targets, flat.split(self.sizes), strict=True):
            if target is not None:
                local = local_gradient(target)
                local.copy_(piece.view(local.shape))


def local_gradient(grad: torch.Tensor) -> torch.Tensor:
    """This role's part of a gradient, without a copy."""
    if grad.layout != torch.strided:
        raise ValueError("sparse gradients cannot be averaged over replicas; build the embedding with sparse=False")
    return grad.to_local().detach() if is_dtensor(grad) else grad.detach()


def buckets_of(parameters: Sequence[torch.Tensor], managed: Iterable[int], limit: int = BYTES) -> tuple[Bucket, ...]:
    """Buckets of up to `limit` bytes, of parameters in their order; a larger parameter has a bucket of its own.
    `managed` are the numbers of the parameters with gradients that a framework reduces."""
    by_framework = set(managed)
    open_: dict[tuple[torch.dtype, torch.device, bool], list[tuple[int, int]]] = {}
    found: list[tuple[tuple[torch.dtype, torch.device, bool], list[tuple[int, int]]]] = []
    for number, parameter in enumerate(parameters):
        local = local_part(parameter, f"parameter {number}")
        kind = (local.dtype, local.device, number in by_framework)
        members = open_.get(kind)
        full = members is not None and (sum(size for _, size in members) + local.numel()) * local.itemsize > limit
        if members is None or full:
            members = open_[kind] = []
            found.append((kind, members))
        members.append((number, local.numel()))
    return tuple(
        Bucket(place, tuple(n for n, _ in members), tuple(size for _, size in members), *kind)
        for place, (kind, members) in enumerate(found)
    )
