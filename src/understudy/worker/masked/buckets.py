"""Gradients in a few flat buffers, with the same layout on all roles that hold the same parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from understudy.state.memory import is_dtensor, local_part

from .partial_sums import Gradients

BYTES = 25 << 20


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
