"""Understudy's process group in places where a test of torch asks for gloo."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from understudy.comm import group
from understudy.comm.network import NetworkFabric
from understudy.protocol.roster import Roster

PER_MACHINE = 2
"""Ranks that share a machine, so that tests use shared memory and links."""
JOB, SECRET = "conformance", b"torch's own tests"

_rounds = 0
"""The number of times that this process has made a default group; each has keys of its own in the store."""


def take_the_place_of_gloo(suite: Any) -> None:
    """From now on, a group with the backend gloo is one of Understudy's. Torch still knows it as gloo.

    The suite asks backends on a list of its own for events in the profiler's trace. Gloo is taken off that list: a
    backend that the suite does not know is not on it either."""
    make = c10d._new_process_group_helper
    suite.PROFILING_SUPPORTED_BACKENDS.remove(dist.Backend.GLOO)
    suite.CUDA_PROFILING_SUPPORTED_BACKENDS.remove(dist.Backend.GLOO)
    suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.remove(dist.Backend.GLOO)

    def helper(size: int, rank: int, members: list[int], backend: Any, store: Any, *rest: Any, **named: Any) -> Any:
        if not members:
            group.register(_fabric(size, rank, store, named["timeout"]))
        made, space = make(size, rank, members, group.BACKEND, store, *rest, **named)
        if isinstance(made, group.RoleGroup):
            name, named_config = dist.Backend(dist.Backend.GLOO), str(dist.BackendConfig(dist.Backend(backend)))
            c10d._world.pg_map[made] = (name, c10d._world.pg_map[made][1])
            c10d._world.pg_backend_config[made] = named_config
        return made, space

    c10d._new_process_group_helper = helper  # type: ignore[assignment]


def _fabric(size: int, rank: int, store: Any, timeout: timedelta) -> NetworkFabric:
    """This rank's fabric in generation 1. The ranks learn one another's addresses through the store."""
    global _rounds
    _rounds += 1
    machine = f"m{rank // PER_MACHINE}"
    fabric = NetworkFabric(f"w{rank}", machine, job=JOB, secret=SECRET, limit=timeout.total_seconds())
    store.set(f"address/{_rounds}/{rank}", pickle.dumps(fabric.worker))
    workers = [pickle.loads(store.get(f"address/{_rounds}/{other}")) for other in range(size)]
    roster = Roster.of(1, [(role, worker.uid) for role, worker in enumerate(workers)], workers)
    fabric.prepare(roster).result()
    fabric.switch(roster.generation)
    return fabric
