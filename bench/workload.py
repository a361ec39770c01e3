"""What the benchmarks train: the models, their data, and the time that a micro-shard takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import AdamW

# -- a GPT of ten million parameters -----------------------------------------------------------------------------------

VOCABULARY = 1024
CONTEXT = 64
"""Tokens in a sequence."""
WIDTH, LAYERS, HEADS = 384, 5, 6
BATCH = 2
"""Sequences in a step of one replica."""


class Block(nn.Module):
    """One layer of the GPT: causal attention, then a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.grow, self.shrink = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        heard = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(heard.transpose(1, 2).flatten(2))
        return x + self.shrink(F.gelu(self.grow(self.norm2(x))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Maps tokens to the logits of the next tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def build(seed: int) -> GPT:
    """Build the GPT; the same seed gives the same parameters in every process."""
    torch.manual_seed(seed)
    return GPT()


def optimizer(model: nn.Module) -> AdamW:
    return AdamW(model.parameters(), lr=3e-4)


def batch(step: int, shard: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one shard of one step: random tokens that depend on nothing but the two numbers."""
    numbers = torch.Generator().manual_seed(step * 10_000 + shard)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=numbers)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, step: int, shard: int) -> torch.Tensor:
    inputs, targets = batch(step, shard)
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


# -- small networks ----------------------------------------------------------------------------------------------------

FEATURES, HIDDEN, SAMPLES = 256, 256, 8


def small(seed: int) -> nn.Sequential:
    """200,000 parameters: gradients take a millisecond, so that several workers fit on one core."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Linear(FEATURES, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, FEATURES))
    )


def medium(seed: int) -> nn.Sequential:
    """2.1 million parameters, 25 MB with the optimizer's state: enough to hand over, and quick to compute."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Linear(FEATURES, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, 4 * HIDDEN), nn.GELU()),
        nn.Linear(4 * HIDDEN, 3 * FEATURES),
        nn.GELU(),
        nn.Linear(3 * FEATURES, FEATURES),
    )


def small_loss(model: nn.Module, step: int, shard: int) -> torch.Tensor:
    """Loss of one micro-shard of one step; its random inputs depend on nothing but the two numbers."""
    numbers = torch.Generator().manual_seed(step * 10_000 + shard)
    inputs = torch.rand(SAMPLES, FEATURES, generator=numbers)
    return F.mse_loss(model(inputs), inputs.flip(1))


# -- a replica's step --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What a replica computes in a step."""

    micro: int
    """Micro-shards of each replica in a step."""
    length_s: float
    """Seconds that a micro-shard takes at least. A worker that is done earlier waits, as it would for an
    accelerator."""
    build: Callable[[int], nn.Module]
    loss: Callable[[nn.Module, int, int], torch.Tensor]

    def rest(self, began: float) -> None:
        """Wait until a micro-shard that began at `began` (`time.perf_counter`) may end."""
        if self.length_s:
            time.sleep(max(0.0, began + self.length_s - time.perf_counter()))

    def sync(self, model: DDP, number: int) -> AbstractContextManager[None]:
        """A context in which DDP synchronises gradients only with the replica's last micro-shard."""
        return nullcontext() if (number + 1) % self.micro == 0 else model.no_sync()


WORKS = {
    "gpt": Work(1, 0.0, build, loss_of),
    "paced": Work(6, 0.025, small, small_loss),
    "steady": Work(4, 0.05, medium, small_loss),
    "slow": Work(4, 0.1, small, small_loss),
    "hurried": Work(4, 0.0, medium, small_loss),
}
"""`hurried` computes the same as `steady`, without waiting."""
