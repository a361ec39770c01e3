"""The benchmarks' model under torchrun, which restarts it: DDP over Gloo, with a checkpoint every few steps.

For benchmarks that kill. However the job ends, the checkpoint is either the old one or the new one. Saving does not
wait for the disk.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from understudy.host.family import die_with_parent
from understudy_bench.scripts.marks import Marks
from understudy_bench.scripts.saved import load, save
from understudy_bench.workload import WORKS, optimizer

parser = argparse.ArgumentParser()
parser.add_argument("--marks", default="", help="the folder for marks")
parser.add_argument("--checkpoint", type=Path, required=True, help="loaded if it exists")
parser.add_argument("--every", type=int, required=True, help="steps between two checkpoints")
parser.add_argument("--steps", type=int, default=1 << 40, help="number of steps; a checkpoint follows the last one")
parser.add_argument("--dcp", action="store_true", help="checkpoints are torch.distributed.checkpoint's")
parser.add_argument("--work", choices=WORKS, default="gpt")
args = parser.parse_args()


def main() -> None:
    die_with_parent(os.getppid())  # a lost node leaves no worker behind
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    marks = Marks(args.marks, int(os.environ.get("BENCH_PLACE", rank)))
    work = WORKS[args.work]
    raw = work.build(0)
    optim = optimizer(raw)
    step = load(args.checkpoint, raw, optim, dcp=args.dcp)
    model = DDP(raw)
    first = step
    while step < first + args.steps:
        marks.begin(step)
        for number in range(rank * work.micro, (rank + 1) * work.micro):
            began = time.perf_counter()
            with work.sync(model, number):
                (work.loss(model, step, number) / work.micro).backward()
            work.rest(began)
            marks.shard(number)
        optim.step()
        optim.zero_grad()
        marks.end(step)
        step += 1
        if step % args.every == 0 or step == first + args.steps:
            save(args.checkpoint, raw, optim, step, dcp=args.dcp)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
