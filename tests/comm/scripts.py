"""One training script under two backends: understudy's groups and torch's own Gloo, in the same worker processes.

A script is a function that calls torch alone and returns an `Outcome`. It must give the same outcome every time.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.comm.checks import TRANSPORTS, UNSUPPORTED
from understudy.comm.group import install, uninstall
from understudy.testing.local_workers import LocalWorker, run_workers


@dataclass
class Outcome:
    losses: list[float] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        """Remember a tensor as it is now; of a distributed one, this role's part."""
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        self.tensors[name] = local.detach().clone()

    def keep_all(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in tensors:
            self.keep(name, tensor)


Script = Callable[..., Outcome]


def in_turn(*scripts: Script) -> Outcome:
    """Several scripts as one: what torch must work out only once per process is worked out once."""
    whole = Outcome()
    for script in scripts:
        outcome = script()
        outcome.keep("losses", torch.tensor(outcome.losses))
        whole.losses += outcome.losses
        whole.tensors |= {f"{script.__name__}: {name}": tensor for name, tensor in outcome.tensors.items()}
    return whole


def compare(script: Script, machines: list[int], *args: object, scratch: Path, exact: bool) -> None:
    """Run `script(*args)` on every role under each transport and under Gloo. Every tensor must come out equal: bit for
    bit where `exact`, because a sum of two has no order."""
    for transport in TRANSPORTS:
        unable = UNSUPPORTED.get(transport, ())
        able = [arg for arg in args if getattr(arg, "__name__", None) not in unable]
        store = scratch / f"gloo-{transport.replace(':', '-')}"
        if script.__name__ not in unable:
            run_workers(_twice, machines, store, exact, script, able, transport=transport, timeout=200.0, limit=60.0)


def _twice(worker: LocalWorker, store: Path, exact: bool, script: Script, args: list[object]) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    roster, role = worker.fabric.roster, worker.fabric.role
    assert roster is not None
    assert role is not None
    size = len(roster.seats)
    install(worker.fabric, size)
    try:
        ours = script(*args)
        assert worker.fabric.fault is None, worker.fabric.fault
    finally:
        uninstall()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=FileStore(str(store), size), rank=role, world_size=size)
    try:
        theirs = script(*args)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    agree(ours, theirs, exact)


def agree(ours: Outcome, theirs: Outcome, exact: bool) -> None:
    tolerance = 0.0 if exact else None
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        _close(name, tensor, theirs.tensors[name], tolerance)
    _close("losses", torch.tensor(ours.losses), torch.tensor(theirs.losses), tolerance)


def _close(name: str, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float | None) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}")


class Net(nn.Module):
    """A small network with a few layers of different shapes, the same on every role."""

    def __init__(self, width: int = 8, hidden: int = 16) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.inner = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.outer = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.outer(self.norm(torch.relu(self.inner(x))))
        return result


def batch(step: int, rank: int, width: int = 8, rows: int = 4) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(100 * step + rank))


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    fully_shard(model, **options)
    return model
