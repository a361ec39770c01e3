"""Several groups at once, each driven by a thread of its own: no operation waits for another group."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tests.comm.checks import Member, on_every_layout, perform, same

OPERATIONS = 100


def three_groups_from_three_threads(member: Member) -> None:
    """Overlapping groups, no role in step with another."""
    members = [list(range(member.size)), [0, 1], [1, member.size - 1]]
    groups = [dist.new_group(ranks) for ranks in members]
    _together([partial(_play, group, ranks) for group, ranks in zip(groups, members, strict=True)])


def one_group_twice(member: Member) -> None:
    """Two groups over the same roles never take each other's data."""
    everybody = list(range(member.size))
    groups = [dist.new_group(), dist.new_group()]
    _together([partial(_play, group, everybody) for group in groups])


def messages_beside_collectives(member: Member) -> None:
    """In one group: a thread that sends and receives while another runs collectives."""

    def talk() -> None:
        for i in range(OPERATIONS):
            sending = dist.isend(torch.full((i,), float(member.rank + i)), member.next, tag=i % 3)
            got = torch.zeros(i)
            dist.recv(got, member.last, tag=i % 3)
            same(got, torch.full((i,), float(member.last + i)), ("message", i))
            assert sending is not None
            sending.wait()

    _together([talk, partial(_play, member.group, list(range(member.size)))])


def one_group_from_many_threads(member: Member) -> None:
    """Any thread may wait for the handle of an asynchronous operation."""
    values = [torch.full((i * 37,), float(member.rank)) for i in range(OPERATIONS)]
    handles = [dist.all_reduce(value, async_op=True) for value in values]

    def wait(start: int) -> None:
        for i in range(start, OPERATIONS, 3):
            handle = handles[i]
            assert handle is not None
            handle.wait()
            same(values[i], torch.full((i * 37,), float(sum(range(member.size)))), i)

    _together([partial(wait, start) for start in range(3)])


def _play(group: Any, members: list[int]) -> None:
    """A reproducible mixture of operations; members agree on it because they share its seed."""
    if dist.get_rank() not in members:
        return
    rank, size, choose = dist.get_rank(group), len(members), random.Random(str(members))
    for i in range(OPERATIONS):
        count = choose.choice((1, 9, 1003, 20_011))
        root = choose.randrange(size)
        kind = choose.choice(("all_reduce", "asynchronous", "broadcast", "all_gather", "reduce_scatter", "all_to_all"))
        what = (members, i, kind, count)
        value = torch.full((count,), float(rank + i))
        if kind == "all_reduce":
            dist.all_reduce(value, group=group)
            same(value, torch.full((count,), float(sum(range(size)) + size * i)), what)
        elif kind == "asynchronous":
            handle = dist.all_reduce(value, group=group, async_op=True)
            assert handle is not None
            handle.wait()
            same(value, torch.full((count,), float(sum(range(size)) + size * i)), what)
        elif kind == "broadcast":
            dist.broadcast(value, group_src=root, group=group)
            same(value, torch.full((count,), float(root + i)), what)
        elif kind == "all_gather":
            out = torch.zeros(size * count)
            dist.all_gather_single(out, value, group=group)
            same(out, (torch.arange(float(size)) + i).repeat_interleave(count), what)
        elif kind == "reduce_scatter":
            out = torch.zeros(count)
            dist.reduce_scatter_single(out, value.repeat(size), group=group)
            same(out, torch.full((count,), float(sum(range(size)) + size * i)), what)
        else:
            out = torch.zeros(size * count)
            dist.all_to_all_single(out, value.repeat(size), group=group)
            same(out, (torch.arange(float(size)) + i).repeat_interleave(count), what)


def _together(bodies: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def run(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure


CHECKS = [
    three_groups_from_three_threads,
    one_group_twice,
    messages_beside_collectives,
    one_group_from_many_threads,
]


@on_every_layout
def test_concurrency(machines: list[int], transport: str) -> None:
    perform(CHECKS, machines, transport)
