"""Calls of torch's C++ that look for the backend of a group."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.comm.scripts import Outcome, batch, compare
from understudy.comm import lookup
from understudy.comm.group import RoleGroup, install, uninstall
from understudy.testing.local_workers import LocalWorker, run_workers

in_python = pytest.mark.skipif(torch.__version__ < lookup.FROM, reason="backends in Python come with torch 2.14")


def gather_into_what_is_there(group: dist.ProcessGroup) -> torch.Tensor:
    """Inductor and compiled FSDP2 gather so."""
    given = batch(0, dist.get_rank())
    out = torch.empty(dist.get_world_size() * given.shape[0], given.shape[1])
    gather = torch.ops._c10d_functional.all_gather_into_tensor_out
    functional.wait_tensor(gather(given, dist.get_world_size(), group.group_name, out=out))
    return out


def ring(group: dist.ProcessGroup) -> torch.Tensor:
    """What torch.compile makes of `batch_isend_irecv`: each role hands its rank to the next one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    given, got = torch.full((2,), float(rank)), torch.zeros(2)
    peers = [(rank + 1) % size, (rank - 1) % size]
    for tensor in functional.batch_p2p_ops_inplace(["isend", "irecv"], peers, [0, 0], [given, got], group.group_name):
        functional.wait_tensor(tensor)
    return got


def looked_up() -> Outcome:
    """Under Gloo torch answers itself, although the process has answers of ours by then."""
    outcome, group = Outcome(), dist.group.WORLD
    assert group is not None
    outcome.keep("gathered", gather_into_what_is_there(group))
    outcome.keep("passed on", ring(group))
    assert outcome.tensors["passed on"][0] == (dist.get_rank() - 1) % dist.get_world_size()
    return outcome


def test_functional_collectives_that_look_up_a_backend_agree_with_gloo(tmp_path: Path) -> None:
    compare(looked_up, [1, 1], scratch=tmp_path, exact=True)


def through_the_dispatcher(worker: LocalWorker) -> None:
    """The dispatcher looks up the backend, which hands the call to the group."""
    install(worker.fabric, 2)
    group: Any = dist.group.WORLD
    rank = dist.get_rank()
    gathered = torch.empty(4)
    torch.ops.c10d._allgather_base_(gathered, torch.full((2,), float(rank)), group.boxed(), False, -1)
    sent = torch.full((3,), float(rank))
    torch.ops.c10d.broadcast_([sent], group.boxed(), 1, 0, False, -1)
    lists = [[torch.empty(1), torch.empty(1)]]
    torch.ops.c10d.allgather_(lists, [torch.full((1,), float(rank))], group.boxed(), False, -1)
    assert gathered.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert sent.tolist() == [1.0, 1.0, 1.0]
    assert [tensor.item() for tensor in lists[0]] == [0.0, 1.0]
    assert not group.supports_reconfigure
    assert group._has_hooks() is False
    dist.barrier()
    uninstall()


@in_python
def test_what_reaches_the_backend_is_handed_to_the_group() -> None:
    run_workers(through_the_dispatcher, [1, 1], timeout=60.0, limit=20.0)


def let_go(worker: LocalWorker) -> None:
    install(worker.fabric, 1)
    group = dist.group.WORLD
    assert isinstance(group, RoleGroup)
    known = weakref.ref(group)
    del group
    uninstall()
    gc.collect()
    assert known() is None


def test_a_destroyed_group_is_freed() -> None:
    """The group keeps its backend, and not the other way round."""
    run_workers(let_go, [1], timeout=60.0, limit=20.0)
