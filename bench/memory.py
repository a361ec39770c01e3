"""Memory: what a planned replacement takes on the machines that train, beyond what training takes; and the cost of
`--keep-gradients`.

A replacement: a job of three replicas of a GPT with ten million parameters, one of which is replaced, several times.
The processes are the two stayers, the leaver and the joiner; peaks are those of each worker's resident memory.

- `steady_mb`: the peak over undisturbed steps: before the change; for a joiner, after it;
- `peak_mb`: the peak from the request to a few steps after the joiner's first one;
- `growth`: the difference, divided by the size of the state (parameters and the optimizer's two moments).

The JSON has the curve of each worker from before the request until after the change, a point every 20 ms, with the
times of the phases.

Kept gradients: two replicas of a model of 2.1 million parameters, four micro-shards each per step; one job for each
`--keep-gradients`. Activations are small, so that gradients are most of the memory that comes and goes within a step.

- `peak_mb`: the peak of a worker's resident memory over some steps, the median of both workers;
- `sets`: by how many sets of gradients the peak exceeds that of `none`;
- `step_ms`: the median step. On a few cores it says little.

The allocator returns large blocks to the kernel at once here, as in `bench rehearsal`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy_bench import workload
from understudy_bench.harness.bench import Bench, Check, Progress, Result, median, spread
from understudy_bench.harness.job import BenchJob
from understudy_bench.harness.memory import PERIOD_S, RETURN_FREED, Resident, Sampler, WatchedProcess
from understudy_bench.harness.processes import workplace
from understudy_bench.scripts import OURS
from understudy_bench.workload import WORKS

Row = dict[str, Any]


# -- a replacement: figures --------------------------------------------------------------------------------------------

MACHINES = 3
WARM_UP = 8
STEADY = 15
"""Undisturbed steps of a window."""
AFTER = 6
"""Steps after the change that still belong to it."""
ROUNDS, QUICK_ROUNDS = 5, 1
BAR = 0.01
PARTS = ("stayer", "leaver", "joiner")


def row_of(part: str, number: int, steady: Resident, change: Resident, state: int) -> Row:
    growth = change.own_peak - steady.own_peak
    return {
        "part": "a replacement",
        "worker": part,
        "round": number,
        "steady_mb": round(steady.own_peak / 1e6, 2),
        "peak_mb": round(change.own_peak / 1e6, 2),
        "growth_mb": round(growth / 1e6, 3),
        "growth": round(growth / state, 5),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row each for stayers, leavers and joiners: medians and 80 % spreads."""
    found: list[Row] = []
    for part in PARTS:
        mine = [row for row in rows if row["worker"] == part]
        total: Row = {"part": "a replacement", "worker": part, "round": f"all {len(mine)}"}
        for name in ("steady_mb", "peak_mb", "growth_mb", "growth"):
            total[name] = round(median(row[name] for row in mine), 5)
        found.append({**total, "growth_spread": [round(value, 5) for value in spread(row["growth"] for row in mine)]})
    return found


def checks_of(summed: Sequence[Mapping[str, Any]]) -> list[Check]:
    growth = {row["worker"]: row["growth"] for row in summed}
    return [
        Check("stayer_growth", growth["stayer"], f"< {BAR} of the state", growth["stayer"] < BAR),
        Check("leaver_growth", growth["leaver"], "any", True),
        Check("joiner_growth", growth["joiner"], "any", True),
    ]


def state_bytes() -> int:
    """Bytes of the parameters and of two moments for each."""
    return 3 * sum(parameter.numel() * parameter.element_size() for parameter in workload.build(0).parameters())


# -- a replacement: the job --------------------------------------------------------------------------------------------


async def _replace(job: BenchJob, number: int, state: int) -> list[Row]:
    standby = await job.new_standby(range(MACHINES), idle=True)
    training = [machine for machine in await job.machines() if machine["roles"]]
    leaver = next(machine for machine in training if number % MACHINES in machine["roles"])
    watched = [
        *(WatchedProcess("stayer", machine["pids"][0]) for machine in training if machine is not leaver),
        WatchedProcess("leaver", leaver["pids"][0]),
        WatchedProcess("joiner", standby["pids"][0]),
    ]
    with Sampler(watched) as sampler:
        sampler.window()
        await job.train(STEADY)
        steady = sampler.window()
        asked = time.time()
        answer = await job.replace([leaver["name"]], [standby["name"]])
        done = time.time()
        await job.train(AFTER)
        await asyncio.sleep(2 * PERIOD_S)
        change = sampler.window()
        await job.train(STEADY)
        await asyncio.sleep(2 * PERIOD_S)
        later = sampler.window()
    rows = []
    for each in watched:
        usual = later if each.part == "joiner" else steady
        row = row_of(each.part, number, usual[each.pid], change[each.pid], state)
        marks = {"asked": asked, "settled": done}
        rows.append({**row, "phases": answer["phases"], "curve": each.curve(asked, marks)})
    return rows


async def _replacements(rounds: int, folder: Path, state: int, done: Callable[[str], None]) -> list[Row]:
    settings = {"script": OURS, "name": "bench-memory", "machines": MACHINES, "threads": 1, "env": RETURN_FREED}
    rows: list[Row] = []
    async with BenchJob({**settings, "heartbeat": 20.0, "run_dir": str(folder)}) as job:
        await job.reach(WARM_UP)
        for number in range(rounds):
            found = await _replace(job, number, state)
            rows += found
            done(f"replacement {number + 1}: stayers {max(row['growth_mb'] for row in found[:-2]):+.2f} MB")
        await job.stop()
    return rows


# -- kept gradients ----------------------------------------------------------------------------------------------------

KEEP_SETTINGS = ("none", "own", "copy")
KEEP_WORK = "hurried"
KEEP_WARM_UP, KEEP_STEPS = 5, 20
KEEP_BARS = {"own": 0.1, "copy": 1.1}
"""Sets of gradients, at most."""


def gradient_bytes() -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in WORKS[KEEP_WORK].build(0).parameters())


def kept_rows(peaks: Mapping[str, float], steps: Mapping[str, float], gradients: int) -> list[Row]:
    """One row for each setting, from its peak in bytes and the seconds of its step."""
    return [
        {
            "part": "kept gradients",
            "keep": keep,
            "gradients_mb": round(gradients / 1e6, 2),
            "peak_mb": round(peaks[keep] / 1e6, 2),
            "sets": round((peaks[keep] - peaks["none"]) / gradients, 3),
            "step_ms": round(1e3 * steps[keep], 2),
        }
        for keep in KEEP_SETTINGS
    ]


def kept_checks(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    sets = {row["keep"]: row["sets"] for row in rows}
    return [Check(f"kept_{keep}", sets[keep], f"<= {bar} sets", sets[keep] <= bar) for keep, bar in KEEP_BARS.items()]


async def _keep(keep: str, folder: Path) -> tuple[float, float]:
    """Train with a setting. Returns the peak in bytes and the seconds of a usual step."""
    settings = {"script": OURS, "args": ("--work", KEEP_WORK), "name": "bench-keeping", "machines": 2, "threads": 1}
    masking = {"mask": "anywhere", "keep_gradients": keep, "heartbeat": 20.0}
    async with BenchJob({**settings, **masking, "env": RETURN_FREED, "run_dir": str(folder)}) as job:
        await job.reach(KEEP_WARM_UP)
        watched = [WatchedProcess(keep, machine["pids"][0]) for machine in await job.machines()]
        with Sampler(watched) as sampler:
            sampler.window()
            first = job.step
            await job.train(KEEP_STEPS)
            await asyncio.sleep(2 * PERIOD_S)
            seen = sampler.window()
        seconds = [entry["seconds"] for entry in job.metrics() if entry["step"] > first]
        await job.stop()
    return median(each.own_peak for each in seen.values()), median(seconds)


async def _kept(folder: Path, done: Callable[[str], None]) -> list[Row]:
    peaks, steps = {}, {}
    for keep in KEEP_SETTINGS:
        peaks[keep], steps[keep] = await _keep(keep, folder / keep)
        done(f"keeping {keep}")
    return kept_rows(peaks, steps, gradient_bytes())


def measure(quick: bool, progress: Progress) -> Result:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    progress.total = rounds + len(KEEP_SETTINGS)
    state = state_bytes()
    with workplace() as folder:
        rows = asyncio.run(_replacements(rounds, folder / "run", state, progress.advance))
        kept = asyncio.run(_kept(folder, progress.advance))
    summed = summary(rows)
    size: Row = {"part": "state", "parameters_and_moments_mb": round(state / 1e6, 2)}
    return Result([size, *rows, *summed, *kept], [*checks_of(summed), *kept_checks(kept)])


BENCH = Bench("memory", "what a replacement takes of memory on stayers, leaver and joiner, and kept gradients", measure)
