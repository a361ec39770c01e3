"""A barrier that names the ranks that have not reached it."""

from __future__ import annotations

import time
from math import inf

import torch

from . import waits
from .endpoint import Endpoint
from .faults import Fault, OperationTimeout
from .links.pairs import Receive, Send

TAG = (1 << 31) - 2
"""The last tag that every transport has."""


def monitored_barrier(endpoint: Endpoint, limit: float | None, wait_all: bool) -> None:
    """Return once all ranks are here. After `limit` seconds rank 0 raises an exception with the first rank that is not,
    or with all of them, and the generation is poisoned: then the other ranks raise as well."""
    began = time.perf_counter()
    try:
        if endpoint.rank == 0:
            _await_all(endpoint, limit, wait_all)
        else:
            _report(endpoint, limit)
    finally:
        waits.add(time.perf_counter() - began)


def _await_all(endpoint: Endpoint, limit: float | None, wait_all: bool) -> None:
    within = "" if limit is None else f" in {limit * 1000:g} ms"
    if limit is not None and limit <= 0:
        raise _failed(endpoint, "Rank 0 timed out in monitoredBarrier after 0 ms")
    due = time.monotonic() + (inf if limit is None else limit)
    others = [rank for rank in range(1, endpoint.size) if rank not in endpoint.vacant]
    arrivals = {rank: Receive(rank, TAG, torch.zeros(1)) for rank in others}
    for job in arrivals.values():
        endpoint.message(job)
    missing = []
    for rank, job in arrivals.items():
        job.done.wait(None if due == inf else max(0.0, due - time.monotonic()))
        if not job.done.is_set() or not job.tensor.item():
            missing.append(rank)
            if not wait_all:
                break
    if missing:
        ranks = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        raise _failed(endpoint, f"{ranks} failed to pass monitoredBarrier{within}")
    answers = [Send(rank, TAG, torch.ones(1)) for rank in others]
    for answer in answers:
        endpoint.message(answer)
    for answer in answers:
        answer.done.wait()


def _report(endpoint: Endpoint, limit: float | None) -> None:
    answer = Receive(0, TAG, torch.zeros(1))
    endpoint.message(Send(0, TAG, torch.ones(1)))
    endpoint.message(answer)
    if not answer.done.wait(limit or None) or not answer.tensor.item():
        reason = (
            f"Rank {endpoint.rank} successfully reached monitoredBarrier, but received errors while waiting for "
            "send/recv from rank 0. Rank 0 names the ranks that are missing"
        )
        raise _failed(endpoint, reason)


def _failed(endpoint: Endpoint, reason: str) -> OperationTimeout:
    if endpoint.poison is not None:
        endpoint.poison.set(Fault("timeout", f"monitored_barrier of group {endpoint.name}: {reason}"))
    return OperationTimeout(f"[group {endpoint.name}] {reason}")
