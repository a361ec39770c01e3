"""Many small checks in one set of worker processes, so that starting them is paid for once per layout.

A check is a function of a `Member`, run by all roles at once. It computes what it expects from the ranks alone.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
import torch.distributed as dist

from understudy.comm.group import RoleGroup, install, uninstall
from understudy.testing.local_workers import LocalWorker, run_workers

TRANSPORTS = ["native", "torch:gloo"]
UNSUPPORTED: dict[str, set[str]] = {"native": set(), "torch:gloo": set()}
"""By transport, the names of the checks and scripts for what it cannot do."""
LAYOUTS = [[4], [1, 1, 1], [2, 2], [2, 1]]
"""Workers per machine: one machine, nothing but links, both, and both with machines that differ. Beneath a torch
backend machines make no difference, so one layout is enough."""


@dataclass(frozen=True)
class Member:
    """What a check knows: its place among the roles, and the group it may call directly."""

    rank: int
    size: int
    group: RoleGroup

    @property
    def next(self) -> int:
        return (self.rank + 1) % self.size

    @property
    def last(self) -> int:
        return (self.rank - 1) % self.size


Check = Callable[[Member], None]

on_every_layout = pytest.mark.parametrize(
    ("machines", "transport"), [(machines, "native") for machines in LAYOUTS] + [([2, 1], "torch:gloo")], ids=str
)


def perform(checks: Sequence[Check], machines: list[int], transport: str, timeout: float = 60.0) -> None:
    """Run the checks that this transport can pass on every role of one generation; fail with all that went wrong."""
    able = [check for check in checks if check.__name__ not in UNSUPPORTED.get(transport, ())]
    reports = run_workers(_perform, machines, able, transport=transport, timeout=timeout, limit=20.0)
    wrong: dict[str, list[int]] = {}
    for role, found in enumerate(reports):
        for report in found:
            wrong.setdefault(report, []).append(role)
    assert not wrong, "\n".join(f"roles {roles}, {report}" for report, roles in wrong.items())


def _perform(worker: LocalWorker, checks: list[Check]) -> list[str]:
    warnings.simplefilter("ignore")
    roster = worker.fabric.roster
    assert roster is not None
    install(worker.fabric, len(roster.seats))
    group = dist.group.WORLD
    assert isinstance(group, RoleGroup)
    member = Member(dist.get_rank(), dist.get_world_size(), group)
    wrong = []
    for check in checks:
        try:
            check(member)
        except (Exception, pytest.fail.Exception):
            wrong.append(f"{check.__name__}: {traceback.format_exc()}")
        if worker.fabric.fault is not None:
            wrong.append(f"{check.__name__}: {worker.fabric.fault}")
            break
    if worker.fabric.fault is None:
        dist.barrier()
    uninstall()
    return wrong


@lru_cache(maxsize=256)
def given(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank brings: small whole numbers, no two neighbours and no two ranks alike, exact in every dtype.

    The same tensor every time: not to be written to.
    """
    numbers = (torch.arange(count) * 3 + rank * 5) % 7 + 1
    if dtype == torch.bool:
        return numbers % 2 == 0
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers + rank).double()).to(dtype)
    return numbers.to(dtype)


def same(got: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
    """Bit for bit, shape and dtype included."""
    assert got.shape == expected.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    assert got.dtype == expected.dtype, f"{what}: {got.dtype}, expected {expected.dtype}"
    a, b = (torch.cat([t.detach().resolve_conj().reshape(-1)]).view(torch.uint8) for t in (got, expected))
    if not torch.equal(a, b):
        wrong = (a.view(got.numel(), -1) != b.view(got.numel(), -1)).any(1).nonzero().view(-1)
        at = int(wrong[0])
        raise AssertionError(
            f"{what}: {len(wrong)} of {got.numel()} {got.dtype} differ, the first at {at}: "
            f"{got.reshape(-1)[at]}, expected {expected.reshape(-1)[at]}"
        )
