"""all_reduce, reduce and reduce_scatter: every reduction on every dtype, at every size that takes another way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum as premultiplied

from tests.comm.checks import Member, given, on_every_layout, perform, same

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [*FLOATS, *INTS, torch.bool, *COMPLEX]
SUM, AVG, MIN, MAX, PRODUCT = (getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"))
BITWISE: list[Any] = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
SMALL = (0, 1, 1003)
LARGE = (70_001, 300_003, 1_500_007)
"""Elements: beyond what is sent whole, beyond an arena slot, beyond several windows."""


def folded(op: Any, values: list[torch.Tensor]) -> torch.Tensor:
    """The reduction as it must come out: narrow floats are folded in float32 and rounded once."""
    dtype = values[0].dtype
    if dtype.is_complex:
        return torch.view_as_complex(folded(op, [torch.view_as_real(value) for value in values]))
    narrow = dtype in (torch.float16, torch.bfloat16)
    total = values[0].to(torch.float32 if narrow else dtype, copy=True)
    for value in values[1:]:
        other = value.to(total.dtype)
        if op in (SUM, AVG):
            total += other
        elif op == PRODUCT:
            total *= other
        elif op in (MIN, MAX):
            total = torch.minimum(total, other) if op == MIN else torch.maximum(total, other)
        else:
            total = {BITWISE[0]: torch.bitwise_and, BITWISE[1]: torch.bitwise_or, BITWISE[2]: torch.bitwise_xor}[op](
                total, other
            )
    if op == AVG:
        total = total / len(values) if dtype.is_floating_point else total.div(len(values), rounding_mode="trunc")
    return total.to(dtype)


def supported(op: Any, dtype: torch.dtype) -> bool:
    if dtype.is_complex:
        return op in (SUM, AVG)
    if op in BITWISE:
        return not dtype.is_floating_point
    return not (dtype == torch.bool and op == AVG)


COMBINATIONS = [(op, dtype) for op in (SUM, AVG, MIN, MAX, PRODUCT, *BITWISE) for dtype in ALL if supported(op, dtype)]


def values_of_all(member: Member, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [given(rank, count, dtype) for rank in range(member.size)]


def all_reduce_of_everything(member: Member) -> None:
    for op, dtype in COMBINATIONS:
        for count in SMALL:
            values = values_of_all(member, count, dtype)
            value = values[member.rank].clone()
            dist.all_reduce(value, op)
            same(value, folded(op, values), (op, dtype, count))


def all_reduce_of_large_tensors(member: Member) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in LARGE:
            values = values_of_all(member, count, dtype)
            for op in (SUM, AVG):
                value = values[member.rank].clone()
                dist.all_reduce(value, op)
                same(value, folded(op, values), (op, dtype, count))


def all_reduce_of_a_scalar(member: Member) -> None:
    value = torch.tensor(float(member.rank + 1))
    dist.all_reduce(value)
    same(value, torch.tensor(member.size * (member.size + 1) / 2))


def all_reduce_coalesced(member: Member) -> None:
    shapes = [(3, 5), (0,), (70_001,), ()]
    values = [torch.full(shape, float(member.rank + i)) for i, shape in enumerate(shapes)]
    dist.all_reduce_coalesced(values)
    for i, (value, shape) in enumerate(zip(values, shapes, strict=True)):
        same(value, torch.full(shape, float(sum(rank + i for rank in range(member.size)))))


def narrow_floats_are_rounded_once(member: Member) -> None:
    """Sums that a fold in the narrow dtype would lose: 256 + 1 + 1 in bfloat16, 2048 + 1 + 1 in float16."""
    for dtype, large in ((torch.bfloat16, 256.0), (torch.float16, 2048.0)):
        for count in (5, 1003, 300_003):
            value = torch.full((count,), large if member.rank == 0 else 1.0).to(dtype)
            exact = torch.full((count,), large + member.size - 1)
            dist.all_reduce(value)
            same(value, exact.to(dtype), ("all_reduce", dtype, count))

            value = torch.full((count,), large if member.rank == 0 else 1.0).to(dtype)
            dist.reduce(value, 1)
            if member.rank == 1:
                same(value, exact.to(dtype), ("reduce", dtype, count))

            blocks = torch.full((member.size * count,), large if member.rank == 0 else 1.0).to(dtype)
            out = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_single(out, blocks)
            same(out, exact.to(dtype), ("reduce_scatter", dtype, count))


def premultiplied_sum(member: Member) -> None:
    for dtype in FLOATS:
        for count in (7, 70_001):
            values = values_of_all(member, count, dtype)
            expected = folded(SUM, [value * 0.5 for value in values])
            value = values[member.rank].clone()
            dist.all_reduce(value, premultiplied(0.5))
            same(value, expected, ("all_reduce", dtype, count))

            value = values[member.rank].clone()
            dist.reduce(value, 0, premultiplied(0.5))
            same(value, expected if member.rank == 0 else values[member.rank], ("reduce", dtype, count))

            out = torch.empty(count, dtype=dtype)
            blocks = values[member.rank].repeat(member.size)
            dist.reduce_scatter_single(out, blocks, premultiplied(0.5))
            same(out, expected, ("reduce_scatter", dtype, count))
            same(blocks, values[member.rank].repeat(member.size), "the input of reduce_scatter")


def premultiplied_by_a_tensor(member: Member) -> None:
    value = torch.full((5,), 3.0)
    dist.all_reduce(value, premultiplied(torch.tensor([2.0])))
    same(value, torch.full((5,), 6.0 * member.size))


def reduce_to_every_root(member: Member) -> None:
    for root in range(member.size):
        for op, dtype in COMBINATIONS:
            count = 13 + root
            values = values_of_all(member, count, dtype)
            value = values[member.rank].clone()
            dist.reduce(value, root, op)
            same(value, folded(op, values) if member.rank == root else values[member.rank], (op, dtype, root))
        for count in (0, *LARGE):
            values = values_of_all(member, count, torch.float32)
            value = values[member.rank].clone()
            dist.reduce(value, root)
            same(value, folded(SUM, values) if member.rank == root else values[member.rank], (count, root))


def reduce_scatter_of_everything(member: Member) -> None:
    for op, dtype in COMBINATIONS:
        for count in SMALL:
            _reduce_scatter(member, op, dtype, count)
    for dtype in (torch.float32, torch.bfloat16):
        for count in LARGE:
            _reduce_scatter(member, SUM, dtype, count)


def _reduce_scatter(member: Member, op: Any, dtype: torch.dtype, count: int) -> None:
    """Rank r brings given(r + b) as block b."""
    blocks = [given(member.rank + block, count, dtype) for block in range(member.size)]
    expected = folded(op, [given(rank + member.rank, count, dtype) for rank in range(member.size)])
    out = torch.empty(count, dtype=dtype)
    dist.reduce_scatter(out, blocks, op)
    same(out, expected, ("reduce_scatter", op, dtype, count))
    out = torch.empty(count, dtype=dtype)
    dist.reduce_scatter_single(out, torch.cat(blocks), op)
    same(out, expected, ("reduce_scatter_single", op, dtype, count))


def reduce_scatter_of_a_matrix(member: Member) -> None:
    """By rows, and into an output that is a block of the input itself."""
    whole = torch.arange(member.size * 6.0).view(member.size * 2, 3) + member.rank
    expected = sum(torch.arange(member.size * 6.0).view(member.size * 2, 3) + rank for rank in range(member.size))
    assert isinstance(expected, torch.Tensor)
    out = whole[2 * member.rank : 2 * member.rank + 2]
    dist.reduce_scatter_single(out, whole)
    same(out, expected[2 * member.rank : 2 * member.rank + 2])


def sliced_and_transposed(member: Member) -> None:
    """Only what the view shows takes part, and only that is written."""
    ones = torch.full((40, 7), float(member.rank + 1))
    total = float(member.size * (member.size + 1) // 2)
    own = float(member.rank + 1)

    base = ones.clone()
    dist.all_reduce(base[::2, 1:3])
    expected = ones.clone()
    expected[::2, 1:3] = total
    same(base, expected, "a slice")

    numbers = torch.arange(280.0).view(7, 40)
    turned = (numbers + member.rank).t()
    dist.all_reduce(turned)
    same(turned, (numbers * member.size + sum(range(member.size))).t(), "a transpose")

    image = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5)
    last = image.to(memory_format=torch.channels_last)
    dist.all_reduce(last)
    same(last, image * member.size, "channels last")
    assert last.is_contiguous(memory_format=torch.channels_last)

    base = ones.clone()
    dist.reduce(base.t()[::3], 0)
    expected = ones.clone()
    expected.t()[::3] = total if member.rank == 0 else own
    same(base, expected, "reduce of a slice of a transpose")

    wide = torch.arange(member.size * 4.0).view(4, member.size).t()
    base = torch.zeros(4, 2)
    dist.reduce_scatter_single(base[:, 0], wide)
    same(base, torch.stack([wide[member.rank] * member.size, torch.zeros(4)], 1), "reduce_scatter")

    blocks = [torch.arange(8.0).view(4, 2).t()[0] + block for block in range(member.size)]
    base = torch.zeros(4, 2)
    dist.reduce_scatter(base[:, 1], blocks)
    same(base, torch.stack([torch.zeros(4), blocks[member.rank] * member.size], 1), "reduce_scatter of a list")


def with_gradients(member: Member) -> None:
    """What autograd holds can be reduced too; no graph grows from it."""
    weight = torch.ones(4, requires_grad=True)
    dist.all_reduce(weight)
    same(weight, torch.full((4,), float(member.size)))
    assert weight.is_leaf


def what_makes_no_sense_is_refused(member: Member) -> None:
    """Before anything is sent: the group goes on as though nothing had been asked."""
    wrong: list[tuple[Any, torch.Tensor]] = [
        (dist.ReduceOp.BAND, torch.ones(3)),
        (PRODUCT, torch.ones(3, dtype=torch.complex64)),
        (MAX, torch.ones(3, dtype=torch.complex64)),
        (AVG, torch.ones(3, dtype=torch.bool)),
        (SUM, torch.ones(3).to(torch.float8_e4m3fn)),
        (SUM, torch.ones(3, dtype=torch.uint32)),
        (MAX, torch.ones(3).to_sparse()),
    ]
    for op, value in wrong:
        with pytest.raises(ValueError, match=r"not|need"):
            member.group.allreduce([value], _options(op))
    with pytest.raises(ValueError, match="roles"):
        member.group.reduce_scatter_single(torch.empty(3), torch.empty(3 * member.size + 1))
    with pytest.raises(ValueError, match="agree"):
        member.group.reduce_scatter([torch.empty(3)], [[torch.empty(4)] * member.size])
    with pytest.raises(ValueError, match="one per role"):
        member.group.reduce_scatter([torch.empty(3)], [[torch.empty(3)] * (member.size + 1)])
    value = torch.ones(1)
    dist.all_reduce(value)
    same(value, torch.full((1,), float(member.size)))


def _options(op: Any) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


CHECKS = [
    all_reduce_of_everything,
    all_reduce_of_large_tensors,
    all_reduce_of_a_scalar,
    all_reduce_coalesced,
    narrow_floats_are_rounded_once,
    premultiplied_sum,
    premultiplied_by_a_tensor,
    reduce_to_every_root,
    reduce_scatter_of_everything,
    reduce_scatter_of_a_matrix,
    sliced_and_transposed,
    with_gradients,
    what_makes_no_sense_is_refused,
]


@on_every_layout
def test_reducing(machines: list[int], transport: str) -> None:
    perform(CHECKS, machines, transport)
