"""Time limits that a script sets: the wait raises, and the generation is poisoned on all roles."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.comm.helpers import fault_of
from understudy.comm.faults import OperationTimeout
from understudy.comm.group import RoleGroup, install, uninstall
from understudy.comm.waits import GroupWork
from understudy.testing.local_workers import LocalWorker, run_workers

SOON, LATER = timedelta(seconds=0.2), timedelta(seconds=60)
TOLD = {"timeout", "eof"}
"""What other roles learn of a time limit: the news of it, or that a role that had them has already ended."""
Late = Callable[[RoleGroup], object]


def limited_group(group: RoleGroup) -> object:
    limited = dist.new_group(timeout=SOON)
    return dist.barrier(limited) if group.rank() == 0 else None


def limited_later(group: RoleGroup) -> object:
    group.set_timeout(SOON)
    return dist.all_reduce(torch.ones(3)) if group.rank() == 0 else None


def limited_message(group: RoleGroup) -> object:
    group.set_timeout(SOON)
    return dist.recv(torch.zeros(3), 1) if group.rank() == 0 else None


def limited_exchange(group: RoleGroup) -> object:
    group.set_timeout(SOON)
    return dist.all_to_all_single(torch.zeros(3), torch.ones(3)) if group.rank() == 0 else None


def limited_barrier(group: RoleGroup) -> object:
    return dist.barrier(timeout=SOON) if group.rank() == 0 else None


def limited_operation(group: RoleGroup) -> object:
    return group.allreduce([torch.ones(3)], timeout=SOON).wait() if group.rank() == 0 else None


def limited_wait(group: RoleGroup) -> object:
    return group.allreduce([torch.ones(3)]).wait(SOON) if group.rank() == 0 else None


def limited_wait_for_a_message(group: RoleGroup) -> object:
    return group.recv([torch.ones(3)], 1, 0).wait(SOON) if group.rank() == 0 else None


def monitored(group: RoleGroup) -> None:
    if group.rank() == 0:
        group.monitored_barrier(SOON)


CASES: list[Late] = [
    limited_group,
    limited_later,
    limited_message,
    limited_exchange,
    limited_barrier,
    limited_operation,
    limited_wait,
    limited_wait_for_a_message,
    monitored,
]


def _late(worker: LocalWorker, case: Late) -> tuple[str, str]:
    install(worker.fabric, 3)
    group: Any = dist.group.WORLD
    group.allreduce([torch.ones(3)]).wait(LATER)
    said = ""
    try:
        case(group)
    except RuntimeError as error:
        said = f"{type(error).__name__}: {error}"
    fault = fault_of(worker.fabric)
    uninstall()
    return said, fault.how


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_limit_that_the_script_sets_raises_where_it_waits(case: Late) -> None:
    (first, *others) = run_workers(_late, [2, 1], case, limit=20.0)
    assert first[0].startswith("OperationTimeout: "), first
    assert any(word in first[0] for word in ("Timed out", "timeout", "monitoredBarrier")), first
    assert first[1] == "timeout"
    assert TOLD.issuperset(how for _, how in others)
    assert [said for said, _ in others] == ["", ""]


@pytest.mark.parametrize("case", [limited_group, limited_wait, limited_message], ids=lambda case: case.__name__)
def test_limits_hold_over_a_backend_of_torch(case: Late) -> None:
    (first, *others) = run_workers(_late, [2, 1], case, transport="torch:gloo", limit=20.0)
    assert first[0].startswith("OperationTimeout: "), first
    assert first[1] == "timeout"
    assert TOLD.issuperset(how for _, how in others)


def _unlimited(worker: LocalWorker) -> str:
    """Rank 0 waits for a rank that never comes: the fabric's own limit ends the wait, without an exception."""
    install(worker.fabric, 2)
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3))
        dist.barrier()
    fault = fault_of(worker.fabric)
    uninstall()
    return fault.how


def test_the_limit_of_the_fabric_never_raises() -> None:
    first, other = run_workers(_unlimited, [2], limit=0.3)
    assert first == "timeout"
    assert other in TOLD


class _Backward(torch.autograd.Function):
    """Waits for an all-reduce in the backward pass, as DDP's reducer does."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: RoleGroup) -> torch.Tensor:
        ctx.group = group
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.group.allreduce([gradient.clone()]).wait()
        return gradient, None


def _in_backward(worker: LocalWorker) -> str:
    install(worker.fabric, 2)
    group: Any = dist.group.WORLD
    if dist.get_rank() == 0:
        group.set_timeout(SOON)
        _Backward.apply(torch.ones(3, requires_grad=True), group).sum().backward()  # type: ignore[no-untyped-call]
        with pytest.raises(OperationTimeout, match="timeout"):
            dist.all_reduce(torch.ones(3))
    fault = fault_of(worker.fabric)
    uninstall()
    return fault.how


def test_no_limit_raises_in_a_backward_pass() -> None:
    """An exception there would break DDP's reducer for good."""
    first, other = run_workers(_in_backward, [2], limit=20.0)
    assert first == "timeout"
    assert other in TOLD


def test_a_work_without_limits_says_what_has_expired() -> None:
    with pytest.raises(RuntimeError, match=r"Timed out after 0\.01 s"):
        GroupWork([]).wait(timedelta(seconds=0.01))
