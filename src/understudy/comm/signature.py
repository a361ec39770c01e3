"""What an operation looks like from outside, in 64 bits, so that roles can tell when they disagree."""

from __future__ import annotations

import torch

KINDS = (
    "none", "barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
    "gather", "scatter", "all_to_all", "send",
)  # fmt: skip
_KIND = {name: code for code, name in enumerate(KINDS)}
_DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
_DTYPE = {dtype: code for code, dtype in enumerate(_DTYPES)}
_REDUCTIONS = ("", "sum", "avg", "premul_sum", "product", "min", "max", "band", "bor", "bxor")
_BYTES = 40


def signature(
    kind: str, dtype: torch.dtype | None = None, elements: int = 0, reduction: int = -1, root: int = 0
) -> int:
    """kind:5 reduction:4 dtype:7 root:8 elements:40."""
    code = 0 if dtype is None else _DTYPE[dtype] + 1
    return (
        _KIND[kind] << 59
        | (reduction + 1) << 55
        | (code & 0x7F) << 48
        | (root & 0xFF) << _BYTES
        | (elements & (1 << _BYTES) - 1)
    )


def describe(value: int) -> str:
    """`all_reduce(sum) of 4096 float32`."""
    kind = value >> 59
    name = KINDS[kind] if kind < len(KINDS) else f"operation {kind}"
    reduction = value >> 55 & 0xF
    how = f"({_REDUCTIONS[reduction]})" if 0 < reduction < len(_REDUCTIONS) else ""
    code = value >> 48 & 0x7F
    dtype = f" {str(_DTYPES[code - 1]).removeprefix('torch.')}" if 0 < code <= len(_DTYPES) else ""
    root = value >> _BYTES & 0xFF
    at = f" at root {root}" if name in ("broadcast", "reduce", "gather", "scatter") else ""
    return f"{name}{how} of {value & (1 << _BYTES) - 1}{dtype}{at}"
