"""The result of a reduction is a function of the roles' values and of the layout, to the last bit: of nothing else."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple

import torch
import torch.distributed as dist

from tests.comm.checks import on_every_layout
from understudy.comm.group import install, uninstall
from understudy.protocol.roster import Roster
from understudy.testing.local_workers import LocalWorker, LocalWorkers, WorkerHandle

CASES = [(torch.float32, count) for count in (1, 1003, 20_011, 300_003, 1_200_007)] + [
    (torch.bfloat16, count) for count in (1003, 300_003)
]
REPEATS = 2


class Digests(NamedTuple):
    """What one role got: what must be the same on all roles, and what only it has."""

    shared: list[str]
    own: list[str]


def reduce_everything(worker: LocalWorker) -> Digests:
    roster = worker.hear()
    worker.enter(roster)
    install(worker.fabric, len(roster.seats))
    rank, size = dist.get_rank(), dist.get_world_size()
    shared, own = [], []
    for _ in range(REPEATS):
        for dtype, count in CASES:
            blocks = _drawn(rank, size * count, dtype)
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                value = blocks[:count].clone()
                dist.all_reduce(value, op)
                shared.append(_digest(value))
            value = blocks[:count].clone()
            dist.reduce(value, size - 1)
            own.append(_digest(value))
            value = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_single(value, blocks)
            own.append(_digest(value))
    assert worker.fabric.fault is None, worker.fabric.fault
    dist.barrier()
    uninstall()
    return Digests(shared, own)


@cache
def _drawn(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of very different sizes: their sum depends on the order of the additions."""
    dice = torch.Generator().manual_seed(1000 + rank)
    return torch.randn(count, generator=dice).pow_(7).to(dtype)


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.view(torch.uint8).numpy().data).hexdigest()


def performance(machines: list[int], transport: str, *, reshuffled: bool) -> list[Digests]:
    """Play the same roles with workers hired first to last; or last to first, on machines with other names."""
    with LocalWorkers(transport=transport, limit=20.0) as local:
        cells: dict[int, list[WorkerHandle]] = {}
        for cell in reversed(range(len(machines))) if reshuffled else range(len(machines)):
            name = f"host{7 - cell}" if reshuffled else f"m{cell}"
            cells[cell] = local.start(name, machines[cell], reduce_everything)
        seats = [
            handle for cell in range(len(machines)) for handle in (reversed(cells[cell]) if reshuffled else cells[cell])
        ]
        uids = [(role, handle.uid) for role, handle in enumerate(seats)]
        roster = Roster.of(1, uids, [handle.worker for handle in local.handles])
        for handle in seats:
            handle.tell(roster)
        return [handle.result() for handle in seats]


@on_every_layout
def test_a_reduction_has_the_same_bits_with_any_workers_in_the_roles(machines: list[int], transport: str) -> None:
    first = performance(machines, transport, reshuffled=False)
    for digests in first:
        assert digests.shared == first[0].shared, "the roles got different results"
        for kind in digests:
            assert kind[: len(kind) // REPEATS] * REPEATS == kind, "the same reduction twice gave two results"
    assert len({digests.own[-1] for digests in first}) == len(first)
    assert performance(machines, transport, reshuffled=True) == first
