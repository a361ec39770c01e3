"""All-gather: everybody receives everybody's block."""

from __future__ import annotations

import torch

from understudy.comm.links.channel import Channel
from understudy.comm.native.stage import ArenaStage
from understudy.comm.ops import Op

from .reduce_scatter import segments
from .ring import Window, ring


def all_gather(channel: Channel, op: Op) -> None:
    (block,) = op.inputs
    if channel.stage is not None:
        _staged(channel, channel.stage, block, op.outputs)
        return
    op.outputs[channel.rank].copy_(block)
    if channel.cells > 1:
        outputs = [op.outputs[channel.layout.leader(cell)] for cell in channel.layout.alive]
        ring(channel, 0, iter([Window((), outputs)]), None, gather=True)


def _staged(channel: Channel, stage: ArenaStage, block: torch.Tensor, outputs: list[torch.Tensor]) -> None:
    layout = channel.layout
    rows = [rank for cell in layout.alive for rank in layout.members[cell]]
    mine = rows.index(channel.rank)
    width = stage.bytes // block.element_size() // len(rows)
    if width == 0:
        raise ValueError(f"all_gather over {len(rows)} roles does not fit an arena slot of {stage.bytes} bytes")
    for low in range(0, block.numel(), width):
        high = min(low + width, block.numel())
        span = high - low
        buffer = stage.begin(channel.deadline)
        result = stage.result(buffer, block.dtype)[: span * len(rows)]
        result[mine * span : (mine + 1) * span].copy_(block[low:high])
        stage.meet(channel.deadline)
        if channel.cells > 1:
            if channel.is_leader:
                ring(channel, 0, iter([Window((), segments(channel, result, span))]), None, gather=True)
            stage.meet(channel.deadline)
        for row, rank in enumerate(rows):
            outputs[rank][low:high].copy_(result[row * span : (row + 1) * span])
