"""The barrier that names missing ranks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from tests.comm.checks import Member, perform
from tests.comm.helpers import fault_of
from understudy.comm.group import install, uninstall
from understudy.testing.local_workers import LocalWorker, run_workers

TOLD = ("timeout", "eof")
"""What roles learn of a time limit: the news of it, or that a role that had them has already ended."""


def all_are_there(member: Member) -> None:
    for _ in range(3):
        member.group.monitored_barrier(timedelta(seconds=20))
    member.group.monitored_barrier(wait_all_ranks=True)


@pytest.mark.parametrize("transport", ["native", "torch:gloo"])
def test_a_monitored_barrier_ends_when_all_are_there(transport: str) -> None:
    perform([all_are_there], [2, 1], transport)


def _missing(worker: LocalWorker, missing: list[int], wait_all: bool) -> str:
    install(worker.fabric, 4)
    group: Any = dist.group.WORLD
    said = ""
    if dist.get_rank() not in missing:
        with pytest.raises(RuntimeError) as raised:
            group.monitored_barrier(timedelta(seconds=0.5), wait_all)
        said = str(raised.value)
    assert fault_of(worker.fabric).how in TOLD
    uninstall()
    return said


@pytest.mark.parametrize(
    ("missing", "wait_all", "named"),
    [([1, 3], False, "Rank 1 failed"), ([1, 3], True, "Ranks 1, 3 failed"), ([3], True, "Rank 3 failed")],
    ids=str,
)
def test_missing_ranks_are_named(missing: list[int], wait_all: bool, named: str) -> None:
    said = run_workers(_missing, [2, 2], missing, wait_all, limit=20.0)
    assert f"{named} to pass monitoredBarrier in 500 ms" in said[0]
    for rank in {1, 2, 3} - set(missing):
        assert f"Rank {rank} successfully reached monitoredBarrier" in said[rank]
