"""A replacement costs the workers that stay no memory that grows with the model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from tests.comm.helpers import all_reduce
from understudy.comm.endpoint import Endpoint
from understudy.comm.sandbox import Echo
from understudy.protocol.roster import Roster
from understudy.testing.local_workers import LocalWorker, LocalWorkers, first_roster

BUCKET = 25 * (1 << 20) // 4
"""Elements of one of DDP's buckets."""
ALLOWED = 2 * 1024
"""Kilobytes."""


class Memory(NamedTuple):
    resident: int
    peak: int


def memory() -> Memory:
    """In kilobytes."""
    found = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Memory(*(int(found[name].split()[0]) for name in ("VmRSS", "VmHWM")))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def sweep(end: Endpoint, gradients: torch.Tensor) -> None:
    for bucket in gradients.split(BUCKET):
        all_reduce(end, bucket, dist.ReduceOp.MAX)


def vote(end: Endpoint, prepared: int) -> int:
    return int(all_reduce(end, torch.tensor([prepared]), dist.ReduceOp.MIN))


def hold(worker: LocalWorker, joiner: int | None, roles: int, parameters: int) -> int | None:
    """Hold a model and reduce its gradients, step after step, until a step after the switch. How many kilobytes the
    peak has grown from before the preparation until then; None for joiners and leavers."""
    fabric = worker.fabric
    if joiner is None:
        worker.enter(worker.hear())
    else:
        fabric.assume(joiner, Echo())
    end = fabric.group(range(roles))
    model, gradients = torch.ones(parameters), torch.ones(parameters)
    sweep(end, gradients)
    if joiner is None:
        worker.enter(worker.hear())  # code, which is read in where it is first needed, is not what is measured
        sweep(end, gradients)
        vote(end, 2)
    worker.tell("here")
    roster: Roster = worker.hear()
    before = memory()
    forget_peak()
    future = fabric.prepare(roster)
    if joiner is not None:
        future.result()
        fabric.switch(roster.generation)
    while fabric.generation < roster.generation:
        sweep(end, gradients)
        agreed = vote(end, fabric.prepared)
        assert fabric.fault is None, fabric.fault
        if agreed == roster.generation:
            fabric.switch(roster.generation)
    if fabric.role is None:
        return None
    sweep(end, gradients)
    grown = memory().peak - before.resident
    assert fabric.fault is None, fabric.fault
    assert bool((gradients == 1).all())
    assert model[-1] == 1
    return grown if joiner is None else None


@pytest.mark.parametrize("machines", [[1, 1], [2, 1]], ids=str)
@pytest.mark.parametrize("millions", [10, 100])
def test_stayers_allocate_nothing_that_grows_with_the_model(machines: list[int], millions: int) -> None:
    roles, parameters = sum(machines), millions * 1_000_000
    with LocalWorkers(limit=20.0) as local:
        handles = [
            handle
            for machine, count in enumerate(machines)
            for handle in local.start(f"m{machine}", count, hold, None, roles, parameters)
        ]
        second = first_roster(handles).successor({})
        for handle in handles:
            handle.tell(first_roster(handles))
            handle.tell(second)
        (joiner,) = local.start("m9", 1, hold, roles - 1, roles, parameters)
        for handle in (*handles, joiner):
            assert handle.hear() == "here"
        roster = second.successor({roles - 1: joiner.worker})
        for handle in (*handles, joiner):
            handle.tell(roster)
        grown = [handle.result() for handle in (*handles, joiner)]
    print(f"{machines}, {millions} M parameters: stayers grew by {grown[: roles - 1]} kB")
    assert grown[roles - 1 :] == [None, None]
    assert all(one is not None and one < ALLOWED for one in grown[: roles - 1]), grown
