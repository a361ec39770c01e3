"""Gradients that frameworks do not synchronise while a masked step computes: the runtime does it at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel

from understudy.comm.endpoint import Endpoint
from understudy.device import torch_private
from understudy.state.kinds import Tracked, module_tensors, modules
from understudy.state.memory import is_dtensor
from understudy.state.twins import holders_in_ddp, replicas
from understudy.worker.runtime import JobError

WAY_OUT = (
    "wrap the model in DDP, or in FSDP2 on a mesh with a replicate dimension, or call job.average(model); freeze "
    "what is not trained with requires_grad_(False)"
)


class DeferredReduction:
    """A switch. While it is open, DDP does not reduce gradients after a backward, and FSDP2's all-reduce over its
    replicate dimension leaves its input unchanged."""

    def __init__(self, tracked: Tracked, endpoints: Callable[[], Iterable[Endpoint]], same: tuple[int, ...]) -> None:
        _check_dense(tracked)
        self._wrapped = [
            inner
            for _, module in modules(tracked)
            for inner in module.modules()
            if isinstance(inner, DistributedDataParallel)
        ]
        self._endpoints, self._same = endpoints, same
        self._flags: list[tuple[bool, bool]] = []
        self._deferring: list[Endpoint] = []
        self._scale: Any = None
        self.open = False
        self.kinds: set[Any] = set()
        """Reduce operations that FSDP2 has asked for."""
        self.deferred = 0

    def start(self) -> None:
        assert not self.open
        self.open = True
        self._flags = [(ddp.require_backward_grad_sync, ddp.require_forward_param_sync) for ddp in self._wrapped]
        for ddp in self._wrapped:
            ddp.require_backward_grad_sync = ddp.require_forward_param_sync = False
        self._deferring = [endpoint for endpoint in self._endpoints() if endpoint.key.roles == self._same]
        for endpoint in self._deferring:
            endpoint.defer = self._defer
        stage = torch_private.pipeline_stage()
        if stage is not None:
            self._scale, stage.scale_grads = stage.scale_grads, _scales

    def end(self) -> None:
        """Restore the frameworks' own synchronisation. Does nothing if the switch is closed."""
        if not self.open:
            return
        self.open = False
        for endpoint in self._deferring:
            endpoint.defer = None
        stage = torch_private.pipeline_stage()
        if stage is not None and self._scale is not None:
            stage.scale_grads, self._scale = self._scale, None
        for ddp, (backward, forward) in zip(self._wrapped, self._flags, strict=True):
            ddp.require_backward_grad_sync, ddp.require_forward_param_sync = backward, forward

    def _defer(self, how: Any) -> None:
        self.kinds.add(how if isinstance(how, dist.ReduceOp.RedOpType) else how.op)
        self.deferred += 1

    @property
    def divides(self) -> bool:
        """Whether the deferred gradients have to be divided by the number of replicas."""
        unknown = self.kinds - {dist.ReduceOp.AVG, dist.ReduceOp.SUM}
        if unknown or len(self.kinds) > 1:
            raise JobError("--mask: FSDP2 reduces gradients over replicas in more than one way; use its defaults")
        return dist.ReduceOp.SUM not in self.kinds


def _check_dense(tracked: Tracked) -> None:
    """Raise JobError if a module has sparse gradients: terms of a masked step are summed as dense memory."""
    for thing, module in modules(tracked):
        for name, inner in module.named_modules():
            if isinstance(inner, nn.Embedding | nn.EmbeddingBag) and inner.sparse:
                place = f"{thing}.{name}" if name else thing
                raise JobError(
                    f"--mask: {place} has sparse gradients; make it with sparse=False, or run without --mask"
                )


def _scales(stage: object, factor: int) -> None:
    """Replaces a pipeline stage's `scale_grads`. In a masked step the gradients are the sum over several shards, so
    that scaling after each shard would scale the earlier shards again."""
    if factor != 1:
        raise JobError(
            f"--mask: after each shard this pipeline's schedule divides all gradients so far by {factor}; give it "
            "scale_grads=False and have loss_fn divide instead"
        )


def trained(tracked: Tracked) -> list[torch.Tensor]:
    """The parameters that get gradients, each once, in the same order on all roles that hold the same state."""
    return [
        tensor for _, tensor in module_tensors(tracked) if isinstance(tensor, nn.Parameter) and tensor.requires_grad
    ]


def managed(tracked: Tracked) -> set[int]:
    """Ids of the parameters with gradients that FSDP2 reduces."""
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is None:
        return set()
    return {
        id(parameter)
        for _, module in modules(tracked)
        for inner in module.modules()
        if isinstance(inner, kind)
        for parameter in inner.parameters()
        if is_dtensor(parameter)
    }


def check_suitable(
    tracked: Tracked, same: tuple[int, ...], averaged: Iterable[nn.Module], over: tuple[int, ...]
) -> None:
    """Raise JobError unless the runtime can average all gradients over the roles that hold the same state. The script
    has asked for this for the modules `averaged`, over the roles `over`."""
    if len(same) < 2:
        raise JobError(f"--mask: no other role holds the same state as this one, so none can be masked; {WAY_OUT}")
    for name, module in modules(tracked):
        for where, inner in module.named_modules():
            if isinstance(inner, SyncBatchNorm) or (
                isinstance(inner, torch_private.NormBase) and inner.running_mean is not None
            ):
                raise JobError(
                    f"--mask: {name}.{where} is a {type(inner).__name__}: its statistics depend on which replica "
                    "computes which shard; use LayerNorm or GroupNorm, or run without --mask"
                )
    ddp, by_fsdp = holders_in_ddp(tracked), managed(tracked)
    by_runtime = {id(parameter) for module in averaged for parameter in module.parameters()}
    for name, tensor in module_tensors(tracked):
        if not isinstance(tensor, nn.Parameter) or not tensor.requires_grad:
            continue
        if id(tensor) in by_runtime:
            found = frozenset(over)
        elif id(tensor) in ddp:
            found = ddp[id(tensor)]
        elif id(tensor) in by_fsdp:
            found = frozenset(same) if replicas(tensor) >= frozenset(same) else replicas(tensor)
        else:
            raise JobError(f"--mask: the gradients of {name} are not averaged over replicas; {WAY_OUT}")
        if found != frozenset(same):
            raise JobError(
                f"--mask: gradients of {name} are averaged over the roles {_listed(found)}, but the state is the same "
                f"on {_listed(same)}; use one set of replicas for everything that is tracked"
            )


def _listed(roles: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(roles)))
