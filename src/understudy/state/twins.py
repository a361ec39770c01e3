"""Twins: the roles that hold the same state bit for bit, any of which can give it to a joiner."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel

from understudy.device import torch_private

from .kinds import Tracked, find_kind, module_tensors, modules, optimizers
from .memory import is_dtensor
from .optimizers import parameters


def twins(tracked: Tracked, me: int | None = None) -> frozenset[int]:
    """The global ranks that hold an identical copy of everything tracked, `me` included: the rank of this process.

    The answer comes from how the objects were made, without a comparison: DDP keeps parameters equal over its group,
    and a DTensor is equal along the replicated dimensions of its mesh. Everything else counts as different on every
    rank: plain tensors, statistics of the batch, objects of other kinds."""
    if me is None:
        me = dist.get_rank() if dist.is_initialized() else 0
    alone = frozenset({me})
    kinds = [(find_kind(thing), thing) for thing in tracked.values()]
    if not all(kind is not None and kind.follows_tensors(thing) for kind, thing in kinds):
        return alone
    holders, local = holders_in_ddp(tracked), _batch_statistics(tracked)
    common: frozenset[int] | None = None
    # of optimizers only the parameters: their state is on the ranks of its parameter
    owned = [parameter for _, optimizer in optimizers(tracked) for parameter in parameters(optimizer)]
    for tensor in [*(tensor for _, tensor in module_tensors(tracked)), *owned]:
        ranks = alone if id(tensor) in local else holders.get(id(tensor), alone) | replicas(tensor)
        common = ranks if common is None else common & ranks
    return alone if common is None else common | alone


def expected_twins(tracked: Tracked, me: int) -> frozenset[int]:
    """The roles that should hold the same parameters, by how the modules were made; tensors that neither DDP nor a
    DTensor's mesh says anything about do not count."""
    holders = holders_in_ddp(tracked)
    sets = [holders.get(id(tensor), frozenset()) | replicas(tensor) for _, tensor in module_tensors(tracked)]
    return frozenset({me}).union(frozenset.intersection(*filter(None, sets)) if any(sets) else ())


def holders_in_ddp(tracked: Tracked) -> dict[int, frozenset[int]]:
    """The ranks over which DDP keeps a tensor equal, by the tensor's id."""
    holders: dict[int, frozenset[int]] = {}
    for _, module in modules(tracked):
        for inner in module.modules():
            if isinstance(inner, DistributedDataParallel):
                ranks = frozenset(dist.get_process_group_ranks(inner.process_group))
                ignored = inner.parameters_to_ignore
                for named in (inner.module.named_parameters(), inner.module.named_buffers()):
                    holders |= {id(tensor): ranks for name, tensor in named if name not in ignored}
    return holders


def _batch_statistics(tracked: Tracked) -> set[int]:
    """The ids of the buffers that each rank computes from its own part of the batch."""
    return {
        id(buffer)
        for _, module in modules(tracked)
        for inner in module.modules()
        if isinstance(inner, torch_private.NormBase) and not isinstance(inner, SyncBatchNorm)
        for buffer in inner.buffers(recurse=False)
    }


def replicas(tensor: torch.Tensor) -> frozenset[int]:
    """The ranks that have the same part of a DTensor."""
    if not is_dtensor(tensor) or (here := tensor.device_mesh.get_coordinate()) is None:
        return frozenset()
    ranks = tensor.device_mesh.mesh
    for dimension, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            ranks = ranks.narrow(dimension, here[dimension], 1)
    return frozenset(ranks.flatten().tolist())
