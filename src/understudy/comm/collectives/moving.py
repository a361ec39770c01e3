"""Collectives that move tensors as they are: broadcast, all-gather, gather, scatter and all-to-all."""

from __future__ import annotations

import torch

from understudy.comm.links.channel import Channel
from understudy.comm.links.link import STALL_S
from understudy.comm.links.pairs import INTERNAL, Receive, Send
from understudy.comm.ops import Op

from .ring import Window, ring, rows_of, segments
from .tree import tree_broadcast

_Blocks = list[tuple[int, torch.Tensor]]
"""Ranks and the tensors that go to them or come from them."""


def broadcast(channel: Channel, op: Op) -> None:
    (value,) = op.outputs
    arena, cell = channel.arena, channel.layout.cell_of[op.root]
    if arena is None:
        if channel.cells > 1:
            tree_broadcast(channel, value, cell)
        return
    width = arena.bytes // value.element_size()
    for low in range(0, value.numel(), width):
        window = value[low : low + width]
        buffer = arena.begin(channel.deadline)
        result = arena.result(buffer, value.dtype)[: window.numel()]
        if channel.rank == op.root:
            result.copy_(window)
        if channel.cell == cell:
            arena.meet(channel.deadline)
        if channel.cells > 1 and channel.is_leader:
            tree_broadcast(channel, result, cell)
        if channel.cell != cell:
            arena.meet(channel.deadline)
        if channel.rank != op.root:
            window.copy_(result)


def all_gather(channel: Channel, op: Op) -> None:
    (block,), outputs, arena = op.inputs, op.outputs, channel.arena
    if arena is None:
        outputs[channel.rank].copy_(block)
        if channel.cells > 1:
            leaders = [outputs[channel.layout.leader(cell)] for cell in channel.layout.alive]
            ring(channel, 0, iter([Window((), leaders)]), None, gather=True)
        return
    rows, mine, width = rows_of(channel, arena, block.element_size())
    for low in range(0, block.numel(), width):
        high = min(low + width, block.numel())
        span = high - low
        buffer = arena.begin(channel.deadline)
        result = arena.result(buffer, block.dtype)[: span * len(rows)]
        result[mine * span : (mine + 1) * span].copy_(block[low:high])
        arena.meet(channel.deadline)
        if channel.cells > 1:
            if channel.is_leader:
                ring(channel, 0, iter([Window((), segments(channel, result, span))]), None, gather=True)
            arena.meet(channel.deadline)
        for row, rank in enumerate(rows):
            outputs[rank][low:high].copy_(result[row * span : (row + 1) * span])


def gather(channel: Channel, op: Op) -> None:
    """Give the root the blocks of all ranks, as messages."""
    (block,) = op.inputs
    if channel.rank != op.root:
        _transfer(channel, [(op.root, block)], [])
        return
    op.outputs[op.root].copy_(block)
    _transfer(channel, [], [(rank, out) for rank, out in enumerate(op.outputs) if rank != op.root])


def scatter(channel: Channel, op: Op) -> None:
    """Give each rank its block of the root's, as messages."""
    (out,) = op.outputs
    if channel.rank != op.root:
        _transfer(channel, [], [(op.root, out)])
        return
    out.copy_(op.inputs[op.root])
    _transfer(channel, [(rank, block) for rank, block in enumerate(op.inputs) if rank != op.root], [])


def all_to_all(channel: Channel, op: Op) -> None:
    """Exchange blocks between all pairs of ranks. Blocks may differ in size; both ranks of a pair must agree on it."""
    me, size = channel.rank, channel.size
    op.outputs[me].copy_(op.inputs[me])
    around = [(me + step) % size for step in range(1, size)]
    out = [(rank, op.inputs[rank]) for rank in around]
    _transfer(channel, out, [(rank, op.outputs[rank]) for rank in reversed(around)])


def _transfer(channel: Channel, out: _Blocks, back: _Blocks) -> None:
    tag = INTERNAL | channel.sequence
    due = channel.deadline
    jobs: list[Send | Receive] = [Send(rank, tag, data, deadline=due) for rank, data in out]
    jobs += [Receive(rank, tag, data, deadline=due) for rank, data in back]
    channel.pairs.submit(*jobs)
    for job in jobs:
        while not job.done.wait(STALL_S):
            channel.look_around(exchanging=True)
    channel.poison.check()
