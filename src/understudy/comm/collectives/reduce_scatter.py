"""Reduce-scatter: rank r receives the reduction of everybody's r-th block."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from understudy.comm.links.channel import SEGMENT, Channel
from understudy.comm.native.stage import ArenaStage
from understudy.comm.ops import Op
from understudy.comm.reduction import Reduction

from .all_reduce import slices
from .ring import Window, ring


def reduce_scatter(channel: Channel, op: Op) -> None:
    fold = op.reduction
    assert fold is not None
    blocks = op.inputs if fold.factor is None else [fold.prepare(block) for block in op.inputs]
    (out,) = op.outputs
    if channel.stage is not None:
        _staged(channel, channel.stage, blocks, out, fold)
    elif channel.cells > 1:
        ring(channel, 0, _columns(channel, blocks, out, fold), fold, gather=False)
    else:
        total = blocks[channel.rank].to(fold.acc, copy=True)
        fold.finish(total)
        out.copy_(total)


def _columns(channel: Channel, blocks: list[torch.Tensor], out: torch.Tensor, fold: Reduction) -> Iterator[Window]:
    layout, width = channel.layout, SEGMENT // fold.acc.itemsize
    ranks = [layout.leader(cell) for cell in layout.alive]
    for low in range(0, out.numel(), width):
        own = [blocks[rank][low : low + width] for rank in ranks]
        yield Window(own, [out[low : low + width]] * len(ranks))


def _staged(
    channel: Channel, stage: ArenaStage, blocks: list[torch.Tensor], out: torch.Tensor, fold: Reduction
) -> None:
    """Slots hold one row per live rank, cell by cell, so that a cell's rows are one stretch of memory."""
    layout = channel.layout
    rows = [rank for cell in layout.alive for rank in layout.members[cell]]
    mine = rows.index(channel.rank)
    width = stage.bytes // fold.acc.itemsize // len(rows)
    if width == 0:
        raise ValueError(f"reduce_scatter over {len(rows)} roles does not fit an arena slot of {stage.bytes} bytes")
    for low in range(0, out.numel(), width):
        high = min(low + width, out.numel())
        span = high - low
        buffer = stage.begin(channel.deadline)
        slot = stage.mine(buffer, fold.dtype)
        for row, rank in enumerate(rows):
            slot[row * span : (row + 1) * span].copy_(blocks[rank][low:high])
        stage.meet(channel.deadline)
        slots = stage.slots(buffer, fold.dtype)
        if channel.cells == 1:
            total = torch.empty(span, dtype=fold.acc)
            fold.fold([data[mine * span : (mine + 1) * span] for data in slots], total)
            fold.finish(total)
            out[low:high].copy_(total)
            continue
        result = stage.result(buffer, fold.acc)[: span * len(rows)]
        drivers, cuts = slices(channel, stage, result.numel())
        for (a, b), driver in zip(cuts, drivers, strict=True):
            if driver == stage.slot:
                fold.fold([data[a:b] for data in slots], result[a:b])
        stage.meet(channel.deadline)
        if channel.is_leader:
            cells = segments(channel, result, span)
            ring(channel, 0, iter([Window(cells, cells)]), fold, gather=False)
        stage.meet(channel.deadline)
        out[low:high].copy_(result[mine * span : (mine + 1) * span])


def segments(channel: Channel, rows: torch.Tensor, span: int) -> list[torch.Tensor]:
    """Each live cell's stretch of a matrix with one row per live rank, cell by cell."""
    found, low = [], 0
    for cell in channel.layout.alive:
        high = low + span * len(channel.layout.members[cell])
        found.append(rows[low:high])
        low = high
    return found
