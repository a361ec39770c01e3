"""Broadcast: everybody receives the root's tensor."""

from __future__ import annotations

import torch

from understudy.comm.links.channel import Channel
from understudy.comm.native.stage import ArenaStage
from understudy.comm.ops import Op

from .tree import tree_broadcast


def broadcast(channel: Channel, op: Op) -> None:
    (value,) = op.outputs
    if channel.stage is not None:
        _staged(channel, channel.stage, value, op.root)
    elif channel.cells > 1:
        tree_broadcast(channel, value, channel.layout.cell_of[op.root])


def _staged(channel: Channel, stage: ArenaStage, value: torch.Tensor, root: int) -> None:
    cell = channel.layout.cell_of[root]
    width = stage.bytes // value.element_size()
    for low in range(0, value.numel(), width):
        window = value[low : low + width]
        buffer = stage.begin(channel.deadline)
        result = stage.result(buffer, value.dtype)[: window.numel()]
        if channel.rank == root:
            result.copy_(window)
        if channel.cell == cell:
            stage.meet(channel.deadline)
        if channel.cells > 1 and channel.is_leader:
            tree_broadcast(channel, result, cell)
        if channel.cell != cell:
            stage.meet(channel.deadline)
        if channel.rank != root:
            window.copy_(result)
