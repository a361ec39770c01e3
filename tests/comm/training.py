"""A small DDP training that survives a death in the middle of a backward pass."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from understudy.comm.group import install, uninstall
from understudy.comm.sandbox import Echo
from understudy.protocol.roster import Roster
from understudy.testing.local_workers import LocalWorker


class Training:
    """Model, optimizer and data; the data depends on step and role only."""

    def __init__(self, role: int) -> None:
        torch.manual_seed(7)
        self.role = role
        self.model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(96, 96), nn.Tanh())])
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=0.05)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def backward(self, step: int) -> None:
        numbers = torch.Generator().manual_seed(1000 * step + self.role)
        batch = torch.randn(16, 96, generator=numbers)
        (self.ddp(batch) - batch.flip(1)).square().mean().backward()

    def apply(self) -> None:
        self.optim.step()
        self.optim.zero_grad()

    def state(self) -> Iterator[torch.Tensor]:
        """Every tensor that moves with the role."""
        for parameter in self.model.parameters():
            yield parameter.detach()
            for name in ("exp_avg", "exp_avg_sq", "step"):
                yield self.optim.state[parameter][name]

    def digest(self) -> str:
        found = hashlib.sha256()
        for tensor in self.state():
            found.update(tensor.numpy().tobytes())
        return found.hexdigest()


def train(worker: LocalWorker, joiner: int | None, roles: int, steps: int, stop_in: int | None) -> str:
    """Train for so many steps; the digest of the final state. A role that is to stop does so in the backward pass of
    that step, and says so. A joiner rehearses its role and enters with the first roster it hears."""
    warnings.simplefilter("ignore")
    fabric = worker.fabric
    if joiner is None:
        worker.enter(worker.hear())
    else:
        fabric.assume(joiner, Echo())
    install(fabric, roles)
    assert fabric.role is not None
    training = Training(fabric.role)
    step = 0
    if joiner is not None:
        for number in range(2):
            training.backward(number)
            training.apply()
        worker.tell("rehearsed")
        step = enter(worker, training, 0)

    def stop(gradient: torch.Tensor) -> None:
        if step == stop_in:
            worker.tell("in backward")
            worker.hear()

    if stop_in is not None:
        next(training.model.parameters()).register_hook(stop)
    while step < steps:
        training.backward(step)
        vote = torch.tensor([step])
        dist.all_reduce(vote, dist.ReduceOp.MIN)
        if fabric.fault is not None:
            training.optim.zero_grad()
            worker.tell(("failed", step, str(fabric.fault)))
            step = enter(worker, training, step)
            continue
        assert vote.item() == step
        training.apply()
        step += 1
    digest = training.digest()
    uninstall()
    return digest


def enter(worker: LocalWorker, training: Training, step: int) -> int:
    """Enter the next roster; the worker with the longest time in its role broadcasts its state. The next step."""
    roster: Roster = worker.hear()
    worker.enter(roster)
    root = min(range(len(roster.since)), key=lambda role: roster.since[role])
    where = torch.tensor([step])
    for tensor in (where, *training.state()):
        dist.broadcast(tensor, root)
    assert worker.fabric.fault is None, worker.fabric.fault
    return int(where)
