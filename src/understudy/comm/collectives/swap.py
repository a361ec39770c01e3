"""Swap: two cells send each other everything at once. One hop, for small tensors."""

from __future__ import annotations

import torch

from understudy.comm.links.channel import Channel
from understudy.comm.links.link import bytes_of
from understudy.comm.reduction import Reduction


def swap(channel: Channel, value: torch.Tensor, fold: Reduction) -> None:
    """value = the first cell's value ∘ the second's, on both leaders."""
    ((_, link),) = channel.branches.items()
    theirs = channel.scratch.take("tree", value.numel() * value.element_size()).view(value.dtype)
    outlet, inlet = channel.outlet(link), channel.inlet(link)
    outlet.push(bytes_of(value))
    inlet.push(bytes_of(theirs))
    channel.pump([inlet], [outlet])
    fold.fold([value, theirs] if channel.place == 0 else [theirs, value], value)
