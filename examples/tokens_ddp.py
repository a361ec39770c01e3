"""A GPT with DDP on a token file. A micro-shard's number gives its windows, so that any replica can compute it.

    python examples/tokens_ddp.py
    understudy run --machines 2 --standbys 1 examples/tokens_ddp.py

The file is this project's licence, with bytes as tokens; any file of raw integers will do.
"""

from __future__ import annotations

import torch
from gpt import CONTEXT, LETTERS, LICENCE, gpt, loss_of, options
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import AdamW

import understudy
from understudy.data import Tokens

args = options("Train a small GPT on a token file with DDP.")
LETTER = torch.zeros(256, dtype=torch.int64)
LETTER[[ord(letter) for letter in LETTERS]] = torch.arange(len(LETTERS))
"""Byte → the model's number of that letter."""


def train(job: understudy.Job) -> None:
    torch.manual_seed(job.seed)
    model = DDP(gpt(args.width, args.layers).to(job.device), process_group=job.mesh["dp"].get_group())
    optim = AdamW(model.parameters(), lr=2e-3)
    job.track(model=model, optim=optim)
    data = Tokens(LICENCE, CONTEXT, args.batch, dtype="uint8", seed=job.seed, prefetch=2)

    for step in job.steps(args.steps):
        with step:
            for shard in step.shards():
                inputs, targets = data.batch(step.index, shard)
                loss = loss_of(model(LETTER[inputs].to(job.device)), LETTER[targets].to(job.device)) * shard.weight
                loss.backward()
            optim.step()
            optim.zero_grad()
            job.log(loss=loss)
            if job.is_primary and (step.index + 1) % 5 == 0:
                print(f"step {step.index + 1:4}  loss {loss.item():.4f}", flush=True)
    data.close()


if __name__ == "__main__":
    understudy.run(train)
