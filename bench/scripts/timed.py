"""The benchmarks' model with timed steps and a timed start, for `bench rehearsal`."""

from __future__ import annotations

import time

BEGUN = time.time()

import argparse  # noqa: E402 (the time of imports is measured)
import os  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import understudy  # noqa: E402
from understudy_bench.workload import build, loss_of, optimizer  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--compile", default="", help="a backend of torch.compile")
parser.add_argument("--cache", type=Path, help="folder for compiled code, one subfolder per process")
parser.add_argument("--by-hand", action="store_true", help="average gradients without DDP")
parser.add_argument(
    "--rest", type=Path, help="a file with a number: before this step, workers wait while the file exists"
)
args = parser.parse_args()

IMPORTED = time.time()


def process_began() -> float:
    """When the kernel started this process, by the wall clock, to a hundredth of a second."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def rest_before(step: int) -> None:
    while args.rest is not None and args.rest.exists() and step >= int(args.rest.read_text()):
        time.sleep(0.05)


def average(body: torch.nn.Module, group: dist.ProcessGroup) -> None:
    """Average gradients over all replicas in a fixed order.

    DDP fixes its order in its first step, so that a worker that has not rehearsed cannot join the others.
    """
    for parameter in body.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= group.size()


def train(job: understudy.Job) -> None:
    entered = time.time()
    body = build(job.seed).to(job.device)
    if args.compile:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(args.cache / str(os.getpid()))
        for block in body.blocks:  # all run the same code: one graph serves them all
            block.compile(backend=args.compile)
    group = job.mesh["dp"].get_group()
    model = body if args.by_hand else DDP(body, process_group=group)
    optim = optimizer(model)
    job.track(model=model, optim=optim)
    known = {"process_at": process_began(), "begun_at": BEGUN, "imported_at": IMPORTED, "entered_at": entered}
    shadows = 0
    for step in job.steps(1 << 40):
        known.setdefault("built_at", time.time())
        if not job.rehearsing:
            rest_before(step.index)
        began, used = time.perf_counter(), time.process_time()
        with step:
            for shard in step.shards():
                loss = loss_of(model, step.index, shard.number) * shard.weight
                forward = time.perf_counter()
                loss.backward()
                if args.by_hand:
                    average(body, group)
                backward = time.perf_counter()
            optim.step()
            ended, used = time.perf_counter(), time.process_time() - used
            optim.zero_grad()
            if job.rehearsing:
                shadows += 1
                known[f"shadow_{shadows}"] = ended - began
            job.log(
                loss=loss,
                took=ended - began,
                forward=forward - began,
                backward=backward - forward,
                update=ended - backward,
                processor=used,
                graphs=counters["stats"]["unique_graphs"],
                **known,
            )


if __name__ == "__main__":
    understudy.run(train)
