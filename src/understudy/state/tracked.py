"""What a job tracks, by kind, and the memory behind a tensor of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer

from .errors import StateError

Tracked = Mapping[str, object]
"""The objects that move with a role, by the names under which the job tracks them, in that order."""


class Place(NamedTuple):
    """A parameter of an optimizer, found by position: on every worker of a role the same parameter."""

    optimizer: Optimizer
    group: int
    position: int
    parameter: torch.Tensor
    name: str


def modules(tracked: Tracked) -> Iterator[tuple[str, nn.Module]]:
    for name, thing in tracked.items():
        if isinstance(thing, nn.Module):
            yield name, thing


def optimizers(tracked: Tracked) -> Iterator[tuple[str, Optimizer]]:
    """A ZeroRedundancyOptimizer is two: the one the user sees, and the one that holds this role's part of the state."""
    for name, thing in tracked.items():
        if isinstance(thing, Optimizer):
            yield name, thing
            if is_partitioned(thing):
                yield f"{name}.optim", thing.optim


def is_partitioned(thing: object) -> TypeGuard[Any]:
    """Whether it is a ZeroRedundancyOptimizer."""
    kind = _loaded("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer")
    return kind is not None and isinstance(thing, kind)


def is_dtensor(thing: object) -> TypeGuard[Any]:
    kind = _loaded("torch.distributed.tensor", "DTensor")
    return kind is not None and isinstance(thing, kind)


def _is_pending(thing: object) -> TypeGuard[Any]:
    """Whether it is the result of a collective that may still run."""
    kind = _loaded("torch.distributed._functional_collectives", "AsyncCollectiveTensor")
    return kind is not None and isinstance(thing, kind)


def _loaded(module: str, name: str) -> type | None:
    """A class whose module takes long to import; nothing can be an instance of it before somebody else has done so."""
    return getattr(sys.modules.get(module), name, None)


def places(name: str, optimizer: Optimizer) -> Iterator[Place]:
    for group, options in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(options["params"]):
            yield Place(optimizer, group, position, parameter, f"{name}[{group}][{position}]")


def module_tensors(tracked: Tracked) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """(name, tracked module, tensor) of all parameters, then all buffers, of each module. What is shared comes once.

    Afterwards the parameters of FSDP2 are sharded; those of a root module stay whole after an evaluation."""
    seen: set[int] = set()
    for name, module in modules(tracked):
        _reshard(module)
        for found in (module.named_parameters(), module.named_buffers()):
            for inner, tensor in found:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{name}.{inner}", module, tensor


def _reshard(module: nn.Module) -> None:
    kind: Any = _loaded("torch.distributed.fsdp", "FSDPModule")
    if kind is not None:
        for inner in module.modules():
            if isinstance(inner, kind):
                inner.reshard()


def extra_states(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The submodules that keep more than tensors, by torch's own get_extra_state."""
    for name, inner in module.named_modules():
        if type(inner).get_extra_state is not nn.Module.get_extra_state:
            yield name, inner


def local_part(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor, or this role's part of a DTensor: an alias of the very memory that training uses."""
    if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
        raise StateError(f"{name}: has no shape before the first forward; run one before the first step")
    if is_dtensor(tensor):
        with torch.no_grad():
            return local_part(tensor.to_local(), name)
    if _is_pending(tensor):
        return local_part(tensor.wait(), name)
    if hasattr(tensor, "__tensor_flatten__") or tensor.layout != torch.strided or tensor.is_quantized:
        kind = type(tensor).__name__
        raise StateError(f"{name}: a {kind} ({tensor.layout}, {tensor.dtype}) is not plain memory and cannot be moved")
    if tensor.is_meta:
        raise StateError(f"{name}: is on the meta device; give it memory before tracking it")
    alias = tensor.detach().as_subclass(torch.Tensor)
    for dimension, (size, stride) in enumerate(zip(alias.shape, alias.stride(), strict=True)):
        if stride == 0 and size > 1:  # an expanded dimension is the same memory over and over
            alias = alias.narrow(dimension, 0, 1)
    return alias
