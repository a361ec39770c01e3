"""The group's own methods: torch's C++ and Python call the same operation by old names and by new ones."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, _resolve_process_group
from torch.distributed.distributed_c10d import GroupName

from tests.comm.checks import Cast, given, on_every_layout, perform, same

COUNT = 11


def value(rank: int) -> torch.Tensor:
    return given(rank, COUNT, torch.float32)


def total(*ranks: int) -> torch.Tensor:
    return reduce(operator.add, (value(rank) for rank in ranks))


def sum_of(opts: type[Any], **settings: Any) -> Any:
    options = opts()
    options.reduceOp = dist.ReduceOp.SUM
    for name, setting in settings.items():
        setattr(options, name, setting)
    return options


def identity(cast: Cast) -> None:
    group = cast.group
    assert (group.size(), group.getSize()) == (cast.size, cast.size)
    assert (group.rank(), group.getRank()) == (cast.rank, cast.rank)
    assert dist.get_backend() == group.getBackendName() == group.name() == "understudy"
    assert group.group_name == group.getGroupName()
    assert _resolve_process_group(GroupName(group.group_name)) is group
    assert dist.get_process_group_ranks(group) == list(range(cast.size))
    named = dist.new_group(group_desc="a name for it")
    assert isinstance(named, dist.ProcessGroup)
    assert named.group_desc == "a name for it"
    assert named.group_name != group.group_name


def all_reduce(cast: Cast) -> None:
    everyone = total(*range(cast.size))
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda t: cast.group.allreduce([t]),
        lambda t: cast.group.allreduce([t], sum_of(dist.AllreduceOptions)),
        lambda t: cast.group.allreduce([t], dist.ReduceOp.SUM),
        lambda t: cast.group.allreduce(t),
        lambda t: cast.group.allreduce(t, dist.ReduceOp.SUM, timedelta(seconds=9)),
        lambda t: cast.group.allreduce_coalesced([t]),
        lambda t: cast.group.allreduce_coalesced([t], sum_of(dist.AllreduceCoalescedOptions)),
    ]
    for call in calls:
        tensor = value(cast.rank).clone()
        call(tensor).wait()
        same(tensor, everyone)


def rooted(cast: Cast) -> None:
    tensor = value(cast.rank).clone()
    cast.group.broadcast([tensor]).wait()
    same(tensor, value(0))
    options = dist.BroadcastOptions()
    options.rootRank = 1
    tensor = value(cast.rank).clone()
    cast.group.broadcast([tensor], options).wait()
    same(tensor, value(1))
    tensor = value(cast.rank).clone()
    cast.group.reduce([tensor], sum_of(dist.ReduceOptions, rootRank=1)).wait()
    same(tensor, total(*range(cast.size)) if cast.rank == 1 else value(cast.rank))
    root = cast.rank == 0
    outs = [torch.zeros(COUNT) for _ in range(cast.size)]
    cast.group.gather([outs] if root else [], [value(cast.rank)], dist.GatherOptions()).wait()
    for rank, out in enumerate(outs):
        same(out, value(rank) if root else torch.zeros(COUNT))
    out = torch.zeros(COUNT)
    blocks = [[value(rank) for rank in range(cast.size)]] if root else []
    cast.group.scatter([out], blocks, dist.ScatterOptions()).wait()
    same(out, value(cast.rank))
    cast.group.barrier().wait()
    cast.group.barrier(dist.BarrierOptions()).wait()


def all_gather(cast: Cast) -> None:
    everyone = torch.cat([value(rank) for rank in range(cast.size)])
    for call in (
        cast.group.all_gather_single,
        cast.group._allgather_base,
        lambda out, given: cast.group.all_gather_single_coalesced([out], [given]),
        lambda out, given: cast.group.allgather_into_tensor_coalesced([out], [given], AllgatherOptions()),
        lambda out, given: cast.group.allgather([list(out.chunk(cast.size))], [given]),
        lambda out, given: cast.group.allgather(list(out.chunk(cast.size)), given),
    ):
        out = torch.zeros(cast.size * COUNT)
        call(out, value(cast.rank)).wait()
        same(out, everyone)


def all_gather_coalesced(cast: Cast) -> None:
    """Tensors of several dtypes and sizes at once; of one dtype where torch insists."""
    shapes = [(5, torch.float32), (1003, torch.bfloat16), (0, torch.int64), (3, torch.float8_e4m3fn)]
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        outs = [torch.zeros(cast.size * count).to(dtype) for count, dtype in shapes]
        getattr(cast.group, name)(outs, [given(cast.rank, count, dtype) for count, dtype in shapes]).wait()
        for out, (count, dtype) in zip(outs, shapes, strict=True):
            same(out, torch.cat([given(rank, count, dtype) for rank in range(cast.size)]), name)
    for tensors in (1, cast.size, 5):
        lists = [[torch.zeros(count) for count in range(tensors)] for _ in range(cast.size)]
        dist.all_gather_coalesced(lists, [given(cast.rank, count, torch.float32) for count in range(tensors)])
        for rank, outs in enumerate(lists):
            for count, out in enumerate(outs):
                same(out, given(rank, count, torch.float32), ("all_gather_coalesced", tensors, rank))


def reduce_scatter(cast: Cast) -> None:
    blocks = torch.cat([value(cast.rank + block) for block in range(cast.size)])
    expected = total(*(rank + cast.rank for rank in range(cast.size)))
    for call in (
        cast.group.reduce_scatter_single,
        cast.group._reduce_scatter_base,
        lambda out, given: cast.group.reduce_scatter_single(out, given, sum_of(dist.ReduceScatterOptions)),
        lambda out, given: cast.group.reduce_scatter_single_coalesced([out], [given]),
        lambda out, given: cast.group.reduce_scatter_tensor_coalesced(
            [out], [given], sum_of(dist.ReduceScatterOptions)
        ),
        lambda out, given: cast.group.reduce_scatter([out], [list(given.chunk(cast.size))]),
        lambda out, given: cast.group.reduce_scatter(out, list(given.chunk(cast.size))),
    ):
        out = torch.zeros(COUNT)
        call(out, blocks).wait()
        same(out, expected)


def reduce_scatter_coalesced(cast: Cast) -> None:
    shapes = [(5, torch.float32), (1003, torch.bfloat16), (0, torch.int64), (70_001, torch.int32)]
    for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        outs = [torch.zeros(count).to(dtype) for count, dtype in shapes]
        inputs = [torch.full((cast.size * count,), cast.rank + 1).to(dtype) for count, dtype in shapes]
        getattr(cast.group, name)(outs, inputs).wait()
        for out in outs:
            same(out, torch.full_like(out, cast.size * (cast.size + 1) // 2), name)


def all_to_all(cast: Cast) -> None:
    sent = torch.cat([value(cast.rank + to) for to in range(cast.size)])
    expected = torch.cat([value(source + cast.rank) for source in range(cast.size)])
    calls: list[Callable[..., Any]] = [
        cast.group.all_to_all_single,
        cast.group.alltoall_base,
        lambda out, given: cast.group.alltoall_base(out, given, [], [], dist.AllToAllOptions()),
        lambda out, given: cast.group.all_to_all_single(out, given, [COUNT] * cast.size, [COUNT] * cast.size),
        lambda out, given: cast.group.alltoall(list(out.chunk(cast.size)), list(given.chunk(cast.size))),
    ]
    for call in calls:
        out = torch.zeros(cast.size * COUNT)
        call(out, sent).wait()
        same(out, expected)


def messages(cast: Cast) -> None:
    sending = cast.group.send([value(cast.rank)], cast.next, 4)
    got = torch.zeros(COUNT)
    cast.group.recv([got], cast.last, 4).wait()
    sending.wait()
    same(got, value(cast.last))


CHECKS = [
    identity,
    all_reduce,
    rooted,
    all_gather,
    all_gather_coalesced,
    reduce_scatter,
    reduce_scatter_coalesced,
    all_to_all,
    messages,
]


@on_every_layout
def test_old_names_and_new(machines: list[int], transport: str) -> None:
    perform(CHECKS, machines, transport)
