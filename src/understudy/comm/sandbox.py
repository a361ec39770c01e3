"""Where results come from while a worker rehearses: no socket, no arena, nobody else."""

from __future__ import annotations

from typing import Protocol

import torch.distributed as dist

from .ops import Op
from .pairs import Receive, Send


class Sandbox(Protocol):
    """Answers operations in place of the other roles."""

    def run(self, op: Op, rank: int, size: int) -> None: ...

    def post(self, *jobs: Send | Receive) -> None: ...


class Echo:
    """Answers as though every other role had sent what this role sends: values stay in a plausible range."""

    def run(self, op: Op, rank: int, size: int) -> None:
        fold = op.reduction
        if op.kind in ("all_reduce", "reduce"):
            assert fold is not None
            if fold.kind == dist.ReduceOp.SUM:
                op.outputs[0].mul_(size)
        elif op.kind == "reduce_scatter":
            assert fold is not None
            op.outputs[0].copy_(op.inputs[rank])
            if fold.kind == dist.ReduceOp.SUM:
                op.outputs[0].mul_(size)
        elif op.kind in ("all_gather", "gather"):
            for out in op.outputs:
                out.copy_(op.inputs[0])
        elif op.kind == "scatter":
            if op.inputs:
                op.outputs[0].copy_(op.inputs[rank])
            else:
                op.outputs[0].zero_()
        elif op.kind == "all_to_all":
            for out, sent in zip(op.outputs, op.inputs, strict=True):
                count = min(out.numel(), sent.numel())
                out.zero_()
                out[:count].copy_(sent[:count])

    def post(self, *jobs: Send | Receive) -> None:
        for job in jobs:
            if isinstance(job, Receive):
                job.tensor.fill_(1)  # torch's pipeline asks by messages whether all shapes are known: 1 is yes
            job.done.set()
