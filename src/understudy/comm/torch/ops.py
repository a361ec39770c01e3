"""Operations on torch's own backends, with dtypes, reductions, roots and blocks as the backends take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from understudy.comm.ops import FLOATS, Op, Reduction

Settle = Callable[[Any], None]
"""Returns once an operation of the backend has ended well; raises Interrupted otherwise."""

_Op: Any = dist.ReduceOp.RedOpType

_KNOWN = {*FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64}
_OF_BITS = {
    _Op.SUM: _Op.MAX,
    _Op.PREMUL_SUM: _Op.MAX,
    _Op.MAX: _Op.MAX,
    _Op.BOR: _Op.MAX,
    _Op.PRODUCT: _Op.MIN,
    _Op.MIN: _Op.MIN,
    _Op.BAND: _Op.MIN,
    _Op.BXOR: _Op.BXOR,
}
"""Folds over booleans, as folds over bytes that are 0 or 1."""


def carry_out(group: Any, op: Op, live: tuple[int, ...], settle: Settle) -> None:
    """Run `op` on a backend's group. The i-th live rank has rank i there."""
    if op.kind in ("barrier", "all_to_all") or (op.inputs or op.outputs)[0].numel():
        _RUN[op.kind](group, op, live, settle)


def as_known(tensor: torch.Tensor) -> torch.Tensor:
    """For operations that copy: the same memory in a dtype that the backends know."""
    return tensor if tensor.dtype in _KNOWN else tensor.view(torch.uint8)


def _terms(fold: Reduction) -> tuple[torch.dtype, Any]:
    """The dtype and the kind in which the backend folds."""
    if fold.dtype == torch.bool:
        return torch.uint8, _OF_BITS[fold.kind]
    carrier = torch.int32 if fold.acc == torch.int16 else fold.acc
    return carrier, _Op.SUM if fold.kind in (_Op.AVG, _Op.PREMUL_SUM) else fold.kind


def _contribution(fold: Reduction, value: torch.Tensor) -> torch.Tensor:
    """This role's contribution in the backend's dtype: the memory of `value` itself if no conversion is needed."""
    carrier, _ = _terms(fold)
    scaled = value if fold.factor is None else fold.prepare(value).to(fold.dtype)
    return scaled.view(torch.uint8) if fold.dtype == torch.bool else scaled.to(carrier)


def _finish(fold: Reduction, total: torch.Tensor, out: torch.Tensor) -> None:
    fold.finish(total)
    if total.data_ptr() != out.data_ptr():
        out.copy_(total)


def _how(options: Any, op: Op, live: tuple[int, ...]) -> Any:
    if op.reduction is not None:
        options.reduceOp = dist.ReduceOp(_terms(op.reduction)[1])
    if hasattr(options, "rootRank"):
        options.rootRank = live.index(op.root)
    return options


def all_reduce(group: Any, op: Op, live: tuple[int, ...], settle: Settle) -> None:
    (value,) = op.outputs
    total = _contribution(op.fold, value)
    settle(group.allreduce([total], _how(c10d.AllreduceOptions(), op, live)))
    _finish(op.fold, total, value)


def reduce(group: Any, op: Op, live: tuple[int, ...], settle: Settle) -> None:
    """Ranks other than the root bring a copy, because backends use their tensors as scratch."""
    (value,) = op.outputs
    options = _how(c10d.ReduceOptions(), op, live)
    total = _contribution(op.fold, value)
    root = group.rank() == options.rootRank
    if not root and total.data_ptr() == value.data_ptr():
        total = total.clone()
    settle(group.reduce([total], options))
    if root:
        _finish(op.fold, total, value)


def reduce_scatter(group: Any, op: Op, live: tuple[int, ...], settle: Settle) -> None:
    fold = op.fold
    (out,) = op.outputs
    blocks = [_contribution(fold, op.inputs[rank]) for rank in live]
    if fold.dtype == torch.bool:
        total = out.view(torch.uint8)
    else:
        total = out if out.dtype == blocks[0].dtype else torch.empty_like(blocks[0])
    settle(group.reduce_scatter([total], [blocks], _how(c10d.ReduceScatterOptions(), op, live)))
    _finish(fold, total, out)


def all_gather(group: Any, op: Op, live: tuple[int, ...], settle: Settle) -> None:
    outs = [as_known(op.outputs[rank]) for rank in live]
    settle(group.allgather([outs], [as_known(op.inputs[0])]))


def broadcast(group: Any, op: Op, live: tuple[int, ...], settle: Settle) -> None:
    settle(group.broadcast([as_known(op.outputs[0])], _how(c10d.BroadcastOptions(), op, live)))


def gather(group: Any, op: Op, live: tuple[int, ...], settle: Settle) -> None:
    outs = [[as_known(op.outputs[rank]) for rank in live]] if op.outputs else []
    settle(group.gather(outs, [as_known(op.inputs[0])], _how(c10d.GatherOptions(), op, live)))


def scatter(group: Any, op: Op, live: tuple[int, ...], settle: Settle) -> None:
    blocks = [[as_known(op.inputs[rank]) for rank in live]] if op.inputs else []
    settle(group.scatter([as_known(op.outputs[0])], blocks, _how(c10d.ScatterOptions(), op, live)))


def all_to_all(group: Any, op: Op, live: tuple[int, ...], settle: Settle) -> None:
    """Blocks of any size travel as rows of one tensor: the form in which every backend takes uneven ones."""
    blocks = [as_known(op.inputs[rank]) for rank in live]
    outs = [as_known(op.outputs[rank]) for rank in live]
    sizes = [out.numel() for out in outs]
    arrived = torch.empty(sum(sizes), dtype=outs[0].dtype, device=outs[0].device)
    counts = [block.numel() for block in blocks]
    settle(group.alltoall_base(arrived, torch.cat(blocks), sizes, counts, c10d.AllToAllOptions()))
    for out, block in zip(outs, torch.split_with_sizes(arrived, sizes), strict=True):
        out.copy_(block)


def barrier(group: Any, op: Op, live: tuple[int, ...], settle: Settle) -> None:
    settle(group.barrier(c10d.BarrierOptions()))


_ALL = (all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter, all_to_all, barrier)
_RUN: dict[str, Callable[[Any, Op, tuple[int, ...], Settle], None]] = {run.__name__: run for run in _ALL}
