"""Collectives of Python objects, and the helpers of torch.distributed that are built on the group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.comm.checks import Member, on_every_layout, perform, same
from understudy.comm.group import RoleGroup


def thing(rank: int) -> dict[str, Any]:
    """Pickles of different lengths on different roles."""
    return {"rank": rank, "text": "x" * 1000 * rank, "nested": [(rank, None), {rank}]}


def all_gather_object(member: Member) -> None:
    got: list[Any] = [None] * member.size
    dist.all_gather_object(got, thing(member.rank))
    assert got == [thing(rank) for rank in range(member.size)]


def gather_object(member: Member) -> None:
    for root in range(member.size):
        got: list[Any] | None = [None] * member.size if member.rank == root else None
        dist.gather_object(thing(member.rank), got, root)
        assert got is None or got == [thing(rank) for rank in range(member.size)]


def broadcast_object_list(member: Member) -> None:
    for root in range(member.size):
        things = [thing(root), None, 7] if member.rank == root else [None, None, None]
        dist.broadcast_object_list(things, root)
        assert things == [thing(root), None, 7]


def scatter_object_list(member: Member) -> None:
    for root in range(member.size):
        got: list[Any] = [None]
        dist.scatter_object_list(
            got, [thing(rank) for rank in range(member.size)] if member.rank == root else None, root
        )
        assert got == [thing(member.rank)]


def send_object_list(member: Member) -> None:
    if member.rank == 0:
        dist.send_object_list([thing(1), "second"], 1)
    elif member.rank == 1:
        got: list[Any] = [None, None]
        assert dist.recv_object_list(got, 0) == 0
        assert got == [thing(1), "second"]


def objects_in_a_subgroup(member: Member) -> None:
    group = dist.new_group([0, member.size - 1])
    if member.rank in (0, member.size - 1):
        got: list[Any] = [None, None]
        dist.all_gather_object(got, member.rank, group=group)
        assert got == [0, member.size - 1]


def new_subgroups(member: Member) -> None:
    mine, groups = dist.new_subgroups_by_enumeration([[0], list(range(1, member.size))])
    assert len(groups) == 2
    value = torch.ones(1)
    dist.all_reduce(value, group=mine)
    same(value, torch.full((1,), 1.0 if member.rank == 0 else member.size - 1.0))


def local_synchronization(member: Member) -> None:
    """A group that only its members know of."""
    if member.rank < 2:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        value = torch.ones(1)
        dist.all_reduce(value, group=group)
        same(value, torch.full((1,), 2.0))


def what_torch_keeps_to_itself(member: Member) -> None:
    """Functions that a version of torch offers for its own backends only say so, and nothing is sent. Others ask."""
    halves = [[0, 1], [2, 3][: member.size - 2]]
    for since, call in (
        ("2.14", lambda: dist.monitored_barrier(timeout=timedelta(seconds=20))),
        ("2.15", lambda: _sum_in(dist.split_group(split_ranks=halves), member)),
    ):
        if torch.__version__ >= since:
            call()
        else:
            with pytest.raises((RuntimeError, ValueError, NotImplementedError)):
                call()
    dist.barrier()


def _sum_in(half: Any, member: Member) -> None:
    assert isinstance(half, RoleGroup)
    value = torch.tensor([member.rank])
    dist.all_reduce(value, group=half)
    same(value, torch.tensor([1 if member.rank < 2 else 5 if member.size > 3 else 2]))


CHECKS = [
    all_gather_object,
    gather_object,
    broadcast_object_list,
    scatter_object_list,
    send_object_list,
    objects_in_a_subgroup,
    new_subgroups,
    local_synchronization,
    what_torch_keeps_to_itself,
]


@on_every_layout
def test_objects(machines: list[int], transport: str) -> None:
    perform(CHECKS, machines, transport)
