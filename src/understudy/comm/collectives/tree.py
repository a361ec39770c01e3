"""Tree: leaders pass whole pieces along tree edges, towards a cell or away from it. Few hops, for small tensors and
for one-to-all; two cells swap instead."""

from __future__ import annotations

import torch

from understudy.comm.links.channel import PIECE, Channel
from understudy.comm.links.link import Link, bytes_of
from understudy.comm.ops import Reduction


def toward(channel: Channel, root: int) -> int | None:
    """The neighbouring cell on the way to `root`; None at the root."""
    if channel.cell == root:
        return None
    parents, step = channel.layout.parents, root
    while (above := parents[step]) is not None:
        if above == channel.cell:
            return step
        step = above
    return parents[channel.cell]


def _others(channel: Channel, root: int) -> tuple[Link | None, list[Link]]:
    way = toward(channel, root)
    up = None if way is None else channel.branches[way]
    return up, [link for cell, link in sorted(channel.branches.items()) if cell != way]


def tree_reduce(channel: Channel, value: torch.Tensor, fold: Reduction, root: int) -> None:
    """Fold the values of all leaders into that of the root cell's leader, in cell order at each node. The values of the
    other leaders are undefined afterwards."""
    up, down = _others(channel, root)
    width = PIECE // value.element_size()
    for low in range(0, value.numel(), width):
        piece = value[low : low + width]
        if down:
            block = channel.scratch.take("tree", len(down) * PIECE).view(value.dtype)
            parts = [block[i * width :][: piece.numel()] for i in range(len(down))]
            inlets = [channel.inlet(link) for link in down]
            for inlet, part in zip(inlets, parts, strict=True):
                inlet.push(bytes_of(part))
            channel.pump(inlets, [])
            for part in parts:
                fold.accumulate(piece, part)
        if up is not None:
            outlet = channel.outlet(up)
            outlet.push(bytes_of(piece))
            channel.pump([], [outlet])


def tree_broadcast(channel: Channel, value: torch.Tensor, root: int) -> None:
    """Copy the root cell's leader's value to every leader, piece by piece."""
    up, down = _others(channel, root)
    width = PIECE // value.element_size()
    outlets = [channel.outlet(link) for link in down]
    pieces = [value[low : low + width] for low in range(0, value.numel(), width)]
    if up is None:
        for outlet in outlets:
            outlet.push(bytes_of(value))
        channel.pump([], outlets)
        return
    ahead = iter(pieces)
    current = next(ahead, None)

    def arrived() -> None:
        nonlocal current
        assert current is not None
        data = bytes_of(current)
        for outlet in outlets:
            outlet.push(data)
        current = next(ahead, None)
        if current is not None:
            inlet.push(bytes_of(current))

    inlet = channel.inlet(up, arrived)
    if current is not None:
        inlet.push(bytes_of(current))
    channel.pump([inlet], outlets)


def swap(channel: Channel, value: torch.Tensor, fold: Reduction) -> None:
    """Two cells send each other everything at once: value = the first cell's value ∘ the second's, on both leaders."""
    ((_, link),) = channel.branches.items()
    theirs = channel.scratch.take("tree", value.numel() * value.element_size()).view(value.dtype)
    outlet, inlet = channel.outlet(link), channel.inlet(link)
    outlet.push(bytes_of(value))
    inlet.push(bytes_of(theirs))
    channel.pump([inlet], [outlet])
    fold.fold([value, theirs] if channel.place == 0 else [theirs, value], value)
