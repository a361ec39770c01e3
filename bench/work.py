"""What a replica computes in a step: its micro-shards, and how long each of them takes at least."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from understudy_bench import model as gpt

FEATURES, WIDTH, SAMPLES = 256, 256, 8


@dataclass(frozen=True)
class Work:
    micro: int
    """Micro-shards of each replica in a step."""
    length_s: float
    """Seconds that each takes at least: whoever has computed one waits for the rest of them, as for an accelerator."""
    build: Callable[[int], nn.Module]
    loss: Callable[[nn.Module, int, int], torch.Tensor]

    def rest(self, began: float) -> None:
        """Wait until a micro-shard that was begun then (`time.perf_counter`) may end."""
        if self.length_s:
            time.sleep(max(0.0, began + self.length_s - time.perf_counter()))

    def sync(self, model: DDP, number: int) -> AbstractContextManager[None]:
        """DDP adds up all micro-shards of its replica before it asks the others."""
        return nullcontext() if (number + 1) % self.micro == 0 else model.no_sync()


def small(seed: int) -> nn.Sequential:
    """200,000 parameters: the gradients are there in a millisecond, so that several workers fit on one core."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Linear(FEATURES, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, FEATURES))
    )


def small_loss(model: nn.Module, step: int, shard: int) -> torch.Tensor:
    """Of one micro-shard of one step: the same whoever asks, and whenever."""
    numbers = torch.Generator().manual_seed(step * 10_000 + shard)
    inputs = torch.rand(SAMPLES, FEATURES, generator=numbers)
    return F.mse_loss(model(inputs), inputs.flip(1))


def medium(seed: int) -> nn.Sequential:
    """2.1 million parameters, 25 MB with the optimizer's state: something to hand over, and still quick to compute."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Linear(FEATURES, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, 4 * WIDTH), nn.GELU()),
        nn.Linear(4 * WIDTH, 3 * FEATURES),
        nn.GELU(),
        nn.Linear(3 * FEATURES, FEATURES),
    )


WORKS = {
    "gpt": Work(1, 0.0, gpt.build, gpt.loss_of),
    "paced": Work(6, 0.025, small, small_loss),
    "steady": Work(4, 0.05, medium, small_loss),
    "slow": Work(4, 0.1, small, small_loss),
    "hurried": Work(4, 0.0, medium, small_loss),
}
"""`hurried` computes the same as `steady`, as fast as it can."""
