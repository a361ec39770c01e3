"""Calls of the process group: their options, in all the forms that torch has, and their tensors as operations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .faults import InvalidCall
from .ops import Op, OpKind, Reduction, reduction

Tensors = list[torch.Tensor]
_WITHOUT_FACTORS = tuple(
    getattr(dist.ReduceOp.RedOpType, name) for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
)
_REDUCE_OPS = (dist.ReduceOp, dist.ReduceOp.RedOpType)


def reduce_op(opts: Any, op: Any = None) -> Any:
    """The reduction of a call: given by keyword, in place of the options, or in them."""
    if op is not None:
        return op
    if opts is None or isinstance(opts, timedelta):
        return dist.ReduceOp.SUM
    return opts if isinstance(opts, _REDUCE_OPS) else opts.reduceOp


def root_of(opts: Any, root: int | None, size: int) -> int:
    """The root of a call: given by keyword, in place of the options, or in them; 0 without any."""
    if root is None:
        root = opts if isinstance(opts, int) else 0 if opts is None else int(opts.rootRank)
    if not 0 <= root < size:
        raise InvalidCall(f"root {root} is not in the group of {size} roles")
    return root


def limit_of(opts: Any, timeout: timedelta | None, otherwise: float | None) -> float | None:
    """The seconds that a call may take: given by keyword, in place of the options, or in them."""
    if timeout is None:
        timeout = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
    seconds = 0.0 if timeout is None else timeout.total_seconds()
    return seconds if seconds > 0 else otherwise  # options without a timeout have a negative one


def as_list(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def operation(
    kind: OpKind,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    fold: Reduction | None = None,
    root: int = 0,
) -> Op:
    op = Op(kind, [as_input(tensor) for tensor in inputs], reduction=fold, root=root)
    op.outputs = [_output(op, tensor) for tensor in outputs]
    return op


def as_input(tensor: torch.Tensor) -> torch.Tensor:
    return _flat(tensor.detach().resolve_conj().resolve_neg().contiguous())


def _output(op: Op, tensor: torch.Tensor) -> torch.Tensor:
    """Flat memory for a result: the tensor's own if it is plain and contiguous, otherwise a dense copy to copy back."""
    tensor = tensor.detach()
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return _flat(tensor)
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    op.copy_back.append((tensor, dense))
    return _flat(dense)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as one row, with stride 1 even for a single element, so that it can be viewed as bytes."""
    flat = tensor.view(-1)
    return flat if flat.stride(0) == 1 else flat.as_strided(flat.shape, (1,))


def same(name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.dtype != like.dtype or tensor.numel() != like.numel():
            raise InvalidCall(
                f"{name}: a tensor of {tensor.numel()} {tensor.dtype} among tensors of {like.numel()} {like.dtype}; "
                "all must agree"
            )


def folded_here(tensors: Tensors, how: Any, size: int) -> torch.Tensor:
    """The fold of several tensors of this role, for one reduction of all of them."""
    first = tensors[0]
    same("all_reduce", tensors, first)
    fold = reduction(how, first.dtype, size)
    if fold.kind not in _WITHOUT_FACTORS:
        raise InvalidCall(f"all_reduce: {fold.kind.name} of several tensors of one role; reduce them one by one")
    total = torch.empty_like(first, dtype=fold.acc, memory_format=torch.contiguous_format)
    fold.fold([tensor.detach() for tensor in tensors], total)
    return total.to(first.dtype)


def distinct(tensors: Tensors) -> Tensors:
    """The tensors without repetitions of the same memory."""
    if len(tensors) == 1:
        return tensors
    seen: dict[tuple[Any, ...], torch.Tensor] = {}
    for tensor in tensors:
        place = (id(tensor),) if tensor.layout != torch.strided else (tensor.data_ptr(), tensor.shape, tensor.stride())
        seen.setdefault(place if tensor.numel() else (id(tensor),), tensor)
    return list(seen.values())
