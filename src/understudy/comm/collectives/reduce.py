"""Reduce: the root receives the reduction of everybody's tensor; the others' tensors stay as they are."""

from __future__ import annotations

import torch

from understudy.comm.links.channel import PIECE, Channel
from understudy.comm.native.stage import ArenaStage
from understudy.comm.ops import Op
from understudy.comm.reduction import Reduction

from .tree import tree_reduce


def reduce(channel: Channel, op: Op) -> None:
    fold = op.reduction
    assert fold is not None
    (value,) = op.outputs
    if channel.stage is not None:
        _staged(channel, channel.stage, fold.prepare(value), value, fold, op.root)
        return
    width = PIECE // fold.acc.itemsize
    for low in range(0, value.numel(), width):
        total = fold.prepare(value[low : low + width]).to(fold.acc, copy=True)
        if channel.cells > 1:
            tree_reduce(channel, total, fold, channel.layout.cell_of[op.root])
        if channel.rank == op.root:
            fold.finish(total)
            value[low : low + width].copy_(total)


def _staged(
    channel: Channel, stage: ArenaStage, value: torch.Tensor, out: torch.Tensor, fold: Reduction, root: int
) -> None:
    width = stage.bytes // fold.acc.itemsize
    for low in range(0, value.numel(), width):
        window = value[low : low + width]
        count = window.numel()
        buffer = stage.begin(channel.deadline)
        stage.mine(buffer, fold.dtype)[:count].copy_(window)
        stage.meet(channel.deadline)
        result = stage.result(buffer, fold.acc)[:count]
        if channel.is_leader:
            fold.fold([slot[:count] for slot in stage.slots(buffer, fold.dtype)], result)
            if channel.cells > 1:
                tree_reduce(channel, result, fold, channel.layout.cell_of[root])
        stage.meet(channel.deadline)
        if channel.rank == root:
            total = result.clone()
            fold.finish(total)
            out[low : low + width].copy_(total)
