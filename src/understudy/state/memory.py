"""A tensor's bytes in logical order: in place where they lie so, through a small buffer otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from understudy.comm.links.link import bytes_of

PIECE = 4 << 20
"""Bytes of the buffer, and of what moves at a time. A multiple of every element's size."""


def size_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def in_place(tensor: torch.Tensor) -> memoryview | None:
    """The very memory of the tensor, if it is one piece of CPU memory in logical order."""
    plain = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    return flat_bytes(tensor) if plain else None


def flat_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, also of a single element, whose stride may be anything."""
    return bytes_of(tensor.detach().as_strided((tensor.numel(),), (1,)))


class Staging:
    """A buffer through which parts of other tensors pass, one at a time."""

    def __init__(self, size: int = PIECE) -> None:
        self._buffer = torch.empty(size, dtype=torch.uint8)

    def view(self, length: int) -> memoryview:
        return bytes_of(self._buffer[:length])

    def read(self, tensor: torch.Tensor, offset: int, length: int) -> memoryview:
        """Bytes offset to offset + length of the tensor, valid until the next call."""
        for part, element in self._pairs(tensor, offset, length):
            element.copy_(part)
        return self.view(length)

    def write(self, tensor: torch.Tensor, offset: int, length: int) -> None:
        """Put the first `length` bytes of the buffer at that offset of the tensor."""
        for part, element in self._pairs(tensor, offset, length):
            part.copy_(element)

    def _pairs(self, tensor: torch.Tensor, offset: int, length: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        width = tensor.element_size()
        if offset % width or length % width:
            raise ValueError(f"bytes {offset} to {offset + length} cut an element of {width} bytes")
        buffered = self._buffer[:length].view(tensor.dtype)
        done = 0
        for part in blocks(tensor.detach(), offset // width, (offset + length) // width):
            yield part, buffered[done : done + part.numel()].view(part.shape)
            done += part.numel()


def blocks(tensor: torch.Tensor, start: int, stop: int) -> Iterator[torch.Tensor]:
    """Views that are, one after the other, the elements start to stop in logical order; a few for each dimension."""
    if start >= stop:
        return
    if start == 0 and stop == tensor.numel():
        yield tensor
        return
    inner = tensor.numel() // tensor.shape[0]
    first, skipped = divmod(start, inner)
    last, rest = divmod(stop, inner)
    if first == last:
        yield from blocks(tensor[first], skipped, rest)
        return
    if skipped:
        yield from blocks(tensor[first], skipped, inner)
        first += 1
    if first < last:
        yield tensor[first:last]
    if rest:
        yield from blocks(tensor[last], 0, rest)
