"""What the benchmarks train: a GPT of about ten million parameters on tokens that mean nothing."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

VOCABULARY = 1024
CONTEXT = 64
"""Tokens in a sequence."""
WIDTH, LAYERS, HEADS = 384, 5, 6
BATCH = 2
"""Sequences in a step of one replica."""


class Block(nn.Module):
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
    """Tokens in, the next tokens' logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def build(seed: int) -> GPT:
    """The same parameters for the same seed, in every process."""
    torch.manual_seed(seed)
    return GPT()


def optimizer(model: nn.Module) -> AdamW:
    return AdamW(model.parameters(), lr=3e-4)


def batch(step: int, shard: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and targets of one shard of one step: the same whoever asks, and whenever."""
    numbers = torch.Generator().manual_seed(step * 10_000 + shard)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=numbers)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, step: int, shard: int) -> torch.Tensor:
    inputs, targets = batch(step, shard)
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
