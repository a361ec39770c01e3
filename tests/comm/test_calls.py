"""Calls of the group in the forms that torch's own groups take: keywords, several tensors, layouts, futures."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.comm.checks import Member, given, perform, same
from understudy.comm.calls import distinct, limit_of, reduce_op, root_of
from understudy.comm.faults import InvalidCall

COUNT = 11
SUM, MAX, AVG = dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG
LONG = timedelta(seconds=9)


def value(rank: int) -> torch.Tensor:
    return given(rank, COUNT, torch.float32)


def total(size: int) -> torch.Tensor:
    return torch.stack([value(rank) for rank in range(size)]).sum(0)


def largest(size: int) -> torch.Tensor:
    return torch.stack([value(rank) for rank in range(size)]).amax(0)


def keywords(member: Member) -> None:
    """Roots, reductions and timeouts are used, in whichever way they are given."""
    group, last = member.group, member.size - 1
    calls: list[Any] = [
        lambda t: group.broadcast(t, root=last),
        lambda t: group.broadcast(t, last),
        lambda t: group.broadcast([t], root=last, timeout=LONG),
        lambda t: group.broadcast(t, last, LONG),
    ]
    for call in calls:
        tensor = value(member.rank).clone()
        call(tensor).wait()
        same(tensor, value(last))
    for call in (
        lambda t: group.allreduce(t, op=MAX),
        lambda t: group.allreduce([t], op=MAX, timeout=LONG),
        lambda t: group.allreduce(t, MAX, LONG),
    ):
        tensor = value(member.rank).clone()
        call(tensor).wait()
        same(tensor, largest(member.size))
    for call in (
        lambda t: group.reduce(t, root=last, op=MAX),
        lambda t: group.reduce(t, last, MAX),
        lambda t: group.reduce(t, last, MAX, LONG),
    ):
        tensor = value(member.rank).clone()
        call(tensor).wait()
        same(tensor, largest(member.size) if member.rank == last else value(member.rank))
    outs = [torch.zeros(COUNT) for _ in range(member.size)]
    group.gather(outs if member.rank == last else [], value(member.rank), root=last).wait()
    for rank, out in enumerate(outs):
        same(out, value(rank) if member.rank == last else torch.zeros(COUNT))
    out = torch.zeros(COUNT)
    group.scatter(out, [value(rank) for rank in range(member.size)] if member.rank == last else [], root=last).wait()
    same(out, value(member.rank))
    group.reduce_scatter(out, [value(member.rank)] * member.size, op=MAX, timeout=LONG).wait()
    same(out, largest(member.size))
    group.allgather(outs, value(member.rank), LONG).wait()
    same(torch.stack(outs), torch.stack([value(rank) for rank in range(member.size)]))
    group.barrier(timeout=LONG).wait()
    group.barrier(LONG).wait()


def unknown_keywords(member: Member) -> None:
    group: Any = member.group
    tensor = value(member.rank).clone()
    calls: list[Any] = [
        lambda: group.broadcast(tensor, source=1),
        lambda: group.allreduce([tensor], reduction=MAX),
        lambda: group.reduce(tensor, dst=1),
        lambda: group.all_gather_single(tensor, tensor, group=None),
        lambda: group.barrier(device_ids=[0]),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="unexpected keyword"):
            call()


def rejected(member: Member) -> None:
    """Torch's own groups raise ValueError for some of these calls and RuntimeError for others."""
    group, tensor = member.group, value(member.rank).clone()
    calls: list[Any] = [
        lambda: group.broadcast(tensor, root=member.size),
        lambda: group.allgather([[tensor]] if member.size > 1 else [[]], [tensor]),
        lambda: group.allreduce(tensor, op=dist.ReduceOp.BAND),
        lambda: group.allreduce([tensor, tensor[:3]]),
        lambda: group.allreduce([tensor, tensor.clone()], op=AVG),
        lambda: group.broadcast(tensor.to_sparse()),
        lambda: group.allreduce(tensor.to_sparse(), op=MAX),
    ]
    for call in calls:
        for kind in (ValueError, RuntimeError):
            with pytest.raises(kind):
                call()


def several_tensors(member: Member) -> None:
    """The tensors of one all-reduce are one reduction; those of a coalesced one are apart, each memory once."""
    first, second = value(member.rank).clone(), value(member.rank).mul(10).t().clone()
    member.group.allreduce([first, second]).wait()
    for tensor in (first, second):
        same(tensor, total(member.size) * 11)
    again = value(member.rank).clone()
    other = value(member.rank).clone()
    dist.all_reduce_coalesced([again, other, again, again.view(-1)])
    for tensor in (again, other):
        same(tensor, total(member.size))
    rows = torch.zeros(COUNT, 2)
    rows[:, 0] = value(member.rank)
    member.group.allreduce([rows[:, 0], rows[:, 1]]).wait()
    same(rows, torch.stack([total(member.size)] * 2, 1))


def uneven_blocks(member: Member) -> None:
    blocks = [torch.full((rank + 1, 2), float(member.rank + 1)) for rank in range(member.size)]
    out = torch.full((member.rank + 1, 2), -1.0)
    dist.reduce_scatter(out, blocks)
    same(out, torch.full((member.rank + 1, 2), member.size * (member.size + 1) / 2))


def strided_exchange(member: Member) -> None:
    wide = torch.arange(member.size * 6.0).view(6, member.size).t() + 100 * member.rank
    out = torch.full((6, member.size), -1.0).t()
    dist.all_to_all_single(out, wide)
    expected = [
        torch.arange(member.size * 6.0).view(6, member.size).t()[member.rank] + 100 * r for r in range(member.size)
    ]
    same(out.contiguous(), torch.stack(expected))
    with pytest.raises(RuntimeError):
        dist.all_to_all_single(out, wide, [1] * (member.size + 1), None)


def futures(member: Member) -> None:
    """Values of futures are nested as those of gloo."""
    outs = [torch.zeros(COUNT) for _ in range(member.size)]
    work = dist.all_gather(outs, value(member.rank), async_op=True)
    assert work is not None
    got = work.get_future().wait()
    assert [tensor.data_ptr() for tensor in got] == [tensor.data_ptr() for tensor in outs]
    two = member.group.allgather([outs, [out.clone() for out in outs]], [value(member.rank)] * 2).get_future().wait()
    assert [len(part) for part in two] == [member.size] * 2
    for dtype in (torch.float16, torch.float32):
        work = dist.all_reduce(value(member.rank).to(dtype, copy=True), async_op=True)
        assert work is not None
        (reduced,) = work.get_future().wait()
        same(reduced, total(member.size).to(dtype))
        (later,) = work.get_future().then(lambda done: [done.value()[0] + 1]).wait()
        same(later, total(member.size).to(dtype) + 1)


def options(member: Member) -> None:
    assert member.group.options._timeout == dist.constants.default_pg_timeout
    group = dist.new_group(timeout=timedelta(seconds=77))
    assert group.options._timeout == timedelta(seconds=77)
    assert group.options.backend == "understudy"
    assert group.options.group_name == group.group_name
    assert group.options.global_ranks_in_group == list(range(member.size))
    group.set_timeout(timedelta(seconds=78))
    assert group.options._timeout == timedelta(seconds=78)


def split(member: Member) -> None:
    mine = [rank for rank in range(member.size) if rank % 2 == member.rank % 2]
    group = member.group.split_group(mine, timeout=timedelta(seconds=76), group_name=f"half{member.rank % 2}")
    assert group is not None
    assert (group.size(), group.rank()) == (len(mine), mine.index(member.rank))
    assert (group.group_name, group.options._timeout) == (f"half{member.rank % 2}", timedelta(seconds=76))
    tensor = value(member.rank).clone()
    group.allreduce([tensor]).wait()
    same(tensor, torch.stack([value(rank) for rank in mine]).sum(0))
    rest = member.group.split_group([0])
    assert (rest is None) == (member.rank != 0)


def to_itself(member: Member) -> None:
    for order in ("send first", "receive first"):
        got = [torch.zeros(COUNT), torch.zeros(COUNT)]
        sending = [lambda tag=tag: member.group.send([value(tag)], member.rank, tag) for tag in (0, 1)]
        taking = [lambda tag=tag, out=got[tag]: member.group.recv([out], member.rank, tag) for tag in (1, 0)]
        calls: list[Any] = [*sending, *taking] if order == "send first" else [*taking, *sending]
        for work in [call() for call in calls]:
            work.wait()
        same(got[0], value(0))
        same(got[1], value(1))


CHECKS = [
    keywords,
    unknown_keywords,
    rejected,
    several_tensors,
    uneven_blocks,
    strided_exchange,
    futures,
    options,
    split,
    to_itself,
]


@pytest.mark.parametrize(("machines", "transport"), [([2, 1], "native"), ([2, 1], "torch:gloo")], ids=str)
def test_calls_in_the_forms_of_torch(machines: list[int], transport: str) -> None:
    perform(CHECKS, machines, transport)


def test_options_of_a_call_in_all_forms() -> None:
    options: Any = dist.ReduceOptions()
    options.reduceOp, options.rootRank = MAX, 2
    assert reduce_op(None) == reduce_op(LONG) == SUM
    assert reduce_op(options) == reduce_op(MAX) == reduce_op(None, MAX) == MAX
    assert [root_of(None, None, 4), root_of(3, None, 4), root_of(None, 1, 4), root_of(options, None, 4)] == [0, 3, 1, 2]
    with pytest.raises(InvalidCall, match="root 4 is not in the group of 4"):
        root_of(None, 4, 4)
    assert limit_of(options, None, None) is None
    assert limit_of(options, None, 5.0) == 5.0
    options.timeout = LONG
    assert limit_of(options, None, 5.0) == limit_of(None, LONG, 5.0) == limit_of(LONG, None, 5.0) == 9.0


def test_the_same_memory_counts_once() -> None:
    tensor, sparse = torch.zeros(4), torch.zeros(4).to_sparse()
    kept = distinct(
        [tensor, tensor.view(-1), tensor[1:], tensor.view(2, 2), sparse, sparse, torch.zeros(0), torch.zeros(0)]
    )
    assert [each.shape for each in kept] == [(4,), (3,), (2, 2), (4,), (0,), (0,)]
