"""Inference mode, which is a property of a thread: operations that run on another one take part in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.comm.checks import Member, given, perform, same

COUNT = 11
BIG = 1 << 20


def value(rank: int, count: int) -> torch.Tensor:
    return given(rank, count, torch.float32).clone()


def _all_kinds(member: Member, count: int) -> list[Any]:
    size, rank, every = member.size, member.rank, range(member.size)
    sums = torch.stack([value(other, count) for other in every]).sum(0)
    calls: list[Any] = []

    def each(call: Callable[[], Any], got: torch.Tensor, expected: torch.Tensor) -> None:
        calls.append((call, got, expected))

    reduced, wide, blocks = value(rank, count), torch.zeros(2, count), [value(rank, count) for _ in every]
    each(lambda: dist.all_reduce(reduced, async_op=True), reduced, sums)
    halves = value(rank, count).half()
    each(lambda: dist.all_reduce(halves, async_op=True), halves, sums.half())
    wide[0] = value(rank, count)
    each(lambda: dist.all_reduce(wide.t()[:, 0], async_op=True), wide, torch.stack([sums, torch.zeros(count)]))
    outs = torch.zeros(size, count)
    each(
        lambda: dist.all_gather_into_tensor(outs, value(rank, count), async_op=True),
        outs,
        torch.stack([value(other, count) for other in every]),
    )
    sent = value(rank, count)
    each(lambda: dist.broadcast(sent, 0, async_op=True), sent, value(0, count))
    out = torch.zeros(count)
    each(lambda: dist.reduce_scatter(out, blocks, async_op=True), out, sums)
    exchanged = torch.zeros(size * count)
    each(
        lambda: dist.all_to_all_single(exchanged, value(rank, count).repeat(size), async_op=True),
        exchanged,
        torch.cat([value(other, count) for other in every]),
    )
    return calls


def modes_in_turn(member: Member) -> None:
    """Whatever is kept from an operation in the mode, such as scratch memory, may be used outside of it, and back."""
    for count in (COUNT, BIG):
        for inside in (True, False, True, False):
            with torch.inference_mode() if inside else nullcontext():
                for call, got, expected in _all_kinds(member, count):
                    assert got.is_inference() == inside
                    call().wait()
                    same(got, expected)
                for _, got, expected in _all_kinds(member, count)[:1]:
                    dist.all_reduce(got)
                    same(got, expected)


def callbacks_stay_outside(member: Member) -> None:
    """Tensors that a callback makes in normal mode are normal ones, though it runs on the group's thread."""
    work = dist.all_reduce(value(member.rank, COUNT), async_op=True)
    assert work is not None
    made = work.get_future().then(lambda done: [torch.ones(3), done.value()[0] * 2]).wait()
    assert not any(tensor.is_inference() for tensor in made)


def messages(member: Member) -> None:
    with torch.inference_mode():
        sending = dist.isend(value(member.rank, COUNT), member.next)
        wide = torch.zeros(2, COUNT)
        taking = dist.irecv(wide.t()[:, 0], member.last)
        assert sending is not None
        assert taking is not None
        taking.get_future().wait()
        sending.wait()
        same(wide[0], value(member.last, COUNT))


CHECKS = [modes_in_turn, callbacks_stay_outside, messages]


@pytest.mark.parametrize(("machines", "transport"), [([2, 1], "native"), ([2], "torch:gloo")], ids=str)
def test_operations_in_inference_mode(machines: list[int], transport: str) -> None:
    perform(CHECKS, machines, transport)
