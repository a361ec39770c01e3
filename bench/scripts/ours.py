"""The benchmarks' model under `understudy run`."""

from __future__ import annotations

import argparse

from torch.nn.parallel import DistributedDataParallel as DDP

import understudy
from understudy_bench.model import build, loss_of, optimizer
from understudy_bench.scripts.gate import Gate
from understudy_bench.scripts.marks import Marks

parser = argparse.ArgumentParser()
parser.add_argument("--gate", default="", help="the benchmark's socket; without it, steps follow one another")
parser.add_argument("--system", default="understudy", help="who this is, for the gate")
parser.add_argument("--marks", default="", help="the folder for what ended when")
args = parser.parse_args()


def train(job: understudy.Job) -> None:
    model = DDP(build(job.seed).to(job.device), process_group=job.mesh["dp"].get_group())
    optim = optimizer(model)
    job.track(model=model, optim=optim)
    gate = Gate(args.gate, args.system, job.role if args.gate else 0)
    marks = Marks("", 0)
    for step in job.steps(1 << 40):
        if not gate.passes():
            return
        counts = False
        if not job.rehearsing:
            marks = marks if marks.open else Marks(args.marks, job.role)  # a standby does not know its role before
            marks.begin(step.index)
        with step:
            for shard in step.shards():
                loss = loss_of(model, step.index, shard.number) * shard.weight
                loss.backward()
            optim.step()
            optim.zero_grad()
            job.log(loss=loss)
            counts = not job.rehearsing  # one that is interrupted does not come here
        gate.passed()
        if counts:
            marks.end(step.index)


if __name__ == "__main__":
    understudy.run(train)
