"""A GPT in three dimensions: a pipeline of stages (pp), replicas of it (dp), and layers cut across workers (tp).

    understudy run --machines 2 --nproc 2 --standbys 1 --mesh pp=2,dp=2,tp=1 examples/gpt_3d.py
    understudy run --machines 4 --nproc 2 --standbys 1 --mesh pp=2,dp=2,tp=2 examples/gpt_3d.py

While it runs, in another terminal: understudy replace m1
"""

from __future__ import annotations

import torch
from gpt import CONTEXT, LETTERS, Block, batch, gpt, loss_of, options
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import AdamW

import understudy

args = options("Train a small GPT on a mesh pp=…,dp=…,tp=….")


def train(job: understudy.Job) -> None:
    if set(job.mesh.mesh_dim_names or ()) != {"pp", "dp", "tp"}:
        raise SystemExit("gpt_3d.py needs three dimensions: understudy run --mesh pp=1,dp=1,tp=1 examples/gpt_3d.py")
    pp, tp = job.mesh["pp"], job.mesh["tp"]
    here, stages = pp.get_local_rank(), pp.size()

    # Every role builds the same model and keeps the layers of its stage; of each block, only its own heads.
    torch.manual_seed(job.seed)
    model = list(gpt(args.width, args.layers))
    cuts = [0, *(1 + args.layers * number // stages for number in range(1, stages)), len(model)]
    layers = nn.Sequential(*model[cuts[here] : cuts[here + 1]]).to(job.device)
    for layer in layers:
        if isinstance(layer, Block):
            columns, rows = ColwiseParallel(), RowwiseParallel()
            parallelize_module(layer, tp, {"qkv": columns, "join": rows, "grow": columns, "shrink": rows})
    optim = AdamW(layers.parameters(), lr=1e-3)
    job.track(layers=layers, optim=optim)
    job.average(layers, over="dp")  # gradients, over the replicas of this stage; DDP fails inside a PipelineStage

    micro_batches = 2 * stages
    if args.batch % micro_batches:
        raise SystemExit(
            f"--batch {args.batch} must be a multiple of {micro_batches}: a shard is cut into as many parts"
        )
    size = args.batch // micro_batches
    letters = torch.empty(size, CONTEXT, dtype=torch.long, device=job.device)
    hidden = torch.empty(size, CONTEXT, args.width, device=job.device, requires_grad=True)
    logits = torch.empty(size, CONTEXT, len(LETTERS), device=job.device, requires_grad=True)
    stage = PipelineStage(
        layers,
        here,
        stages,
        job.device,
        input_args=letters if here == 0 else hidden,
        output_args=logits if here == stages - 1 else hidden,
        group=pp.get_group(),
    )

    def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_of(logits, targets) / micro_batches

    # A step may have several shards. scale_grads would divide all gradients so far after each of them.
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=loss_fn, scale_grads=False)

    for step in job.steps(args.steps):
        with step:
            for shard in step.shards(args.micro):
                losses: list[torch.Tensor] = []
                inputs, targets = batch(step.index, shard.number, args.batch)
                fed = [inputs.to(job.device)] if stage.is_first else []
                schedule.step(*fed, target=targets.to(job.device), losses=losses, return_outputs=False)
                if stage.is_last:
                    loss = torch.stack(losses).sum()
                    job.log(loss=loss)
            optim.step()
            optim.zero_grad()
            if job.is_primary and (step.index + 1) % 5 == 0:
                print(f"step {step.index + 1:4}  loss {step.values['loss']:.4f}", flush=True)


if __name__ == "__main__":
    understudy.run(train)
