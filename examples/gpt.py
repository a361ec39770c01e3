"""The model and the data of the examples: a small GPT that learns this project's licence, letter by letter."""

from __future__ import annotations

import argparse
from importlib import metadata
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

PLACES = [Path(file.locate()) for file in metadata.files("understudy") or () if file.name == "LICENSE"]
LICENCE = next(place for place in [*PLACES, Path(__file__).parent.parent / "LICENSE"] if place.exists())
"""The licence is installed with the package, so that the examples can be copied anywhere."""
TEXT = LICENCE.read_text()
LETTERS = sorted(set(TEXT))
CODES = torch.tensor([LETTERS.index(letter) for letter in TEXT])
CONTEXT = 64
"""Letters in a sequence."""
HEAD = 32
"""Numbers in an attention head; a width is a multiple of it."""


class Embed(nn.Module):
    """Embeds letters and their positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(CONTEXT, width)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.letters(letters) + self.places.weight[: letters.shape[1]]  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then a feed-forward network. Heads lie side by side, so that `qkv` and `join` can be cut between
    them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3, HEAD)).permute(3, 0, 2, 1, 4)
        heard = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(heard.transpose(1, 2).flatten(2))
        return x + self.shrink(F.gelu(self.grow(self.norm2(x))))  # type: ignore[no-any-return]


def gpt(width: int, layers: int) -> nn.Sequential:
    """A model from letters to the logits of the next letter. Any slice of it is a stage of a pipeline."""
    blocks = [Block(width) for _ in range(layers)]
    return nn.Sequential(Embed(width), *blocks, nn.LayerNorm(width), nn.Linear(width, len(LETTERS), bias=False))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next letters."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(step: int, shard: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one shard of one step; they depend on nothing but the arguments."""
    numbers = torch.Generator().manual_seed(step * 10_000 + shard)
    starts = torch.randint(len(CODES) - CONTEXT, (size, 1), generator=numbers)
    codes = CODES[starts + torch.arange(CONTEXT + 1)]
    return codes[:, :-1], codes[:, 1:]


def options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=60, help="number of steps (default 60)")
    parser.add_argument("--width", type=int, default=128, help=f"a multiple of {HEAD} (default 128)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the model (default 4)")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a micro-shard (default 16)")
    parser.add_argument("--micro", type=int, default=1, help="micro-shards of one replica in a step (default 1)")
    return parser.parse_args()
