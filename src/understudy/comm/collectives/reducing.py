"""Collectives that fold tensors: all-reduce, reduce, reduce-scatter and barrier."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from understudy.comm.links.channel import PIECE, SEGMENT, Channel
from understudy.comm.native.arena import ArenaRounds
from understudy.comm.ops import Op, Reduction, reduction

from .ring import Window, even_windows, ring, rows_of, segments
from .tree import swap, tree_broadcast, tree_reduce

SMALL = 1 << 16
"""Bytes up to which the number of hops and meetings decides the time; beyond, the number of bytes does."""


def all_reduce(channel: Channel, op: Op) -> None:
    """Fold within each machine, then across machines, and spread within each machine."""
    fold = op.fold
    (value,) = op.outputs
    if fold.factor is not None:
        value.copy_(fold.prepare(value))
    arena = channel.arena
    if arena is not None:
        width = arena.bytes // fold.acc.itemsize
        for low in range(0, value.numel(), width):
            window = value[low : low + width]
            small = window.numel() * fold.acc.itemsize <= SMALL
            (_flat if small else _sliced)(channel, arena, window, fold)
    elif channel.cells > 1:
        _across(channel, value, fold)
    else:
        fold.finish(value)


def _across(channel: Channel, value: torch.Tensor, fold: Reduction) -> None:
    """Between leaders: value = the finished reduction of every cell's value."""
    if value.numel() * fold.acc.itemsize > SMALL:
        _around(channel, 0, value, fold)
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


def _around(channel: Channel, rail: int, value: torch.Tensor, fold: Reduction) -> None:
    """Between the drivers of a rail: value = the finished reduction of every cell's value."""
    ring(channel, rail, even_windows(value, channel.cells, fold.acc.itemsize), fold, gather=True)


def _flat(channel: Channel, arena: ArenaRounds, window: torch.Tensor, fold: Reduction) -> None:
    """Every worker reads every slot: one meeting within a machine, two if other machines are involved."""
    count = window.numel()
    buffer = arena.begin(channel.deadline)
    arena.mine(buffer, fold.dtype)[:count].copy_(window)
    arena.meet(channel.deadline)
    slots = [slot[:count] for slot in arena.slots(buffer, fold.dtype)]
    if channel.cells == 1:
        total = window if fold.acc == fold.dtype else torch.empty(count, dtype=fold.acc)
        fold.fold(slots, total)
        fold.finish(total)
        if total is not window:
            window.copy_(total)
        return
    result = arena.result(buffer, fold.acc)[:count]
    if channel.is_leader:
        fold.fold(slots, result)
        _across(channel, result, fold)
    arena.meet(channel.deadline)
    window.copy_(result)


def _sliced(channel: Channel, arena: ArenaRounds, window: torch.Tensor, fold: Reduction) -> None:
    """Each driver folds its own slice: slices of other drivers go through the slots, its own is read in place."""
    count = window.numel()
    drivers, cuts = _slices(channel, arena, count)
    buffer = arena.begin(channel.deadline)
    mine = arena.mine(buffer, fold.dtype)
    for (low, high), driver in zip(cuts, drivers, strict=True):
        if driver != arena.slot:
            mine[low:high].copy_(window[low:high])
    arena.meet(channel.deadline)
    result = arena.result(buffer, fold.acc)[:count]
    slots = arena.slots(buffer, fold.dtype)
    for rail, ((low, high), driver) in enumerate(zip(cuts, drivers, strict=True)):
        if driver == arena.slot:
            sources = zip(arena.members, slots, strict=True)
            parts = [(window if slot == arena.slot else data)[low:high] for slot, data in sources]
            fold.fold(parts, result[low:high])
            if channel.cells > 1:
                _around(channel, rail, result[low:high], fold)
            else:
                fold.finish(result[low:high])
    arena.meet(channel.deadline)
    window.copy_(result)


def _slices(channel: Channel, arena: ArenaRounds, count: int) -> tuple[list[int], list[tuple[int, int]]]:
    """For each slice of a window, the slot that folds it and its bounds: one per rail, or per member of one machine."""
    members = arena.members
    parts = channel.layout.rails if channel.cells > 1 else len(members)
    step = -(-count // parts)
    step = -(-step // 16) * 16
    cuts = [(min(i * step, count), min((i + 1) * step, count)) for i in range(parts)]
    return [members[i % len(members)] for i in range(parts)], cuts


def reduce(channel: Channel, op: Op) -> None:
    """Give the root the reduction of all tensors; the tensors of other ranks stay as they are."""
    fold, arena = op.fold, channel.arena
    (out,), cell = op.outputs, channel.layout.cell_of[op.root]
    if arena is None:
        width = PIECE // fold.acc.itemsize
        for low in range(0, out.numel(), width):
            total = fold.prepare(out[low : low + width]).to(fold.acc, copy=True)
            if channel.cells > 1:
                tree_reduce(channel, total, fold, cell)
            if channel.rank == op.root:
                fold.finish(total)
                out[low : low + width].copy_(total)
        return
    value, width = fold.prepare(out), arena.bytes // fold.acc.itemsize
    for low in range(0, value.numel(), width):
        window = value[low : low + width]
        count = window.numel()
        buffer = arena.begin(channel.deadline)
        arena.mine(buffer, fold.dtype)[:count].copy_(window)
        arena.meet(channel.deadline)
        result = arena.result(buffer, fold.acc)[:count]
        if channel.is_leader:
            fold.fold([slot[:count] for slot in arena.slots(buffer, fold.dtype)], result)
            if channel.cells > 1:
                tree_reduce(channel, result, fold, cell)
        arena.meet(channel.deadline)
        if channel.rank == op.root:
            total = result.clone()
            fold.finish(total)
            out[low : low + width].copy_(total)


def reduce_scatter(channel: Channel, op: Op) -> None:
    fold = op.fold
    blocks = op.inputs if fold.factor is None else [fold.prepare(block) for block in op.inputs]
    (out,) = op.outputs
    arena = channel.arena
    if arena is None:
        if channel.cells > 1:
            ring(channel, 0, _columns(channel, blocks, out, fold), fold, gather=False)
        else:
            total = blocks[channel.rank].to(fold.acc, copy=True)
            fold.finish(total)
            out.copy_(total)
        return
    rows, mine, width = rows_of(channel, arena, fold.acc.itemsize)
    for low in range(0, out.numel(), width):
        high = min(low + width, out.numel())
        span = high - low
        buffer = arena.begin(channel.deadline)
        slot = arena.mine(buffer, fold.dtype)
        for row, rank in enumerate(rows):
            slot[row * span : (row + 1) * span].copy_(blocks[rank][low:high])
        arena.meet(channel.deadline)
        slots = arena.slots(buffer, fold.dtype)
        if channel.cells == 1:
            total = torch.empty(span, dtype=fold.acc)
            fold.fold([data[mine * span : (mine + 1) * span] for data in slots], total)
            fold.finish(total)
            out[low:high].copy_(total)
            continue
        result = arena.result(buffer, fold.acc)[: span * len(rows)]
        drivers, cuts = _slices(channel, arena, result.numel())
        for (a, b), driver in zip(cuts, drivers, strict=True):
            if driver == arena.slot:
                fold.fold([data[a:b] for data in slots], result[a:b])
        arena.meet(channel.deadline)
        if channel.is_leader:
            cells = segments(channel, result, span)
            ring(channel, 0, iter([Window(cells, cells)]), fold, gather=False)
        arena.meet(channel.deadline)
        out[low:high].copy_(result[mine * span : (mine + 1) * span])


def _columns(channel: Channel, blocks: list[torch.Tensor], out: torch.Tensor, fold: Reduction) -> Iterator[Window]:
    layout, width = channel.layout, SEGMENT // fold.acc.itemsize
    ranks = [layout.leader(cell) for cell in layout.alive]
    for low in range(0, out.numel(), width):
        own = [blocks[rank][low : low + width] for rank in ranks]
        yield Window(own, [out[low : low + width]] * len(ranks))


def barrier(channel: Channel, op: Op) -> None:
    value = torch.zeros(1, dtype=torch.uint8)
    fold = reduction(dist.ReduceOp.MAX, value.dtype, channel.size)
    all_reduce(channel, Op("barrier", outputs=[value], reduction=fold))
