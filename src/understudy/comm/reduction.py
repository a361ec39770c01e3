"""Folds: the operation, the precision and the order in which values are reduced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

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
    """The fold for one of torch's ReduceOps. Raises ValueError if it is not defined on this dtype."""
    kind = op if isinstance(op, _Op) else op.op
    if kind not in _CODES:
        raise ValueError(f"reduction {op} is not supported; use one of {', '.join(str(k.name) for k in _CODES)}")
    if kind in _BITWISE and dtype.is_floating_point:
        raise ValueError(f"{kind.name} needs integers or booleans, not {dtype}")
    if dtype.is_complex:
        raise ValueError(f"{kind.name} is not defined on {dtype}; complex tensors can be summed or averaged")
    if dtype not in _REDUCIBLE or (kind == _Op.AVG and dtype == torch.bool):
        raise ValueError(f"{kind.name} is not supported on {dtype}; convert the tensor first")
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
