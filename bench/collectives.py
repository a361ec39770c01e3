"""Collectives: the native transport against Gloo, in the same processes, by turns; and the interruption of one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, TCPStore

from understudy.comm.group import RoleGroup
from understudy.testing.local_workers import LocalWorker, LocalWorkers, first_roster
from understudy_bench.harness.bench import Bench, Check, Progress, Result, interleave, median, spread

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
OTHERS = (1 << 16, 1 << 24)
"""Sizes of the operations other than all_reduce."""
INTERRUPTED = 1 << 16
"""Bytes of the all-reduce that is interrupted."""
_BLOCKED_S = 0.01
"""Seconds after which workers that wait in a collective sleep."""
_SLOWEST_US = 500_000.0
LAYOUTS = {("arena", 2): [2], ("arena", 4): [4], ("tcp", 2): [1, 1], ("tcp", 4): [1, 1, 1, 1]}


def _bar(path: str, size: int) -> float | None:
    """The smallest acceptable ratio gloo/understudy of an all-reduce; None: any."""
    if path == "arena":
        return 2.0 if size <= 1 << 16 else 1.3
    if size >= 1 << 20:
        return 1.0
    return 1 / 1.5 if size == 1 << 12 else None


def _call(group: Any, op: str, size: int) -> Callable[[], None]:
    """One operation on tensors of `size` bytes, called as torch.distributed does."""
    count, world = size // 4, group.size()
    whole, part = torch.rand(count), torch.rand(count // world)
    if op == "all_reduce":
        reduce_options = dist.AllreduceOptions()
        reduce_options.asyncOp = False
        return lambda: _wait(group.allreduce([whole], reduce_options))
    if op == "all_gather":
        gather_options = AllgatherOptions()
        gather_options.asyncOp = False
        return lambda: _wait(group._allgather_base(whole, part, gather_options))
    if op == "reduce_scatter":
        scatter_options = dist.ReduceScatterOptions()
        scatter_options.asyncOp = False
        return lambda: _wait(group._reduce_scatter_base(part, whole, scatter_options))
    root_options = dist.BroadcastOptions()
    root_options.asyncOp = False
    return lambda: _wait(group.broadcast([whole], root_options))


def _wait(work: Any) -> None:
    work.wait()


def _measure(worker: LocalWorker, port: int, plan: list[tuple[str, int, int, int]]) -> None:
    """Run the plan of (operation, bytes, rounds, repetitions); role 0 reports the times."""
    worker.enter(worker.hear())
    role, roster = worker.fabric.role, worker.fabric.roster
    assert role is not None
    assert roster is not None
    world = len(roster.seats)
    store = TCPStore("127.0.0.1", port, world, is_master=False, timeout=timedelta(seconds=60))
    groups = {
        "understudy": RoleGroup(worker.fabric.group(range(world))),
        "gloo": dist.ProcessGroupGloo(store, role, world, timedelta(seconds=120)),
    }
    for op, size, rounds, repetitions in plan:
        calls = {name: _call(group, op, size) for name, group in groups.items()}
        for call in calls.values():
            call()
        times: dict[str, list[float]] = {name: [] for name in groups}
        for _, name in interleave(list(groups), rounds):
            call = calls[name]
            call()  # a barrier: no worker is still in the other contestant's turn
            start = time.perf_counter()
            for _ in range(repetitions):
                call()
            times[name].append((time.perf_counter() - start) / repetitions * 1e6)
        if role == 0:
            worker.tell(times)
    if worker.fabric.fault is not None:
        raise RuntimeError(str(worker.fabric.fault))


def _measure_interrupts(worker: LocalWorker, rounds: int) -> None:
    """Role 0 interrupts an all-reduce in which all others wait; each worker reports when that was, or its return.

    The clock is the same in all processes of a computer."""
    roster = worker.hear()
    worker.enter(roster)
    call = _call(RoleGroup(worker.fabric.group(range(len(roster.seats)))), "all_reduce", INTERRUPTED)
    for _ in range(rounds):
        call()  # a barrier: all workers have entered the generation
        if worker.fabric.role == 0:
            time.sleep(_BLOCKED_S)
            at = time.monotonic()
            worker.fabric.interrupt("a benchmark")
        else:
            call()
            at = time.monotonic()
        worker.tell(at)
        worker.enter(worker.hear())


def _interrupts(path: str, machines: list[int], rounds: int) -> tuple[dict[str, object], Check]:
    """Microseconds from an interrupt until the last of the waiting workers has returned."""
    with LocalWorkers() as started:
        handles = [
            handle
            for number, count in enumerate(machines)
            for handle in started.start(f"m{number}", count, _measure_interrupts, rounds)
        ]
        roster, times = first_roster(handles), []
        for handle in handles:
            handle.tell(roster)
        for _ in range(rounds):
            began, *returned = [handle.hear(60.0) for handle in handles]
            times.append((max(returned) - began) * 1e6)
            roster = roster.successor({}, fresh=True)
            for handle in handles:
                handle.tell(roster)
        for handle in handles:
            handle.result()
    row: dict[str, object] = {
        "op": "interrupt",
        "path": path,
        "workers": len(handles),
        "bytes": INTERRUPTED,
        "understudy_us": round(median(times), 1),
        "understudy_spread": [round(value, 1) for value in spread(times)],
    }
    name = f"interrupt_{path}_{len(handles)}"
    return row, Check(name, round(median(times), 1), f"<= {_SLOWEST_US:g} µs", median(times) <= _SLOWEST_US)


def _plan(quick: bool) -> list[tuple[str, int, int, int]]:
    def rounds(size: int) -> tuple[int, int]:
        turns, repetitions = {1 << 12: (21, 60), 1 << 16: (21, 60), 1 << 20: (21, 20)}.get(size, (61, 1))
        return math.ceil(turns * (0.25 if quick else 1)), math.ceil(repetitions * (0.5 if quick else 1))

    plan = [("all_reduce", size, *rounds(size)) for size in SIZES]
    if not quick:
        plan += [(op, size, *rounds(size)) for op in ("all_gather", "reduce_scatter", "broadcast") for size in OTHERS]
    return plan


def measure(quick: bool, progress: Progress) -> Result:
    plan = _plan(quick)
    progress.total = len(LAYOUTS) * (len(plan) + 1)
    rows: list[dict[str, object]] = []
    checks: list[Check] = []
    for (path, workers), machines in LAYOUTS.items():
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with LocalWorkers() as started:
            handles = [
                handle
                for number, count in enumerate(machines)
                for handle in started.start(f"m{number}", count, _measure, store.port, plan)
            ]
            roster = first_roster(handles)
            for handle in handles:
                handle.tell(roster)
            for op, size, _, _ in plan:
                times = handles[0].hear(180.0)
                ours, gloo = times["understudy"], times["gloo"]
                ratio = median(gloo) / median(ours)
                rows.append(
                    {
                        "op": op,
                        "path": path,
                        "workers": workers,
                        "bytes": size,
                        "understudy_us": round(median(ours), 1),
                        "understudy_spread": [round(value, 1) for value in spread(ours)],
                        "gloo_us": round(median(gloo), 1),
                        "gloo_spread": [round(value, 1) for value in spread(gloo)],
                        "ratio": round(ratio, 3),
                        "ratio_spread": [round(v, 2) for v in spread(g / o for g, o in zip(gloo, ours, strict=True))],
                    }
                )
                bar = _bar(path, size) if op == "all_reduce" else None
                if bar is not None:
                    name = f"{path}_{workers}_{size}"
                    checks.append(Check(name, round(ratio, 3), f">= {bar:.3g} times Gloo", ratio >= bar))
                progress.advance(f"{op} of {size} bytes, {workers} workers, {path}")
            for handle in handles:
                handle.result()
        row, check = _interrupts(path, machines, 20 if quick else 100)
        rows.append(row)
        checks.append(check)
        progress.advance(f"interrupts, {workers} workers, {path}")
    return Result(rows, checks)


BENCH = Bench(
    "collectives", "the native transport's collectives against Gloo's, and how soon an interrupt ends one", measure
)
