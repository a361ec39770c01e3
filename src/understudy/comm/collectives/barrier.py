"""Barrier: everybody has come this far."""

from __future__ import annotations

import torch
import torch.distributed as dist

from understudy.comm.links.channel import Channel
from understudy.comm.ops import Op
from understudy.comm.reduction import reduction

from .all_reduce import all_reduce


def barrier(channel: Channel, op: Op) -> None:
    value = torch.zeros(1, dtype=torch.uint8)
    all_reduce(
        channel, Op("barrier", outputs=[value], reduction=reduction(dist.ReduceOp.MAX, value.dtype, channel.size))
    )
