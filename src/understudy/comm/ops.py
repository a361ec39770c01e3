"""Operations as a transport runs them: their folds (the operation, the precision and the order in which values are
reduced), and their signatures, by which roles notice that they disagree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist

from .faults import InvalidCall

_Op: Any = dist.ReduceOp.RedOpType

_FOLDS: dict[Any, Callable[..., object]] = {
    _Op.SUM: torch.add,
    _Op.AVG: torch.add,
    _Op.PREMUL_SUM: torch.add,
    _Op.PRODUCT: torch.mul,
    _Op.MIN: torch.minimum,
    _Op.MAX: torch.maximum,
    _Op.BAND: torch.bitwise_and,
    _Op.BOR: torch.bitwise_or,
    _Op.BXOR: torch.bitwise_xor,
}
_BITWISE = (_Op.BAND, _Op.BOR, _Op.BXOR)
_SUMS = (_Op.SUM, _Op.AVG, _Op.PREMUL_SUM)
_CODES = {op: code for code, op in enumerate(_FOLDS)}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_REDUCIBLE = {*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Narrow floats are folded in float32 and rounded once, at the end."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


@dataclass(frozen=True, slots=True)
class Reduction:
    """One kind of fold over tensors of one dtype. `parts` is the number of roles, vacant ones included."""

    kind: Any
    dtype: torch.dtype
    acc: torch.dtype
    parts: int
    factor: float | torch.Tensor | None = None

    @property
    def code(self) -> int:
        return _CODES[self.kind]

    def prepare(self, tensor: torch.Tensor) -> torch.Tensor:
        """This role's contribution: scaled if the operation asks for it."""
        return tensor if self.factor is None else tensor * self.factor

    def accumulate(self, into: torch.Tensor, value: torch.Tensor) -> None:
        _FOLDS[self.kind](into, value, out=into)

    def fold(self, values: list[torch.Tensor], out: torch.Tensor) -> None:
        """out = values[0] ∘ values[1] ∘ …, in that order, in `out`'s precision. `out` may be one of the values only if
        none is converted."""
        first = values[0]
        if len(values) > 1 and first.dtype == out.dtype:
            _FOLDS[self.kind](first, values[1], out=out)
            rest = values[2:]
        else:
            out.copy_(first)
            rest = values[1:]
        for value in rest:
            self.accumulate(out, value)

    def complete(self, partial: torch.Tensor, value: torch.Tensor, out: torch.Tensor) -> None:
        """out = the finished fold of `partial` and the one value it lacks. `partial` is undefined afterwards."""
        if out.dtype == self.acc:
            _FOLDS[self.kind](partial, value, out=out)
            self.finish(out)
        else:
            self.accumulate(partial, value)
            self.finish(partial)
            out.copy_(partial)

    def finish(self, acc: torch.Tensor) -> None:
        """Divide an average, once all values are folded."""
        if self.kind == _Op.AVG:
            if acc.dtype.is_floating_point:
                acc.div_(self.parts)
            else:
                acc.div_(self.parts, rounding_mode="trunc")


def reduction(op: Any, dtype: torch.dtype, parts: int) -> Reduction:
    """The fold for one of torch's ReduceOps. Raises InvalidCall if it is not defined on this dtype."""
    kind = op if isinstance(op, _Op) else op.op
    if kind not in _CODES:
        raise InvalidCall(f"reduction {op} is not supported; use one of {', '.join(str(k.name) for k in _CODES)}")
    if kind in _BITWISE and dtype.is_floating_point:
        raise InvalidCall(f"{kind.name} needs integers or booleans, not {dtype}")
    if dtype.is_complex:
        raise InvalidCall(f"{kind.name} is not defined on {dtype}; complex tensors can be summed or averaged")
    if dtype not in _REDUCIBLE or (kind == _Op.AVG and dtype == torch.bool):
        raise InvalidCall(f"{kind.name} is not supported on {dtype}; convert the tensor first")
    if kind == _Op.PREMUL_SUM:
        return Reduction(kind, dtype, accumulator(dtype), parts, op.__getstate__()[1])
    return _plain(kind, dtype, parts)


@cache
def _plain(kind: Any, dtype: torch.dtype, parts: int) -> Reduction:
    return Reduction(kind, dtype, accumulator(dtype), parts)


def as_real(op: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Complex sums are sums of pairs of reals."""
    kind = op if isinstance(op, _Op) else op.op
    return torch.view_as_real(tensor) if tensor.is_complex() and kind in _SUMS else tensor


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
    limit: float | None = None
    """The seconds that the operation may take; None: as many as the fabric allows."""
    then: Callable[[], Op | None] | None = None
    """Called when the operation has finished. Returns an operation that follows before all others of the group."""

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
