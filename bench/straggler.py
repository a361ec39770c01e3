"""Straggler: one worker becomes slower by a fifth. How soon is it noticed and replaced, and what has it cost?

Four machines with one worker each and a standby, `--steward act --steward-looks 1` (the steward acts at the first look,
not after ten), and steps of 0.4 s: a worker that has computed a micro-shard waits until its time is over, as it would
for an accelerator, so that four workers fit on two cores.

Parts:

- undisturbed: steps while busy processes come and go on the same cores. Every alarm in them is false;
- slowed: from some step on, one worker takes 1.2 times as long for what it computes (an injected delay). `noticed`: the
  steps from there to the alarm. `lost_s`: what all steps from there to the joiner's second one took beyond usual ones,
  with the slow steps and the replacement. `after`: the speed afterwards, divided by the speed before;
- restart: a job under torchrun ends with a checkpoint and restarts, as in `bench replace`: the loss of an operator that
  notices as soon and has a machine at once;
- measuring: what the measurement adds to a worker's step, and to the message that the worker sends after each step.

`efficiency` is that of the hour that begins with the slow-down: `understudy` and `restart` lose time once, `no
action` in every step.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from understudy.host.family import die_with_parent
from understudy.protocol.messages import TO_AGENT
from understudy.protocol.messages import Progress as StepReport
from understudy.protocol.samples import Sample
from understudy.worker.meter import Meter
from understudy_bench.harness.bench import Bench, Check, Progress, Result, interleave, median, spread
from understudy_bench.harness.job import BenchJob, Entry
from understudy_bench.harness.processes import workplace
from understudy_bench.replace import restart
from understudy_bench.scripts import OURS

MACHINES = 4
FACTOR = 1.2
ROUNDS, QUICK = 6, 2
STEPS, QUICK_STEPS = 500, 100
"""Undisturbed steps, in all rounds together."""
WARM_UP = 10
QUIET = 30
"""Steps that give the usual time of one."""
NOTICED_BAR = 20
AFTER_BAR = 0.98
HOUR_S = 3600.0
NOISE = """
import random, sys, time
dice = random.Random(int(sys.argv[1]))
while True:
    end = time.monotonic() + dice.expovariate(1 / 0.4)
    while time.monotonic() < end:
        pass
    time.sleep(dice.expovariate(1 / 1.2))
"""
"""A process that computes for 0.4 s and sleeps for 1.2 s, on average."""


# -- what is computed from what was seen -------------------------------------------------------------------------------


def slowest(metrics: Sequence[Entry]) -> dict[int, float]:
    """Step → seconds of the slowest role."""
    found: dict[int, float] = {}
    for entry in metrics:
        step = int(entry["step"])
        found[step] = max(found.get(step, 0.0), float(entry["seconds"]))
    return found


def beyond(steps: Mapping[int, float], first: int, last: int, usual_s: float) -> float:
    """What the steps from `first` to `last` took beyond usual ones."""
    return sum(steps[step] - usual_s for step in range(first, last + 1) if step in steps)


def hour(lost_s: float) -> float:
    """The share of an hour that remains if so much is lost once."""
    return 1.0 - lost_s / HOUR_S


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    slowed = [row for row in rows if row["part"] == "slowed"]
    restarts = [row["lost_s"] for row in rows if row["part"] == "restart"]
    ours, slow = median(row["lost_s"] for row in slowed), median(row["slow_s"] for row in slowed)
    noticing = median(row["noticing_s"] for row in slowed)
    found: list[dict[str, object]] = [
        {"part": "an hour", "system": "understudy", "lost_s": round(ours, 3), "efficiency": round(hour(ours), 5)}
    ]
    if restarts:
        lost = noticing + median(restarts)
        found.append(
            {"part": "an hour", "system": "restart", "lost_s": round(lost, 3), "efficiency": round(hour(lost), 5)}
        )
    usual = median(row["step_s"] for row in slowed)
    found.append({"part": "an hour", "system": "no action", "efficiency": round(usual / slow, 5)})
    return found


def checks_of(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    slowed = [row for row in rows if row["part"] == "slowed"]
    alarms = sum(row["alarms"] for row in rows if row["part"] == "undisturbed")
    steps = sum(row["steps"] for row in rows if row["part"] == "undisturbed")
    noticed, after = max(row["noticed"] for row in slowed), median(row["after"] for row in slowed)
    lost = median(row["lost_s"] for row in slowed)
    restarts = [row["lost_s"] for row in rows if row["part"] == "restart"]
    ratio = median(restarts) / max(lost, 1e-3)
    right = all(row["blamed"] == row["slow"] for row in slowed)
    (cost,) = [row["us_per_step"] for row in rows if row["part"] == "measuring"]
    share = 1e-6 * cost / median(row["step_s"] for row in slowed)
    return [
        Check("false_alarms", alarms, f"none in {steps} steps", alarms == 0),
        Check("noticed", noticed, f"<= {NOTICED_BAR} steps", noticed <= NOTICED_BAR),
        Check("blamed", "the slow one" if right else "another one", "the slow one", right),
        Check("after", round(after, 3), f">= {AFTER_BAR}", after >= AFTER_BAR),
        Check("ratio_restart", round(ratio, 1), "> 1", ratio > 1),
        Check("measuring", round(share, 6), f"< {METER_BAR} of a step", share < METER_BAR),
    ]


# -- the cost of measuring ---------------------------------------------------------------------------------------------

METER_ROUNDS, METER_STEPS, METER_SHARDS = 15, 400, 4
METER_BAR = 0.001
"""Share of a step that measuring may take."""


def _metered(meter: Meter | None) -> tuple[float, int]:
    """Seconds of an empty step, and bytes of the message after it; None: without measuring."""
    module, given = nn.Identity(), torch.zeros(1)
    if meter is not None:
        meter.watch([module])
    sample: Sample | None = None
    began = time.perf_counter()
    for step in range(METER_STEPS):
        if meter is not None:
            meter.begin(1, step)
        for _ in range(METER_SHARDS):
            if meter is not None:
                meter.shard()
            module(given)
            if meter is not None:
                meter.update()
        if meter is not None:
            sample = meter.end("m0/0", 0, step)
        message = TO_AGENT.encode(StepReport(0, step, 0.4, {"loss": 1.0}, primary=False, sample=sample))
    return (time.perf_counter() - began) / METER_STEPS, len(message)


def measuring_row() -> dict[str, Any]:
    """The cost of measuring a step: the same loop with and without it, by turns."""
    found: dict[str, list[tuple[float, int]]] = {"with": [], "without": []}
    for _, kind in interleave(("with", "without"), METER_ROUNDS):
        found[kind].append(_metered(Meter() if kind == "with" else None))
    took = {kind: median(seconds for seconds, _ in turns) for kind, turns in found.items()}
    return {
        "part": "measuring",
        "us_per_step": round(1e6 * (took["with"] - took["without"]), 1),
        "bytes_per_step": found["with"][0][1] - found["without"][0][1],
    }


# -- the job -----------------------------------------------------------------------------------------------------------


async def _life(number: int, steps: int, folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Train undisturbed steps beside busy processes, then slow a worker down."""
    chance, ours = random.Random(f"straggler {number}"), os.getpid()
    settings = {
        **{"script": OURS, "args": ("--work", "slow"), "name": "bench-straggler", "threads": 1},
        **{
            "machines": MACHINES,
            "standbys": 1,
            "steward": "act",
            "steward_looks": 1,
            "chaos": True,
            "run_dir": str(folder),
        },
    }
    async with BenchJob(settings) as job:
        await job.reach(WARM_UP)
        await job.standby_ready()
        began, first = time.time(), job.step
        with ExitStack() as stack:
            for seed in range(2):
                noise = subprocess.Popen(  # not in a session of its own, to which the kernel might give its own share
                    [sys.executable, "-c", NOISE, str(10 * number + seed)], preexec_fn=lambda: die_with_parent(ours)
                )
                stack.callback(noise.wait)
                stack.callback(noise.kill)
            await job.train(steps)
        alarms = sum(event["kind"] == "straggler" and event["at"] > began for event in job.events)
        undisturbed = {"part": "undisturbed", "round": number, "steps": job.step - first, "alarms": alarms}
        progress.advance(f"undisturbed {number + 1}: {alarms} alarms")
        await job.train(QUIET)
        quiet = slowest(job.metrics())
        usual_s = median(seconds for step, seconds in quiet.items() if step > max(quiet) - QUIET)
        victim = await job.machine_of(chance.randrange(MACHINES))
        since, onset = time.time(), job.step + 1
        await job.slow(victim["name"], victim["workers"][0], FACTOR)
        alarm = await job.event("straggler", since)
        noticed = job.step
        settled = await job.event("settled", since)
        last = job.step + 1
        await job.train(QUIET + 2)
        seen = slowest(job.metrics())
        after_s = median(seconds for step, seconds in seen.items() if last + 1 < step <= last + 1 + QUIET)
        slowed = {
            **{"part": "slowed", "round": number, "slow": victim["name"], "blamed": alarm["data"]["machine"]},
            **{"told": alarm["text"], "noticed": noticed - onset + 1, "step_s": round(usual_s, 4)},
            "slow_s": round(median(seen[step] for step in range(onset + 1, noticed) if step in seen), 4),
            "noticing_s": round(beyond(seen, onset, noticed, usual_s), 4),
            "replaced_after_s": round(settled["at"] - since, 3),
            "lost_s": round(beyond(seen, onset, last, usual_s), 4),
            "after": round(usual_s / after_s, 4),
        }
        await job.stop()
    progress.advance(f"slowed {number + 1}: noticed after {slowed['noticed']} steps")
    return [undisturbed, slowed]


def measure(quick: bool, progress: Progress) -> Result:
    rounds, steps = (QUICK, QUICK_STEPS) if quick else (ROUNDS, STEPS)
    progress.total = 3 * rounds
    rows: list[dict[str, Any]] = [measuring_row()]
    with workplace() as folder:
        for number, kind in interleave(("job", "restart"), rounds):
            place = folder / f"{kind}-{number}"
            if kind == "restart":
                lost_s = restart(place).row["lost_s"]
                assert isinstance(lost_s, float)
                rows.append({"part": "restart", "round": number, "lost_s": round(lost_s, 4)})
                progress.advance(f"restart {number + 1}")
            else:
                rows += asyncio.run(_life(number, -(-steps // rounds), place, progress))
    lost = [row["lost_s"] for row in rows if row["part"] == "slowed"]
    rows.append({"part": "spread of lost_s", "lost_spread": [round(value, 4) for value in spread(lost)]})
    return Result([*rows, *summary(rows)], checks_of(rows))


BENCH = Bench(
    "straggler", "how soon a slow worker is noticed, and what it costs until a standby has replaced it", measure
)
