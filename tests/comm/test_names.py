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

from tests.comm.checks import Member, given, on_every_layout, perform, same

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


def identity(member: Member) -> None:
    group = member.group
    assert (group.size(), group.getSize()) == (member.size, member.size)
    assert (group.rank(), group.getRank()) == (member.rank, member.rank)
    assert dist.get_backend() == group.getBackendName() == group.name() == "understudy"
    assert group.group_name == group.getGroupName()
    assert _resolve_process_group(GroupName(group.group_name)) is group
    assert dist.get_process_group_ranks(group) == list(range(member.size))
    named = dist.new_group(group_desc="a name for it")
    assert isinstance(named, dist.ProcessGroup)
    assert named.group_desc == "a name for it"
    assert named.group_name != group.group_name


def all_reduce(member: Member) -> None:
    everyone = total(*range(member.size))
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda t: member.group.allreduce([t]),
        lambda t: member.group.allreduce([t], sum_of(dist.AllreduceOptions)),
        lambda t: member.group.allreduce([t], dist.ReduceOp.SUM),
        lambda t: member.group.allreduce(t),
        lambda t: member.group.allreduce(t, dist.ReduceOp.SUM, timedelta(seconds=9)),
        lambda t: member.group.allreduce_coalesced([t]),
        lambda t: member.group.allreduce_coalesced([t], sum_of(dist.AllreduceCoalescedOptions)),
    ]
    for call in calls:
        tensor = value(member.rank).clone()
        call(tensor).wait()
        same(tensor, everyone)


def rooted(member: Member) -> None:
    tensor = value(member.rank).clone()
    member.group.broadcast([tensor]).wait()
    same(tensor, value(0))
    options = dist.BroadcastOptions()
    options.rootRank = 1
    tensor = value(member.rank).clone()
    member.group.broadcast([tensor], options).wait()
    same(tensor, value(1))
    tensor = value(member.rank).clone()
    member.group.reduce([tensor], sum_of(dist.ReduceOptions, rootRank=1)).wait()
    same(tensor, total(*range(member.size)) if member.rank == 1 else value(member.rank))
    root = member.rank == 0
    outs = [torch.zeros(COUNT) for _ in range(member.size)]
    member.group.gather([outs] if root else [], [value(member.rank)], dist.GatherOptions()).wait()
    for rank, out in enumerate(outs):
        same(out, value(rank) if root else torch.zeros(COUNT))
    out = torch.zeros(COUNT)
    blocks = [[value(rank) for rank in range(member.size)]] if root else []
    member.group.scatter([out], blocks, dist.ScatterOptions()).wait()
    same(out, value(member.rank))
    member.group.barrier().wait()
    member.group.barrier(dist.BarrierOptions()).wait()


def all_gather(member: Member) -> None:
    everyone = torch.cat([value(rank) for rank in range(member.size)])
    for call in (
        member.group.all_gather_single,
        member.group._allgather_base,
        lambda out, given: member.group.all_gather_single_coalesced([out], [given]),
        lambda out, given: member.group.allgather_into_tensor_coalesced([out], [given], AllgatherOptions()),
        lambda out, given: member.group.allgather([list(out.chunk(member.size))], [given]),
        lambda out, given: member.group.allgather(list(out.chunk(member.size)), given),
    ):
        out = torch.zeros(member.size * COUNT)
        call(out, value(member.rank)).wait()
        same(out, everyone)


def all_gather_coalesced(member: Member) -> None:
    """Tensors of several dtypes and sizes at once; of one dtype where torch insists."""
    shapes = [(5, torch.float32), (1003, torch.bfloat16), (0, torch.int64), (3, torch.float8_e4m3fn)]
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        outs = [torch.zeros(member.size * count).to(dtype) for count, dtype in shapes]
        getattr(member.group, name)(outs, [given(member.rank, count, dtype) for count, dtype in shapes]).wait()
        for out, (count, dtype) in zip(outs, shapes, strict=True):
            same(out, torch.cat([given(rank, count, dtype) for rank in range(member.size)]), name)
    for tensors in (1, member.size, 5):
        lists = [[torch.zeros(count) for count in range(tensors)] for _ in range(member.size)]
        dist.all_gather_coalesced(lists, [given(member.rank, count, torch.float32) for count in range(tensors)])
        for rank, outs in enumerate(lists):
            for count, out in enumerate(outs):
                same(out, given(rank, count, torch.float32), ("all_gather_coalesced", tensors, rank))


def reduce_scatter(member: Member) -> None:
    blocks = torch.cat([value(member.rank + block) for block in range(member.size)])
    expected = total(*(rank + member.rank for rank in range(member.size)))
    for call in (
        member.group.reduce_scatter_single,
        member.group._reduce_scatter_base,
        lambda out, given: member.group.reduce_scatter_single(out, given, sum_of(dist.ReduceScatterOptions)),
        lambda out, given: member.group.reduce_scatter_single_coalesced([out], [given]),
        lambda out, given: member.group.reduce_scatter_tensor_coalesced(
            [out], [given], sum_of(dist.ReduceScatterOptions)
        ),
        lambda out, given: member.group.reduce_scatter([out], [list(given.chunk(member.size))]),
        lambda out, given: member.group.reduce_scatter(out, list(given.chunk(member.size))),
    ):
        out = torch.zeros(COUNT)
        call(out, blocks).wait()
        same(out, expected)


def reduce_scatter_coalesced(member: Member) -> None:
    shapes = [(5, torch.float32), (1003, torch.bfloat16), (0, torch.int64), (70_001, torch.int32)]
    for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        outs = [torch.zeros(count).to(dtype) for count, dtype in shapes]
        inputs = [torch.full((member.size * count,), member.rank + 1).to(dtype) for count, dtype in shapes]
        getattr(member.group, name)(outs, inputs).wait()
        for out in outs:
            same(out, torch.full_like(out, member.size * (member.size + 1) // 2), name)


def all_to_all(member: Member) -> None:
    sent = torch.cat([value(member.rank + to) for to in range(member.size)])
    expected = torch.cat([value(source + member.rank) for source in range(member.size)])
    calls: list[Callable[..., Any]] = [
        member.group.all_to_all_single,
        member.group.alltoall_base,
        lambda out, given: member.group.alltoall_base(out, given, [], [], dist.AllToAllOptions()),
        lambda out, given: member.group.all_to_all_single(out, given, [COUNT] * member.size, [COUNT] * member.size),
        lambda out, given: member.group.alltoall(list(out.chunk(member.size)), list(given.chunk(member.size))),
    ]
    for call in calls:
        out = torch.zeros(member.size * COUNT)
        call(out, sent).wait()
        same(out, expected)


def messages(member: Member) -> None:
    sending = member.group.send([value(member.rank)], member.next, 4)
    got = torch.zeros(COUNT)
    member.group.recv([got], member.last, 4).wait()
    sending.wait()
    same(got, value(member.last))


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
