"""A GPT with data parallelism: DDP, a learning rate that warms up and decays, clipped gradients.

    python examples/gpt_ddp.py
    understudy run --machines 2 --standbys 1 examples/gpt_ddp.py

While it runs, in another terminal: understudy replace m1
"""

from __future__ import annotations

import math

import torch
from gpt import batch, gpt, loss_of, options
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

import understudy

args = options("Train a small GPT with DDP.")


def pace(step: int) -> float:
    """The learning rate's factor: a warm-up of five steps, then a cosine down to a tenth."""
    return min((step + 1) / 5, 0.55 + 0.45 * math.cos(math.pi * min(step / args.steps, 1)))


def train(job: understudy.Job) -> None:
    torch.manual_seed(job.seed)
    model = DDP(gpt(args.width, args.layers).to(job.device), process_group=job.mesh["dp"].get_group())
    optim = AdamW(model.parameters(), lr=2e-3)
    schedule = LambdaLR(optim, pace)
    job.track(model=model, optim=optim, schedule=schedule)

    for step in job.steps(args.steps):
        with step:
            for shard in step.shards(args.micro):
                inputs, targets = batch(step.index, shard.number, args.batch)
                loss = loss_of(model(inputs.to(job.device)), targets.to(job.device))
                (loss * shard.weight).backward()
                job.log(loss=loss)
            norm = clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            schedule.step()
            optim.zero_grad()
            job.log(norm=norm, lr=schedule.get_last_lr()[0])
            if job.is_primary and (step.index + 1) % 5 == 0:
                print(f"step {step.index + 1:4}  loss {step.values['loss']:.4f}  norm {norm.item():.2f}", flush=True)


if __name__ == "__main__":
    understudy.run(train)
