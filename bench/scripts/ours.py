"""The benchmarks' model under `understudy run`."""

from __future__ import annotations

import argparse
import time

from torch.nn.parallel import DistributedDataParallel as DDP

import understudy
from understudy_bench.scripts.gate import Gate
from understudy_bench.scripts.links import pace
from understudy_bench.scripts.marks import Marks
from understudy_bench.workload import WORKS, optimizer

parser = argparse.ArgumentParser()
parser.add_argument("--gate", default="", help="the benchmark's socket; without it, the script trains without pause")
parser.add_argument("--system", default="understudy", help="this contestant's name at the gate")
parser.add_argument("--marks", default="", help="the folder for marks")
parser.add_argument("--work", choices=WORKS, default="gpt")
parser.add_argument("--link-rate", type=int, default=0, help="bytes per second of a link for state; 0: unlimited")
args = parser.parse_args()
if args.link_rate:
    pace(args.link_rate)


def train(job: understudy.Job) -> None:
    work = WORKS[args.work]
    model = DDP(work.build(job.seed).to(job.device), process_group=job.mesh["dp"].get_group())
    optim = optimizer(model)
    job.track(model=model, optim=optim)
    gate = Gate(args.gate, args.system, job.role if args.gate else 0)
    marks = Marks("", 0)
    for step in job.steps(1 << 40):
        if not gate.passes():
            return
        counts = False
        if not job.rehearsing:
            marks = marks if marks.open else Marks(args.marks, job.role)  # a standby has no role before
            marks.begin(step.index)
        with step:
            for shard in step.shards(work.micro):
                began = time.perf_counter()
                with work.sync(model, shard.number):
                    loss = work.loss(model, step.index, shard.number)
                    (loss * shard.weight).backward()
                job.log(loss=loss)
                work.rest(began)
                marks.shard(shard.number)
            optim.step()
            optim.zero_grad()
            counts = not job.rehearsing  # an interrupted step does not reach this line
        gate.passed()
        if counts:
            marks.end(step.index)


if __name__ == "__main__":
    understudy.run(train)
