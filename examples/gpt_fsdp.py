"""A GPT with sharded parameters, gradients and optimizer state: FSDP2, or HSDP on a two-dimensional mesh.

    python examples/gpt_fsdp.py
    understudy run --machines 2 --standbys 1 examples/gpt_fsdp.py
    understudy run --machines 2 --nproc 2 --standbys 1 --mesh dp_replicate=2,dp_shard=2 examples/gpt_fsdp.py

While it runs, in another terminal: understudy replace m1
"""

from __future__ import annotations

import torch
from gpt import Block, batch, gpt, loss_of, options
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

import understudy

args = options("Train a small GPT with FSDP2, or with HSDP on a mesh dp_replicate=…,dp_shard=….")


def train(job: understudy.Job) -> None:
    torch.manual_seed(job.seed)  # all roles build the same parameters, then each keeps its shard
    model = gpt(args.width, args.layers).to(job.device)
    for layer in model:
        if isinstance(layer, Block):
            fully_shard(layer, mesh=job.mesh)
    fully_shard(model, mesh=job.mesh)
    optim = AdamW(model.parameters(), lr=1e-3)
    job.track(model=model, optim=optim)

    for step in job.steps(args.steps):
        with step:
            for shard in step.shards(args.micro):
                inputs, targets = batch(step.index, shard.number, args.batch)
                loss = loss_of(model(inputs.to(job.device)), targets.to(job.device))
                (loss * shard.weight).backward()
                job.log(loss=loss)
            norm = clip_grad_norm_(model.parameters(), 1.0)
            if isinstance(norm, DTensor):
                norm = norm.full_tensor()
            optim.step()
            optim.zero_grad()
            job.log(norm=norm)
            if job.is_primary and (step.index + 1) % 5 == 0:
                print(f"step {step.index + 1:4}  loss {step.values['loss']:.4f}  norm {norm.item():.2f}", flush=True)


if __name__ == "__main__":
    understudy.run(train)
