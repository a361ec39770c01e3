"""The benchmarks' model without understudy: DDP over Gloo, started by torchrun.

For `bench overhead` it trains when the gate is open. For `bench replace` it loads the checkpoint if there is one,
trains `--steps` steps, saves a checkpoint if `--save` is given, and writes the time of each phase to `--marks`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from understudy_bench.scripts.gate import Gate
from understudy_bench.scripts.saved import load, save
from understudy_bench.workload import build, loss_of, optimizer

parser = argparse.ArgumentParser()
parser.add_argument("--gate", default="", help="the benchmark's socket; without it, the script trains without pause")
parser.add_argument("--steps", type=int, default=1 << 40)
parser.add_argument("--checkpoint", type=Path, help="loaded if it exists")
parser.add_argument("--save", action="store_true", help="save a checkpoint at the end")
parser.add_argument("--dcp", action="store_true", help="checkpoints are torch.distributed.checkpoint's")
parser.add_argument("--marks", type=Path, help="the file for the times")
args = parser.parse_args()


def main() -> None:
    marks = [("start", time.time())]

    def mark(name: str) -> None:
        marks.append((name, time.time()))

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mark("join")
    raw = build(0)
    optim = optimizer(raw)
    first = 0 if args.checkpoint is None else load(args.checkpoint, raw, optim, dcp=args.dcp)
    model = DDP(raw)
    mark("build")
    if args.gate:
        from understudy.host.family import die_with_parent

        die_with_parent(os.getppid())  # torchrun may be killed while this worker is stopped
    gate = Gate(args.gate, "plain", rank)
    logged = 0.0
    for step in range(first, first + args.steps):
        if not gate.passes():
            break
        loss = loss_of(model, step, rank)
        loss.backward()
        optim.step()
        optim.zero_grad()
        logged += float(loss.detach())
        gate.passed()
        if args.marks is not None:
            mark("step")
    if args.save:
        save(args.checkpoint, raw, optim, first + args.steps, dcp=args.dcp)
        mark("save")
    if rank == 0 and args.marks is not None:
        args.marks.write_text(json.dumps(marks))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
