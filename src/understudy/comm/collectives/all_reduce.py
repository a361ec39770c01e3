"""All-reduce: fold within each machine, across machines, and spread within each machine again."""

from __future__ import annotations

import torch

from understudy.comm.links.channel import Channel
from understudy.comm.native.stage import ArenaStage
from understudy.comm.ops import Op
from understudy.comm.reduction import Reduction

from .ring import even_windows, ring
from .swap import swap
from .tree import tree_broadcast, tree_reduce

SMALL = 1 << 16
"""Up to here the number of hops and meetings counts, beyond it the number of bytes."""


def all_reduce(channel: Channel, op: Op) -> None:
    fold = op.reduction
    assert fold is not None
    (value,) = op.outputs
    if fold.factor is not None:
        value.copy_(fold.prepare(value))
    if channel.stage is not None:
        _staged(channel, channel.stage, value, fold)
    elif channel.cells > 1:
        across(channel, value, fold)
    else:
        fold.finish(value)


def across(channel: Channel, value: torch.Tensor, fold: Reduction) -> None:
    """Between leaders: value = the finished reduction of every cell's value."""
    if value.numel() * fold.acc.itemsize > SMALL:
        around(channel, 0, value, fold)
        return
    total = value.to(fold.acc, copy=True)
    if channel.cells == 2:
        swap(channel, total, fold)
    else:
        root = channel.layout.alive[0]
        tree_reduce(channel, total, fold, root)
        tree_broadcast(channel, total, root)
    fold.finish(total)
    value.copy_(total)


def around(channel: Channel, rail: int, value: torch.Tensor, fold: Reduction) -> None:
    """Between the drivers of a rail: value = the finished reduction of every cell's value."""
    ring(channel, rail, even_windows(value, value, channel.cells, fold.acc.itemsize), fold, gather=True)


def _staged(channel: Channel, stage: ArenaStage, value: torch.Tensor, fold: Reduction) -> None:
    width = stage.bytes // fold.acc.itemsize
    for low in range(0, value.numel(), width):
        window = value[low : low + width]
        if window.numel() * fold.acc.itemsize <= SMALL:
            _flat(channel, stage, window, fold)
        else:
            _sliced(channel, stage, window, fold)


def _flat(channel: Channel, stage: ArenaStage, window: torch.Tensor, fold: Reduction) -> None:
    """Everyone reads everyone's slot: one meeting within a machine, two with other machines involved."""
    count = window.numel()
    buffer = stage.begin(channel.deadline)
    stage.mine(buffer, fold.dtype)[:count].copy_(window)
    stage.meet(channel.deadline)
    slots = [slot[:count] for slot in stage.slots(buffer, fold.dtype)]
    if channel.cells == 1:
        total = window if fold.acc == fold.dtype else torch.empty(count, dtype=fold.acc)
        fold.fold(slots, total)
        fold.finish(total)
        if total is not window:
            window.copy_(total)
        return
    result = stage.result(buffer, fold.acc)[:count]
    if channel.is_leader:
        fold.fold(slots, result)
        across(channel, result, fold)
    stage.meet(channel.deadline)
    window.copy_(result)


def _sliced(channel: Channel, stage: ArenaStage, window: torch.Tensor, fold: Reduction) -> None:
    """Each driver folds its own slice: others' slices of the input go through the slots, its own is read in place."""
    count = window.numel()
    members = [slot for slot, _ in stage.members]
    drivers, cuts = slices(channel, stage, count)
    buffer = stage.begin(channel.deadline)
    mine = stage.mine(buffer, fold.dtype)
    for (low, high), driver in zip(cuts, drivers, strict=True):
        if driver != stage.slot:
            mine[low:high].copy_(window[low:high])
    stage.meet(channel.deadline)
    result = stage.result(buffer, fold.acc)[:count]
    slots = stage.slots(buffer, fold.dtype)
    for rail, ((low, high), driver) in enumerate(zip(cuts, drivers, strict=True)):
        if driver == stage.slot:
            parts = [
                (window if slot == stage.slot else data)[low:high] for slot, data in zip(members, slots, strict=True)
            ]
            fold.fold(parts, result[low:high])
            if channel.cells > 1:
                around(channel, rail, result[low:high], fold)
            else:
                fold.finish(result[low:high])
    stage.meet(channel.deadline)
    window.copy_(result)


def slices(channel: Channel, stage: ArenaStage, count: int) -> tuple[list[int], list[tuple[int, int]]]:
    """(slot that folds it, bounds) for each slice of a window: one per rail, or one per member on a single machine."""
    members = [slot for slot, _ in stage.members]
    parts = channel.layout.rails if channel.cells > 1 else len(members)
    step = -(-count // parts)
    step = -(-step // 16) * 16
    cuts = [(min(i * step, count), min((i + 1) * step, count)) for i in range(parts)]
    return [members[i % len(members)] for i in range(parts)], cuts
