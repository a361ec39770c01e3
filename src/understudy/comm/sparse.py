"""The sum of sparse tensors: an embedding's gradients have values in few rows, other ones on every role."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .calls import operation
from .faults import InvalidCall
from .ops import Op


class SparseSum:
    """An all-reduce of tensors in COO layout, in three all-gathers: how many values each role has, where, and which.

    The roles' tensors are added in the order of ranks, so all get the same bits. No role may be vacant: an all-gather
    needs every role."""

    def __init__(self, tensor: torch.Tensor, how: Any, size: int) -> None:
        kind = how if isinstance(how, dist.ReduceOp.RedOpType) else how.op
        if tensor.layout != torch.sparse_coo or kind != dist.ReduceOp.SUM:
            raise InvalidCall(
                f"all_reduce: {kind.name} of a {tensor.layout} tensor is not supported; only COO tensors can be summed"
            )
        self._tensor, self._size = tensor, size
        self._mine = tensor.detach().coalesce()
        self._shapes: list[torch.Tensor] = []
        self._indices: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def op(self) -> Op:
        """The first of three operations, each followed by the next."""
        mine = self._mine
        own = torch.tensor([len(mine.values()), mine.sparse_dim(), *mine.shape])
        self._shapes = [torch.empty_like(own) for _ in range(self._size)]
        return self._gather(own, self._shapes, self._gather_indices)

    def _gather(self, own: torch.Tensor, everyone: list[torch.Tensor], then: Any) -> Op:
        op = operation("all_gather", [own], everyone)
        op.then = then
        return op

    def _gather_indices(self) -> Op | None:
        mine, counts = self._mine, [int(shape[0]) for shape in self._shapes]
        if any(not torch.equal(shape[1:], self._shapes[0][1:]) for shape in self._shapes):
            raise InvalidCall(
                f"all_reduce: sparse tensors of different shapes: {[shape[2:].tolist() for shape in self._shapes]}"
            )
        most = max(counts)
        if most == 0:
            return None
        own = torch.zeros(mine.sparse_dim(), most, dtype=torch.int64)
        own[:, : len(mine.values())] = mine.indices()
        self._indices = [torch.empty_like(own) for _ in counts]
        return self._gather(own, self._indices, self._gather_values)

    def _gather_values(self) -> Op:
        values, most = self._mine.values(), self._indices[0].shape[1]
        own = values.new_zeros((most, *values.shape[1:]))
        own[: len(values)] = values
        self._values = [torch.empty_like(own) for _ in self._indices]
        return self._gather(own, self._values, self._add)

    def _add(self) -> None:
        shape = self._mine.shape
        with torch.inference_mode(self._tensor.is_inference()), torch.no_grad():
            parts = [
                torch.sparse_coo_tensor(
                    where[:, : int(of[0])].clone(), values[: int(of[0])].clone(), shape, check_invariants=False
                )
                for of, where, values in zip(self._shapes, self._indices, self._values, strict=True)
            ]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            self._tensor.copy_(total.coalesce())
