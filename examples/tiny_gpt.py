"""A small GPT and the text it learns: enough to see a loss fall on a laptop."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

TEXT = (Path(__file__).parent.parent / "LICENSE").read_text()
LETTERS = sorted(set(TEXT))
CONTEXT = 64


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        heard = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(heard.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Letters in, the next letter's logits out."""

    def __init__(self, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        x = self.letters(letters) + self.places.weight[: letters.shape[1]]
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def batch(step: int, part: int, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and targets of one part of one step: the same whoever asks, and whenever."""
    numbers = torch.Generator().manual_seed(step * 1000 + part)
    starts = torch.randint(len(TEXT) - CONTEXT - 1, (size,), generator=numbers)
    ids = torch.tensor([[LETTERS.index(c) for c in TEXT[s : s + CONTEXT + 1]] for s in starts.tolist()])
    return ids[:, :-1], ids[:, 1:]
