"""Folds: their order, their precision, and what they refuse."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from understudy.comm.ops import Reduction, accumulator, as_real, reduction

SUM, AVG, PREMUL = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM
floats = st.floats(-1e6, 1e6, width=32)


@given(st.lists(floats, min_size=1, max_size=8))
def test_the_fold_goes_from_left_to_right(values: list[float]) -> None:
    total = torch.empty(1)
    reduction(SUM, torch.float32, 8).fold([torch.tensor([value]) for value in values], total)
    expected = torch.tensor([values[0]])
    for value in values[1:]:
        expected = expected + torch.tensor([value])
    assert torch.equal(total, expected)


@given(st.lists(floats, min_size=1, max_size=8), st.sampled_from([torch.bfloat16, torch.float16]))
def test_narrow_floats_are_folded_in_float32(values: list[float], dtype: torch.dtype) -> None:
    fold = reduction(SUM, dtype, 8)
    assert fold.acc == torch.float32
    narrow = [torch.tensor([value / 100]).to(dtype) for value in values]
    total = torch.empty(1)
    fold.fold(narrow, total)
    expected = narrow[0].float()
    for value in narrow[1:]:
        expected = expected + value.float()
    assert torch.equal(total, expected)


def test_sixteen_bits_would_not_have_done() -> None:
    values = [torch.tensor([256.0], dtype=torch.bfloat16)] + [torch.ones(1, dtype=torch.bfloat16)] * 4
    total = torch.empty(1)
    reduction(SUM, torch.bfloat16, 5).fold(values, total)
    assert total.item() == 260.0


def test_the_result_may_lie_in_the_first_or_second_value() -> None:
    for where in (0, 1):
        values = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]), torch.tensor([100.0, 200.0])]
        reduction(SUM, torch.float32, 3).fold(values, values[where])
        assert values[where].tolist() == [111.0, 222.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_what_is_wide_enough_is_folded_as_it_is(dtype: torch.dtype) -> None:
    assert accumulator(dtype) == dtype


def test_an_average_counts_vacant_roles_too() -> None:
    fold = reduction(AVG, torch.float32, 4)
    total = torch.empty(2)
    fold.fold([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])], total)
    fold.finish(total)
    assert total.tolist() == [1.0, 2.0]


def test_an_average_of_integers_is_cut_towards_zero() -> None:
    total = torch.tensor([7, -7])
    reduction(AVG, torch.int64, 2).finish(total)
    assert total.tolist() == [3, -3]


def test_a_sum_is_finished_when_it_is_folded() -> None:
    total = torch.tensor([7.0])
    reduction(SUM, torch.float32, 4).finish(total)
    assert total.item() == 7.0


@pytest.mark.parametrize("name", ["MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"])
def test_integers(name: str) -> None:
    values = [torch.tensor([6, -3]), torch.tensor([5, 9]), torch.tensor([3, 1])]
    by_hand = {"MIN": [3, -3], "MAX": [6, 9], "PRODUCT": [90, -27], "BAND": [0, 1], "BOR": [7, -3], "BXOR": [0, -11]}
    total = torch.empty(2, dtype=torch.int64)
    fold = reduction(getattr(dist.ReduceOp, name), torch.int64, 3)
    fold.fold(values, total)
    if name in ("BOR", "BXOR"):
        expected = values[0].clone()
        for value in values[1:]:
            expected = expected | value if name == "BOR" else expected ^ value
        assert torch.equal(total, expected)
    else:
        assert total.tolist() == by_hand[name]


def test_not_a_number_stays() -> None:
    for kind in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, SUM):
        total = torch.empty(1)
        reduction(kind, torch.float32, 2).fold([torch.tensor([1.0]), torch.tensor([float("nan")])], total)
        assert total.isnan().all()


def test_a_premultiplied_sum() -> None:
    op = dist._make_nccl_premul_sum(0.5)  # type: ignore[attr-defined]
    fold = reduction(op, torch.float32, 2)
    assert fold.prepare(torch.tensor([3.0])).item() == 1.5


@pytest.mark.parametrize("name", ["BAND", "BOR", "BXOR"])
def test_bits_of_floats(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} needs integers or booleans, not torch\.float32"):
        reduction(getattr(dist.ReduceOp, name), torch.float32, 2)


def test_the_largest_complex_number() -> None:
    with pytest.raises(ValueError, match=r"MAX is not defined on torch\.complex64; complex tensors can be summed"):
        reduction(dist.ReduceOp.MAX, torch.complex64, 2)


def test_complex_sums_are_sums_of_reals() -> None:
    tensor = torch.tensor([1 + 2j])
    assert as_real(SUM, tensor).tolist() == [[1.0, 2.0]]
    assert as_real(dist.ReduceOp.MAX, tensor) is tensor


def test_codes_are_their_own() -> None:
    names = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
    folds: list[Reduction] = [reduction(getattr(dist.ReduceOp, name), torch.int64, 2) for name in names]
    assert len({fold.code for fold in folds}) == len(names)
