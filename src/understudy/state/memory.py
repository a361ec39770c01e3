"""The memory of tensors: this role's part of one, its description, and its bytes in logical order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeGuard

import msgspec
import torch
from torch import nn

from understudy.comm.links.link import bytes_of
from understudy.device import torch_private
from understudy.device.cpu import HOST, local_device

from .errors import StateError

PIECE = 4 << 20
"""Bytes of a staging buffer, and of what moves at a time. A multiple of every element's size."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
"""By the name that a dtype has in a message."""


class Slot(msgspec.Struct, frozen=True):
    """The description of a tensor: what a taker must know before the bytes arrive."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def slot_of(name: str, tensor: torch.Tensor) -> Slot:
    return Slot(name, tuple(tensor.shape), dtype_name(tensor.dtype), size_of(tensor))


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in a message, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_of(slot: Slot) -> torch.dtype:
    """The dtype of a slot. Raises StateError if this version of torch has no such dtype."""
    if slot.dtype not in DTYPES:
        raise StateError(f"{slot.name}: there is no dtype {slot.dtype} here; run the same version of torch everywhere")
    return DTYPES[slot.dtype]


def size_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# -- this role's part of a tensor --------------------------------------------------------------------------------------


def is_instance(thing: object, module: str, name: str) -> TypeGuard[Any]:
    """Whether the object is of a class in a module that takes long to import: before that, no object can be."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(thing, kind)


def is_dtensor(thing: object) -> TypeGuard[Any]:
    return is_instance(thing, "torch.distributed.tensor", "DTensor")


def local_part(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor, or this role's part of a DTensor: an alias of the memory that training uses."""
    if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
        raise StateError(f"{name}: has no shape before the first forward; run one before the first step")
    if is_dtensor(tensor):
        with torch.no_grad():
            return local_part(tensor.to_local(), name)
    if is_instance(tensor, *torch_private.ASYNC_TENSOR):  # may still run
        return local_part(tensor.wait(), name)
    if hasattr(tensor, "__tensor_flatten__") or tensor.layout != torch.strided or tensor.is_quantized:
        kind = type(tensor).__name__
        raise StateError(f"{name}: a {kind} ({tensor.layout}, {tensor.dtype}) is not plain memory and cannot be moved")
    if tensor.is_meta:
        raise StateError(f"{name}: is on the meta device; give it memory before tracking it")
    alias = tensor.detach().as_subclass(torch.Tensor)
    for dimension, (size, stride) in enumerate(zip(alias.shape, alias.stride(), strict=True)):
        if stride == 0 and size > 1:  # an expanded dimension is the same memory over and over
            alias = alias.narrow(dimension, 0, 1)
    return alias


def distributed_like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """A DTensor with the layout of `parameter`, of which `local` is this role's part."""
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def is_sparse(tensor: torch.Tensor) -> bool:
    return not is_dtensor(tensor) and tensor.layout != torch.strided


@torch.no_grad()
def gradient_of(parameter: torch.Tensor, name: str) -> torch.Tensor:
    """The memory of this role's part of a parameter's gradient; allocated if the parameter has no gradient, or a sparse
    one."""
    if parameter.grad is None or is_sparse(parameter.grad):
        local = torch.empty_like(local_part(parameter, name))
        parameter.grad = distributed_like(parameter, local) if is_dtensor(parameter) else local
    return local_part(parameter.grad, name)


# -- bytes in logical order --------------------------------------------------------------------------------------------


def in_place(tensor: torch.Tensor) -> memoryview | None:
    """The memory of the tensor itself, if it is one piece of host memory in logical order."""
    plain = HOST.holds(tensor) and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    return flat_bytes(tensor) if plain else None


def flat_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous host tensor. A tensor of a single element may have any stride."""
    return bytes_of(tensor.detach().as_strided((tensor.numel(),), (1,)))


class Staging:
    """A host buffer through which pieces of other tensors pass, one at a time."""

    def __init__(self, size: int = PIECE) -> None:
        self._size = size

    @cached_property
    def _buffer(self) -> torch.Tensor:
        return local_device().host_empty((self._size,), torch.uint8)

    def view(self, length: int) -> memoryview:
        return bytes_of(self._buffer[:length])

    def read(self, tensor: torch.Tensor, offset: int, length: int) -> memoryview:
        """Bytes offset to offset + length of the tensor, valid until the next call."""
        for part, element in self._pairs(tensor, offset, length):
            element.copy_(part)
        return self.view(length)

    def write(self, tensor: torch.Tensor, offset: int, length: int) -> None:
        """Copy the first `length` bytes of the buffer to this offset of the tensor."""
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


def contents(tensor: torch.Tensor, staging: Staging) -> Iterator[memoryview]:
    """The bytes of a tensor in logical order, piece by piece; each is valid until the next one."""
    if (view := in_place(tensor)) is not None:
        yield view
        return
    size = size_of(tensor)
    for offset in range(0, size, PIECE):
        yield staging.read(tensor, offset, min(PIECE, size - offset))


def blocks(tensor: torch.Tensor, start: int, stop: int) -> Iterator[torch.Tensor]:
    """Views that together are the elements start to stop in logical order; a few views for each dimension."""
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
