"""Roles that call different operations notice, and name the operation of each."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from understudy.comm.ops import KINDS, Op, describe, reduction, signature

DTYPES = [v for v in vars(torch).values() if isinstance(v, torch.dtype)]
calls = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from([None, torch.float32, torch.bfloat16, torch.int64, torch.bool]),
    st.integers(0, (1 << 40) - 1),
    st.integers(-1, 8),
    st.integers(0, 255),
)


@given(calls, calls)
def test_different_calls_have_different_signatures(
    one: tuple[str, torch.dtype | None, int, int, int], other: tuple[str, torch.dtype | None, int, int, int]
) -> None:
    assert (signature(*one) == signature(*other)) == (one == other)
    assert 0 <= signature(*one) < 1 << 64


@given(st.integers(0, (1 << 64) - 1))
def test_any_number_can_be_described(value: int) -> None:
    assert describe(value)


def test_every_dtype_has_its_own() -> None:
    unique = set(DTYPES)
    assert len({signature("send", dtype, 1) for dtype in unique}) == len(unique)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (signature("all_reduce", torch.float32, 4096, 0), "all_reduce(sum) of 4096 float32"),
        (signature("broadcast", torch.int64, 1, -1, 3), "broadcast of 1 int64 at root 3"),
        (signature("send", torch.uint8, 7), "send of 7 uint8"),
    ],
)
def test_descriptions(call: int, text: str) -> None:
    assert describe(call) == text


@pytest.mark.parametrize("name", ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
def test_reductions_are_named(name: str) -> None:
    kind = getattr(dist.ReduceOp, name)
    op = Op("all_reduce", outputs=[torch.zeros(3, dtype=torch.int32)], reduction=reduction(kind, torch.int32, 2))
    assert describe(op.signature) == f"all_reduce({name.lower()}) of 3 int32"


def test_what_an_operation_cannot_do_without() -> None:
    assert Op("all_gather").needs(3) == range(3)
    assert Op("broadcast", root=2).needs(3) == (2,)
    assert Op("all_reduce").needs(3) == ()
