"""The collectives that copy: broadcast, all_gather, gather, scatter, all_to_all, barrier. And the handles of all."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.comm.checks import Cast, given, on_every_layout, perform, same

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


def everybody(cast: Cast, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [given(rank, count, dtype) for rank in range(cast.size)]


def blanks(cast: Cast, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.zeros(count).to(dtype) for _ in range(cast.size)]


def broadcast_from_every_root(cast: Cast) -> None:
    for root in range(cast.size):
        for dtype, count in CASES if root == 0 else SOME:
            value = given(cast.rank, count, dtype).clone()
            dist.broadcast(value, root)
            same(value, given(root, count, dtype), (dtype, count, root))


def all_gather(cast: Cast) -> None:
    for dtype, count in CASES:
        values, outs = everybody(cast, count, dtype), blanks(cast, count, dtype)
        dist.all_gather(outs, values[cast.rank])
        for rank, out in enumerate(outs):
            same(out, values[rank], (dtype, count, rank))
        single = torch.zeros(cast.size * count).to(dtype)
        dist.all_gather_single(single, values[cast.rank])
        same(single, torch.cat(values), ("single", dtype, count))


def all_gather_of_shapes(cast: Cast) -> None:
    """Scalars; and a matrix, concatenated by rows or stacked."""
    scalars = [torch.zeros(()) for _ in range(cast.size)]
    dist.all_gather(scalars, torch.tensor(float(cast.rank)))
    same(torch.stack(scalars), torch.arange(float(cast.size)))
    matrix = torch.arange(6.0).view(2, 3) + cast.rank
    rows = torch.zeros(2 * cast.size, 3)
    dist.all_gather_single(rows, matrix)
    same(rows, torch.cat([torch.arange(6.0).view(2, 3) + rank for rank in range(cast.size)]))
    stacked = torch.zeros(cast.size, 2, 3)
    dist.all_gather_single(stacked, matrix)
    same(stacked, rows.view(cast.size, 2, 3))


def all_gather_into_its_own_input(cast: Cast) -> None:
    whole = torch.zeros(cast.size * 7)
    mine = whole[cast.rank * 7 : (cast.rank + 1) * 7]
    mine.fill_(cast.rank + 1)
    dist.all_gather_single(whole, mine)
    same(whole, torch.arange(1.0, cast.size + 1).repeat_interleave(7))


def gather_to_every_root(cast: Cast) -> None:
    for root in range(cast.size):
        for dtype, count in CASES if root == 1 else SOME:
            outs = blanks(cast, count, dtype) if cast.rank == root else None
            dist.gather(given(cast.rank, count, dtype), outs, root)
            for rank, out in enumerate(outs or ()):
                same(out, given(rank, count, dtype), (dtype, count, root, rank))


def scatter_from_every_root(cast: Cast) -> None:
    for root in range(cast.size):
        for dtype, count in CASES if root == 1 else SOME:
            out = torch.zeros(count).to(dtype)
            dist.scatter(out, everybody(cast, count, dtype) if cast.rank == root else None, root)
            same(out, given(cast.rank, count, dtype), (dtype, count, root))


def all_to_all_even(cast: Cast) -> None:
    """Rank r sends given(r + d) to rank d."""
    for dtype, count in CASES:
        sent = [given(cast.rank + to, count, dtype) for to in range(cast.size)]
        expected = [given(source + cast.rank, count, dtype) for source in range(cast.size)]
        outs = blanks(cast, count, dtype)
        dist.all_to_all(outs, sent)
        for rank, out in enumerate(outs):
            same(out, expected[rank], (dtype, count, rank))
        single = torch.zeros(cast.size * count).to(dtype)
        dist.all_to_all_single(single, torch.cat(sent))
        same(single, torch.cat(expected), ("single", dtype, count))


def all_to_all_uneven(cast: Cast) -> None:
    """Rank r sends 3r + d elements, or rows, to rank d; nothing where that is 0."""

    def sizes(width: int) -> tuple[list[int], list[int]]:
        out = [width * (3 * cast.rank + to) for to in range(cast.size)]
        return out, [width * (3 * source + cast.rank) for source in range(cast.size)]

    for width in (1, 50_001):
        outgoing, incoming = sizes(width)
        sent = [given(cast.rank + to, count, torch.float32) for to, count in enumerate(outgoing)]
        outs = [torch.zeros(count) for count in incoming]
        expected = [given(source + cast.rank, count, torch.float32) for source, count in enumerate(incoming)]
        dist.all_to_all(outs, sent)
        for rank, out in enumerate(outs):
            same(out, expected[rank], (width, rank))
        single = torch.zeros(sum(incoming))
        dist.all_to_all_single(single, torch.cat(sent), incoming, outgoing)
        same(single, torch.cat(expected), ("single", width))
    outgoing, incoming = sizes(1)
    rows = torch.cat([torch.full((count, 5), 10.0 * cast.rank + to) for to, count in enumerate(outgoing)])
    got = torch.zeros(sum(incoming), 5)
    dist.all_to_all_single(got, rows, incoming, outgoing)
    same(got, torch.cat([torch.full((count, 5), 10.0 * s + cast.rank) for s, count in enumerate(incoming)]), "rows")


def all_to_all_from_one(cast: Cast) -> None:
    """Only rank 0 sends anything, to everybody but itself."""
    outgoing = [0 if cast.rank or not to else 4 for to in range(cast.size)]
    incoming = [4 if cast.rank and not source else 0 for source in range(cast.size)]
    got = torch.zeros(sum(incoming))
    dist.all_to_all_single(got, torch.ones(sum(outgoing)), incoming, outgoing)
    same(got, torch.ones(sum(incoming)))


def sliced_and_transposed(cast: Cast) -> None:
    """Only what the view shows takes part, and only that is written."""
    numbers = torch.arange(28.0).view(7, 4)
    for root in range(cast.size):
        base = torch.full((7, 8), -1.0)
        view = base[:, ::2].t()
        if cast.rank == root:
            view.copy_(numbers.t())
        dist.broadcast(view, root)
        expected = torch.full((7, 8), -1.0)
        expected[:, ::2] = numbers
        same(base, expected, "broadcast")

    bases = [torch.full((4, 14), -1.0) for _ in range(cast.size)]
    dist.all_gather([base[:, ::2] for base in bases], (numbers + cast.rank).t())
    for rank, base in enumerate(bases):
        expected = torch.full((4, 14), -1.0)
        expected[:, ::2] = (numbers + rank).t()
        same(base, expected, "all_gather")

    wide = torch.full((4, 7 * cast.size), -1.0)
    dist.all_gather_single(wide.t(), numbers + cast.rank)
    same(wide, torch.cat([(numbers + rank).t() for rank in range(cast.size)], 1), "all_gather_single")

    outs = [torch.zeros(4, 7).t() for _ in range(cast.size)] if cast.rank == 0 else None
    dist.gather((numbers + cast.rank).t().contiguous().t(), outs, 0)
    for rank, out in enumerate(outs or ()):
        same(out, numbers + rank, "gather")

    turned = [(numbers + rank).t().contiguous().t() for rank in range(cast.size)]
    out = torch.zeros(4, 7).t()
    dist.scatter(out, turned if cast.rank == 0 else None, 0)
    same(out, numbers + cast.rank, "scatter")

    outs = [torch.zeros(4, 7).t() for _ in range(cast.size)]
    dist.all_to_all(outs, [(numbers + 10 * cast.rank + to).t().contiguous().t() for to in range(cast.size)])
    for source, out in enumerate(outs):
        same(out, numbers + 10 * source + cast.rank, "all_to_all")

    sent = torch.arange(cast.size * 6.0).view(3, 2 * cast.size).t() + cast.rank
    got = torch.zeros(3, 2 * cast.size).t()
    dist.all_to_all_single(got, sent)
    mine = slice(2 * cast.rank, 2 * cast.rank + 2)
    plain = torch.arange(cast.size * 6.0).view(3, 2 * cast.size).t()
    same(got, torch.cat([plain[mine] + source for source in range(cast.size)]), "all_to_all_single")


def one_element_of_a_slice(cast: Cast) -> None:
    """It counts as contiguous whatever its stride."""
    value = torch.full((4,), float(cast.rank))[::2][:1]
    dist.broadcast(value, 1)
    same(value, torch.ones(1))
    outs = [torch.zeros(4)[::2][:1] for _ in range(cast.size)]
    dist.all_gather(outs, torch.full((4,), float(cast.rank))[::3][:1])
    same(torch.cat(outs), torch.arange(float(cast.size)))
    dist.scatter(value, [out + 1 for out in outs] if cast.rank == 0 else None, 0)
    same(value, torch.full((1,), cast.rank + 1.0))
    dist.all_reduce(value)
    same(value, torch.full((1,), cast.size * (cast.size + 1) / 2))


def conjugated_and_negated(cast: Cast) -> None:
    """Views whose memory holds something else than what they show. torch's own functions refuse the conjugated."""
    value = torch.full((3,), complex(1, cast.rank + 1)).conj()
    options = dist.BroadcastOptions()
    options.rootRank = 1
    cast.group.broadcast([value], options).wait()
    same(value.resolve_conj(), torch.full((3,), complex(1, -2)), "broadcast")
    outs = [torch.zeros(3) for _ in range(cast.size)]
    dist.all_gather(outs, torch._neg_view(torch.full((3,), cast.rank + 1.0)))
    for rank, out in enumerate(outs):
        same(out, torch.full((3,), -rank - 1.0), "all_gather")


def barriers(cast: Cast) -> None:
    for _ in range(20):
        dist.barrier()
    handle = dist.barrier(async_op=True)
    assert handle is not None
    handle.wait()


def asynchronous(cast: Cast) -> None:
    """Handles in flight at once, waited for in any order, with a synchronous operation behind them."""
    values = [torch.full((count,), float(cast.rank + 1)) for count in (1, 1003, 300_003, 0, 5, 70_001)]
    handles = [dist.all_reduce(value, async_op=True) for value in values]
    gathered = torch.zeros(cast.size)
    handles.append(dist.all_gather_single(gathered, torch.full((1,), float(cast.rank)), async_op=True))
    root = torch.full((9,), float(cast.rank))
    dist.broadcast(root, 1)
    same(root, torch.ones(9))
    for handle in reversed(handles):
        assert handle is not None
        assert handle.wait()
        assert handle.is_completed()
        assert handle.is_success()
    for value in values:
        same(value, torch.full_like(value, cast.size * (cast.size + 1) / 2))
    same(gathered, torch.arange(float(cast.size)))


def futures(cast: Cast) -> None:
    """A handle's future carries the result, and whatever is chained to it runs."""
    value = torch.full((1003,), 2.0)
    handle = dist.all_reduce(value, async_op=True)
    assert handle is not None
    halved = handle.get_future().then(lambda done: done.value()[0] / 2)
    same(halved.wait(), torch.full((1003,), float(cast.size)))
    assert handle.result()[0].data_ptr() == value.data_ptr()
    late = handle.get_future().then(lambda done: len(done.value()))
    assert late.wait() == 1


def futures_in_futures(cast: Cast) -> None:
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
        same(handle.get_future().then(again).wait(), torch.full((5,), float(cast.size**3)))


def subgroups(cast: Cast) -> None:
    """Groups within groups: pairs, one role alone, everybody again, and roles that take no part."""
    first = dist.new_group([0, 1])
    alone = [dist.new_group([rank]) for rank in range(cast.size)]
    again = dist.new_group()
    ends = dist.new_group([0, cast.size - 1])
    value = torch.full((5,), cast.rank + 1.0)
    dist.all_reduce(value, group=alone[cast.rank])
    same(value, torch.full((5,), cast.rank + 1.0))
    dist.all_reduce(value, group=again)
    same(value, torch.full((5,), cast.size * (cast.size + 1) / 2))
    if cast.rank in (0, 1):
        value = torch.full((5,), cast.rank + 1.0)
        dist.all_reduce(value, group=first)
        same(value, torch.full((5,), 3.0))
        dist.broadcast(value.fill_(cast.rank), group_src=1, group=first)
        same(value, torch.ones(5))
    if cast.rank in (0, cast.size - 1):
        value = torch.full((5,), float(cast.rank))
        dist.broadcast(value, cast.size - 1, group=ends)
        same(value, torch.full((5,), float(cast.size - 1)))
        assert dist.get_group_rank(ends, cast.size - 1) == 1
    for group in (first, ends, again, alone[cast.rank]):
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def coalescing_manager(cast: Cast) -> None:
    values = [torch.full((count,), float(cast.rank)) for count in (3, 1003)]
    with _coalescing_manager():
        for value in values:
            dist.all_reduce(value)
    for value in values:
        same(value, torch.full_like(value, sum(range(cast.size))))
    outs = [torch.zeros(cast.size * 3), torch.zeros(cast.size)]
    with _coalescing_manager(async_ops=True) as manager:
        dist.all_gather_single(outs[0], torch.full((3,), float(cast.rank)))
        dist.all_gather_single(outs[1], torch.full((1,), float(cast.rank)))
    manager.wait()
    same(outs[0], torch.arange(float(cast.size)).repeat_interleave(3))
    same(outs[1], torch.arange(float(cast.size)))


def what_makes_no_sense_is_refused(cast: Cast) -> None:
    with pytest.raises(ValueError, match="are due"):
        cast.group.all_gather_single(torch.zeros(3 * cast.size + 1), torch.zeros(3))
    with pytest.raises(ValueError, match="agree"):
        cast.group.allgather([[torch.zeros(3)] * cast.size], [torch.zeros(3, dtype=torch.int32)])
    with pytest.raises(ValueError, match="one per role"):
        cast.group.allgather([[torch.zeros(3)]], [torch.zeros(3)])
    with pytest.raises(ValueError, match="do not divide evenly"):
        cast.group.all_to_all_single(torch.zeros(cast.size + 1), torch.zeros(cast.size + 1))
    with pytest.raises(ValueError, match="do not cut"):
        cast.group.all_to_all_single(torch.zeros(2), torch.zeros(2), [3] * cast.size, [3] * cast.size)
    with pytest.raises(ValueError, match="sparse"):
        cast.group.broadcast([torch.ones(3).to_sparse()])
    with pytest.raises(RuntimeError, match="new_group"):
        cast.group.split_group([0])
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
