"""Exchange: gather, scatter and all-to-all as messages between pairs."""

from __future__ import annotations

import torch

from understudy.comm.links.channel import Channel
from understudy.comm.links.link import STALL_S
from understudy.comm.links.pairs import INTERNAL, Pairs, Receive, Send
from understudy.comm.ops import Op

Blocks = list[tuple[int, torch.Tensor]]


def gather(channel: Channel, op: Op, pairs: Pairs) -> None:
    (block,) = op.inputs
    if channel.rank != op.root:
        _transfer(channel, pairs, [(op.root, block)], [])
        return
    op.outputs[op.root].copy_(block)
    _transfer(channel, pairs, [], [(rank, out) for rank, out in enumerate(op.outputs) if rank != op.root])


def scatter(channel: Channel, op: Op, pairs: Pairs) -> None:
    (out,) = op.outputs
    if channel.rank != op.root:
        _transfer(channel, pairs, [], [(op.root, out)])
        return
    out.copy_(op.inputs[op.root])
    _transfer(channel, pairs, [(rank, block) for rank, block in enumerate(op.inputs) if rank != op.root], [])


def all_to_all(channel: Channel, op: Op, pairs: Pairs) -> None:
    """Blocks may differ in size; both sides of each pair must agree on theirs."""
    me, size = channel.rank, channel.size
    op.outputs[me].copy_(op.inputs[me])
    around = [(me + step) % size for step in range(1, size)]
    _transfer(
        channel,
        pairs,
        [(rank, op.inputs[rank]) for rank in around],
        [(rank, op.outputs[rank]) for rank in reversed(around)],
    )


def _transfer(channel: Channel, pairs: Pairs, out: Blocks, back: Blocks) -> None:
    tag = INTERNAL | channel.sequence
    jobs: list[Send | Receive] = [Send(rank, tag, data) for rank, data in out]
    jobs += [Receive(rank, tag, data) for rank, data in back]
    pairs.submit(*jobs)
    for job in jobs:
        while not job.done.wait(STALL_S):
            channel.look_around(exchanging=True)
    channel.poison.check()
