"""An operation as a transport runs it, and its signature, by which roles notice that they disagree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from .reduction import Reduction

OpKind = Literal[
    "barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all"
]
KINDS = ("none", *get_args(OpKind), "send")
_KIND = {name: code for code, name in enumerate(KINDS)}
_DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
_DTYPE = {dtype: code for code, dtype in enumerate(_DTYPES)}
_REDUCTIONS = ("", "sum", "avg", "premul_sum", "product", "min", "max", "band", "bor", "bxor")
_BYTES = 40


def signature(
    kind: str, dtype: torch.dtype | None = None, elements: int = 0, reduction: int = -1, root: int = 0
) -> int:
    """An operation in 64 bits: kind 5, reduction 4, dtype 7, root 8, elements 40."""
    code = 0 if dtype is None else _DTYPE[dtype] + 1
    return (
        _KIND[kind] << 59
        | (reduction + 1) << 55
        | (code & 0x7F) << 48
        | (root & 0xFF) << _BYTES
        | (elements & (1 << _BYTES) - 1)
    )


def describe(value: int) -> str:
    """A signature in words, such as `all_reduce(sum) of 4096 float32`."""
    kind = value >> 59
    name = KINDS[kind] if kind < len(KINDS) else f"operation {kind}"
    reduction = value >> 55 & 0xF
    how = f"({_REDUCTIONS[reduction]})" if 0 < reduction < len(_REDUCTIONS) else ""
    code = value >> 48 & 0x7F
    dtype = f" {str(_DTYPES[code - 1]).removeprefix('torch.')}" if 0 < code <= len(_DTYPES) else ""
    root = value >> _BYTES & 0xFF
    at = f" at root {root}" if name in ("broadcast", "reduce", "gather", "scatter") else ""
    return f"{name}{how} of {value & (1 << _BYTES) - 1}{dtype}{at}"


@dataclass(slots=True)
class Op:
    """A collective over flat, contiguous CPU tensors.

    `inputs` and `outputs` hold one tensor, or one per rank if the operation takes or gives one per rank; on ranks that
    take no part in one side that side is empty. `copy_back` pairs are copied once the operation has finished.
    """

    kind: OpKind
    inputs: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    reduction: Reduction | None = None
    root: int = 0
    copy_back: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def fold(self) -> Reduction:
        """The reduction of an operation that reduces."""
        assert self.reduction is not None
        return self.reduction

    @property
    def signature(self) -> int:
        """Equal on all ranks that agree about this operation."""
        if self.kind in ("barrier", "all_to_all"):
            return signature(self.kind)
        sample = (self.inputs or self.outputs)[0]
        code = -1 if self.reduction is None else self.reduction.code
        return signature(self.kind, sample.dtype, sample.numel(), code, self.root)

    def needs(self, size: int) -> range | tuple[int, ...]:
        """The ranks that must not be vacant."""
        if self.kind in ("all_gather", "gather", "scatter", "all_to_all"):
            return range(size)
        return (self.root,) if self.kind in ("broadcast", "reduce") else ()
