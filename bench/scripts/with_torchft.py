"""The benchmarks' model under torchft: a replica group of one worker; the lighthouse connects it with the others.

For benchmarks that kill. As in torchft's own example, a failed step is dropped and training continues with the next
batch; a replica that starts receives its state from another one.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from typing import Any

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from understudy.host.family import die_with_parent
from understudy_bench.scripts.marks import Marks
from understudy_bench.workload import WORKS, optimizer

parser = argparse.ArgumentParser()
parser.add_argument("--marks", default="", help="the folder for marks")
parser.add_argument("--replicas", type=int, required=True)
parser.add_argument("--timeout", type=float, required=True, help="seconds for an operation of the process group")
parser.add_argument("--work", choices=WORKS, default="gpt")
args = parser.parse_args()


def main() -> None:
    die_with_parent(os.getppid())  # a lost machine leaves no worker behind
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    place = int(os.environ["BENCH_PLACE"])
    limit = timedelta(seconds=args.timeout)
    work = WORKS[args.work]
    raw = work.build(0)
    optim = optimizer(raw)

    def state() -> dict[str, Any]:
        return {"model": raw.state_dict(), "optim": optim.state_dict()}

    def load(state: dict[str, Any]) -> None:
        raw.load_state_dict(state["model"])
        optim.load_state_dict(state["optim"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        timeout=limit,
        replica_id=f"replica_{place}",
        hostname="localhost",
        init_sync=False,
    )
    model, optim_ft = DistributedDataParallel(manager, raw), Optimizer(manager, optim)
    marks = Marks(args.marks, place)
    batch = 0
    while True:
        marks.begin(batch)
        optim_ft.zero_grad()
        for number in range(place * work.micro, (place + 1) * work.micro):
            began = time.perf_counter()
            with work.sync(model, number):
                (work.loss(model, batch, number) / work.micro).backward()
            work.rest(began)
            marks.shard(number)
        before = manager.current_step()
        optim_ft.step()
        if manager.current_step() > before:
            marks.end(batch, full=manager.num_participants() == args.replicas)
        else:
            marks.drop(batch)
        batch += 1


if __name__ == "__main__":
    main()
