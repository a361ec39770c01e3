"""The collectives that copy: broadcast, all_gather, gather, scatter, all_to_all, barrier. And the handles of all."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.comm.checks import Member, given, on_every_layout, perform, same

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
CASES = [(dtype, count) for dtype in DTYPES for count in (0, 1, 1003)] + [
    (dtype, count) for dtype in (torch.float32, torch.uint8) for count in (70_001, 300_003, 1_200_007)
]
"""Every dtype; and sizes beyond what is sent whole, beyond an arena slot, beyond several windows."""
SOME = [(torch.float32, 0), (torch.float8_e4m3fn, 5), (torch.complex64, 1003), (torch.float32, 300_003)]


def values_of_all(member: Member, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [given(rank, count, dtype) for rank in range(member.size)]


def blanks(member: Member, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.zeros(count).to(dtype) for _ in range(member.size)]


def broadcast_from_every_root(member: Member) -> None:
    for root in range(member.size):
        for dtype, count in CASES if root == 0 else SOME:
            value = given(member.rank, count, dtype).clone()
            dist.broadcast(value, root)
            same(value, given(root, count, dtype), (dtype, count, root))


def all_gather(member: Member) -> None:
    for dtype, count in CASES:
        values, outs = values_of_all(member, count, dtype), blanks(member, count, dtype)
        dist.all_gather(outs, values[member.rank])
        for rank, out in enumerate(outs):
            same(out, values[rank], (dtype, count, rank))
        single = torch.zeros(member.size * count).to(dtype)
        dist.all_gather_single(single, values[member.rank])
        same(single, torch.cat(values), ("single", dtype, count))


def all_gather_of_shapes(member: Member) -> None:
    """Scalars; and a matrix, concatenated by rows or stacked."""
    scalars = [torch.zeros(()) for _ in range(member.size)]
    dist.all_gather(scalars, torch.tensor(float(member.rank)))
    same(torch.stack(scalars), torch.arange(float(member.size)))
    matrix = torch.arange(6.0).view(2, 3) + member.rank
    rows = torch.zeros(2 * member.size, 3)
    dist.all_gather_single(rows, matrix)
    same(rows, torch.cat([torch.arange(6.0).view(2, 3) + rank for rank in range(member.size)]))
    stacked = torch.zeros(member.size, 2, 3)
    dist.all_gather_single(stacked, matrix)
    same(stacked, rows.view(member.size, 2, 3))


def all_gather_into_its_own_input(member: Member) -> None:
    whole = torch.zeros(member.size * 7)
    mine = whole[member.rank * 7 : (member.rank + 1) * 7]
    mine.fill_(member.rank + 1)
    dist.all_gather_single(whole, mine)
    same(whole, torch.arange(1.0, member.size + 1).repeat_interleave(7))


def gather_to_every_root(member: Member) -> None:
    for root in range(member.size):
        for dtype, count in CASES if root == 1 else SOME:
            outs = blanks(member, count, dtype) if member.rank == root else None
            dist.gather(given(member.rank, count, dtype), outs, root)
            for rank, out in enumerate(outs or ()):
                same(out, given(rank, count, dtype), (dtype, count, root, rank))


def scatter_from_every_root(member: Member) -> None:
    for root in range(member.size):
        for dtype, count in CASES if root == 1 else SOME:
            out = torch.zeros(count).to(dtype)
            dist.scatter(out, values_of_all(member, count, dtype) if member.rank == root else None, root)
            same(out, given(member.rank, count, dtype), (dtype, count, root))


def all_to_all_even(member: Member) -> None:
    """Rank r sends given(r + d) to rank d."""
    for dtype, count in CASES:
        sent = [given(member.rank + to, count, dtype) for to in range(member.size)]
        expected = [given(source + member.rank, count, dtype) for source in range(member.size)]
        outs = blanks(member, count, dtype)
        dist.all_to_all(outs, sent)
        for rank, out in enumerate(outs):
            same(out, expected[rank], (dtype, count, rank))
        single = torch.zeros(member.size * count).to(dtype)
        dist.all_to_all_single(single, torch.cat(sent))
        same(single, torch.cat(expected), ("single", dtype, count))


def all_to_all_uneven(member: Member) -> None:
    """Rank r sends 3r + d elements, or rows, to rank d; nothing where that is 0."""

    def sizes(width: int) -> tuple[list[int], list[int]]:
        out = [width * (3 * member.rank + to) for to in range(member.size)]
        return out, [width * (3 * source + member.rank) for source in range(member.size)]

    for width in (1, 50_001):
        outgoing, incoming = sizes(width)
        sent = [given(member.rank + to, count, torch.float32) for to, count in enumerate(outgoing)]
        outs = [torch.zeros(count) for count in incoming]
        expected = [given(source + member.rank, count, torch.float32) for source, count in enumerate(incoming)]
        dist.all_to_all(outs, sent)
        for rank, out in enumerate(outs):
            same(out, expected[rank], (width, rank))
        single = torch.zeros(sum(incoming))
        dist.all_to_all_single(single, torch.cat(sent), incoming, outgoing)
        same(single, torch.cat(expected), ("single", width))
    outgoing, incoming = sizes(1)
    rows = torch.cat([torch.full((count, 5), 10.0 * member.rank + to) for to, count in enumerate(outgoing)])
    got = torch.zeros(sum(incoming), 5)
    dist.all_to_all_single(got, rows, incoming, outgoing)
    same(got, torch.cat([torch.full((count, 5), 10.0 * s + member.rank) for s, count in enumerate(incoming)]), "rows")


def all_to_all_from_one(member: Member) -> None:
    """Only rank 0 sends anything, to all other ranks."""
    outgoing = [0 if member.rank or not to else 4 for to in range(member.size)]
    incoming = [4 if member.rank and not source else 0 for source in range(member.size)]
    got = torch.zeros(sum(incoming))
    dist.all_to_all_single(got, torch.ones(sum(outgoing)), incoming, outgoing)
    same(got, torch.ones(sum(incoming)))


def sliced_and_transposed(member: Member) -> None:
    """Only what the view shows takes part, and only that is written."""
    numbers = torch.arange(28.0).view(7, 4)
    for root in range(member.size):
        base = torch.full((7, 8), -1.0)
        view = base[:, ::2].t()
        if member.rank == root:
            view.copy_(numbers.t())
        dist.broadcast(view, root)
        expected = torch.full((7, 8), -1.0)
        expected[:, ::2] = numbers
        same(base, expected, "broadcast")

    bases = [torch.full((4, 14), -1.0) for _ in range(member.size)]
    dist.all_gather([base[:, ::2] for base in bases], (numbers + member.rank).t())
    for rank, base in enumerate(bases):
        expected = torch.full((4, 14), -1.0)
        expected[:, ::2] = (numbers + rank).t()
        same(base, expected, "all_gather")

    wide = torch.full((4, 7 * member.size), -1.0)
    dist.all_gather_single(wide.t(), numbers + member.rank)
    same(wide, torch.cat([(numbers + rank).t() for rank in range(member.size)], 1), "all_gather_single")

    outs = [torch.zeros(4, 7).t() for _ in range(member.size)] if member.rank == 0 else None
    dist.gather((numbers + member.rank).t().contiguous().t(), outs, 0)
    for rank, out in enumerate(outs or ()):
        same(out, numbers + rank, "gather")

    turned = [(numbers + rank).t().contiguous().t() for rank in range(member.size)]
    out = torch.zeros(4, 7).t()
    dist.scatter(out, turned if member.rank == 0 else None, 0)
    same(out, numbers + member.rank, "scatter")

    outs = [torch.zeros(4, 7).t() for _ in range(member.size)]
    dist.all_to_all(outs, [(numbers + 10 * member.rank + to).t().contiguous().t() for to in range(member.size)])
    for source, out in enumerate(outs):
        same(out, numbers + 10 * source + member.rank, "all_to_all")

    sent = torch.arange(member.size * 6.0).view(3, 2 * member.size).t() + member.rank
    got = torch.zeros(3, 2 * member.size).t()
    dist.all_to_all_single(got, sent)
    mine = slice(2 * member.rank, 2 * member.rank + 2)
    plain = torch.arange(member.size * 6.0).view(3, 2 * member.size).t()
    same(got, torch.cat([plain[mine] + source for source in range(member.size)]), "all_to_all_single")


def one_element_of_a_slice(member: Member) -> None:
    """It counts as contiguous whatever its stride."""
    value = torch.full((4,), float(member.rank))[::2][:1]
    dist.broadcast(value, 1)
    same(value, torch.ones(1))
    outs = [torch.zeros(4)[::2][:1] for _ in range(member.size)]
    dist.all_gather(outs, torch.full((4,), float(member.rank))[::3][:1])
    same(torch.cat(outs), torch.arange(float(member.size)))
    dist.scatter(value, [out + 1 for out in outs] if member.rank == 0 else None, 0)
    same(value, torch.full((1,), member.rank + 1.0))
    dist.all_reduce(value)
    same(value, torch.full((1,), member.size * (member.size + 1) / 2))


def conjugated_and_negated(member: Member) -> None:
    """Lazy views: their memory differs from their values. torch's own functions refuse conjugated ones."""
    value = torch.full((3,), complex(1, member.rank + 1)).conj()
    options = dist.BroadcastOptions()
    options.rootRank = 1
    member.group.broadcast([value], options).wait()
    same(value.resolve_conj(), torch.full((3,), complex(1, -2)), "broadcast")
    outs = [torch.zeros(3) for _ in range(member.size)]
    dist.all_gather(outs, torch._neg_view(torch.full((3,), member.rank + 1.0)))
    for rank, out in enumerate(outs):
        same(out, torch.full((3,), -rank - 1.0), "all_gather")


def barriers(member: Member) -> None:
    for _ in range(20):
        dist.barrier()
    handle = dist.barrier(async_op=True)
    assert handle is not None
    handle.wait()


def asynchronous(member: Member) -> None:
    """Handles in flight at once, waited for in any order, with a synchronous operation behind them."""
    values = [torch.full((count,), float(member.rank + 1)) for count in (1, 1003, 300_003, 0, 5, 70_001)]
    handles = [dist.all_reduce(value, async_op=True) for value in values]
    gathered = torch.zeros(member.size)
    handles.append(dist.all_gather_single(gathered, torch.full((1,), float(member.rank)), async_op=True))
    root = torch.full((9,), float(member.rank))
    dist.broadcast(root, 1)
    same(root, torch.ones(9))
    for handle in reversed(handles):
        assert handle is not None
        assert handle.wait()
        assert handle.is_completed()
        assert handle.is_success()
    for value in values:
        same(value, torch.full_like(value, member.size * (member.size + 1) / 2))
    same(gathered, torch.arange(float(member.size)))


def futures(member: Member) -> None:
    """A handle's future carries the result, and whatever is chained to it runs."""
    value = torch.full((1003,), 2.0)
    handle = dist.all_reduce(value, async_op=True)
    assert handle is not None
    halved = handle.get_future().then(lambda done: done.value()[0] / 2)
    same(halved.wait(), torch.full((1003,), float(member.size)))
    assert handle.result()[0].data_ptr() == value.data_ptr()
    late = handle.get_future().then(lambda done: len(done.value()))
    assert late.wait() == 1


def futures_in_futures(member: Member) -> None:
    """A callback may start an operation and wait for it."""
    values = [torch.ones(5) for _ in range(10)]

    def again(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        handle = dist.all_reduce(done.value()[0], async_op=True)
        assert handle is not None
        result: torch.Tensor = handle.get_future().wait()[0]
        dist.all_reduce(result)
        return result

    for value in values:
        handle = dist.all_reduce(value, async_op=True)
        assert handle is not None
        same(handle.get_future().then(again).wait(), torch.full((5,), float(member.size**3)))


def subgroups(member: Member) -> None:
    """Groups within groups: pairs, one role alone, all roles again, and roles that take no part."""
    first = dist.new_group([0, 1])
    alone = [dist.new_group([rank]) for rank in range(member.size)]
    again = dist.new_group()
    ends = dist.new_group([0, member.size - 1])
    value = torch.full((5,), member.rank + 1.0)
    dist.all_reduce(value, group=alone[member.rank])
    same(value, torch.full((5,), member.rank + 1.0))
    dist.all_reduce(value, group=again)
    same(value, torch.full((5,), member.size * (member.size + 1) / 2))
    if member.rank in (0, 1):
        value = torch.full((5,), member.rank + 1.0)
        dist.all_reduce(value, group=first)
        same(value, torch.full((5,), 3.0))
        dist.broadcast(value.fill_(member.rank), group_src=1, group=first)
        same(value, torch.ones(5))
    if member.rank in (0, member.size - 1):
        value = torch.full((5,), float(member.rank))
        dist.broadcast(value, member.size - 1, group=ends)
        same(value, torch.full((5,), float(member.size - 1)))
        assert dist.get_group_rank(ends, member.size - 1) == 1
    for group in (first, ends, again, alone[member.rank]):
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def coalescing_manager(member: Member) -> None:
    values = [torch.full((count,), float(member.rank)) for count in (3, 1003)]
    with _coalescing_manager():
        for value in values:
            dist.all_reduce(value)
    for value in values:
        same(value, torch.full_like(value, sum(range(member.size))))
    outs = [torch.zeros(member.size * 3), torch.zeros(member.size)]
    with _coalescing_manager(async_ops=True) as manager:
        dist.all_gather_single(outs[0], torch.full((3,), float(member.rank)))
        dist.all_gather_single(outs[1], torch.full((1,), float(member.rank)))
    manager.wait()
    same(outs[0], torch.arange(float(member.size)).repeat_interleave(3))
    same(outs[1], torch.arange(float(member.size)))


def what_makes_no_sense_is_refused(member: Member) -> None:
    with pytest.raises(ValueError, match="are due"):
        member.group.all_gather_single(torch.zeros(3 * member.size + 1), torch.zeros(3))
    with pytest.raises(ValueError, match="agree"):
        member.group.allgather([[torch.zeros(3)] * member.size], [torch.zeros(3, dtype=torch.int32)])
    with pytest.raises(ValueError, match="one per role"):
        member.group.allgather([[torch.zeros(3)]], [torch.zeros(3)])
    with pytest.raises(ValueError, match="do not divide evenly"):
        member.group.all_to_all_single(torch.zeros(member.size + 1), torch.zeros(member.size + 1))
    with pytest.raises(ValueError, match="do not cut"):
        member.group.all_to_all_single(torch.zeros(2), torch.zeros(2), [3] * member.size, [3] * member.size)
    with pytest.raises(ValueError, match="sparse"):
        member.group.broadcast([torch.ones(3).to_sparse()])
    dist.barrier()


CHECKS = [
    broadcast_from_every_root,
    all_gather,
    all_gather_of_shapes,
    all_gather_into_its_own_input,
    gather_to_every_root,
    scatter_from_every_root,
    all_to_all_even,
    all_to_all_uneven,
    all_to_all_from_one,
    sliced_and_transposed,
    one_element_of_a_slice,
    conjugated_and_negated,
    barriers,
    asynchronous,
    futures,
    futures_in_futures,
    subgroups,
    coalescing_manager,
    what_makes_no_sense_is_refused,
]


@on_every_layout
def test_collectives(machines: list[int], transport: str) -> None:
    perform(CHECKS, machines, transport)
