"""What survivors' gradients take of memory and time while nothing happens, for each `--keep-gradients`.

Two replicas of a model of 2.1 million parameters, four micro-shards each and step: one job for each setting, one after
the other. Activations are small here, so that gradients are most of what comes and goes within a step.

- `peak_mb`: the peak of a worker's resident memory (`resident.py`) over some steps, the median of both;
- `sets`: how many sets of gradients it is above that of `none`;
- `step_ms`: the median step. On a few cores it says little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy_bench.harness import Check, median
from understudy_bench.memory import ENV
from understudy_bench.resident import PERIOD_S, Sampler, Watched
from understudy_bench.running import Running
from understudy_bench.scripts import OURS
from understudy_bench.work import WORKS

SETTINGS = ("none", "own", "copy")
WORK = "hurried"
WARM_UP, STEPS = 5, 20
BARS = {"own": 0.1, "copy": 1.1}
"""Sets of gradients, at most."""

Row = dict[str, Any]


def gradient_bytes() -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in WORKS[WORK].build(0).parameters())


def rows_of(peaks: Mapping[str, float], steps: Mapping[str, float], gradients: int) -> list[Row]:
    """By setting: bytes at the peak, and seconds of a step."""
    return [
        {
            "part": "kept gradients",
            "keep": keep,
            "gradients_mb": round(gradients / 1e6, 2),
            "peak_mb": round(peaks[keep] / 1e6, 2),
            "sets": round((peaks[keep] - peaks["none"]) / gradients, 3),
            "step_ms": round(1e3 * steps[keep], 2),
        }
        for keep in SETTINGS
    ]


def checks_of(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    sets = {row["keep"]: row["sets"] for row in rows}
    return [Check(f"kept_{keep}", sets[keep], f"<= {bar} sets", sets[keep] <= bar) for keep, bar in BARS.items()]


async def _train(keep: str, folder: Path) -> tuple[float, float]:
    """The peak in bytes and the usual step in seconds."""
    settings = {"script": OURS, "args": ("--work", WORK), "name": "bench-keeping", "machines": 2, "threads": 1}
    masking = {"mask": "anywhere", "keep_gradients": keep, "heartbeat": 20.0}
    async with Running({**settings, **masking, "env": ENV, "run_dir": str(folder)}) as job:
        await job.reach(WARM_UP)
        watched = [Watched(keep, machine["pids"][0]) for machine in await job.machines()]
        with Sampler(watched) as sampler:
            sampler.window()
            first = job.step
            await job.train(STEPS)
            await asyncio.sleep(2 * PERIOD_S)
            seen = sampler.window()
        seconds = [entry["seconds"] for entry in job.metrics() if entry["step"] > first]
        await job.stop()
    return median(each.own_peak for each in seen.values()), median(seconds)


async def weigh(folder: Path, done: Callable[[str], None]) -> list[Row]:
    """A row for each setting."""
    peaks, steps = {}, {}
    for keep in SETTINGS:
        peaks[keep], steps[keep] = await _train(keep, folder / keep)
        done(f"keeping {keep}")
    return rows_of(peaks, steps, gradient_bytes())
