"""Straggler: one worker becomes slower by a fifth. How soon it is noticed, by whom it is replaced, what it has cost.

Four machines with a worker each and a standby, `--steward act --steward-looks 1` (it acts at the first look, not after
ten), and steps of 0.4 s: a worker that has computed a micro-shard waits until its time is over, as it would for an
accelerator, so that four fit on two cores.

- undisturbed: so many steps while busy processes come and go on the same cores; every alarm in them is a false one.
- slowed: from some step on, one worker takes 1.2 times as long for what it computes (an injected delay). `noticed` are
  the steps from there to the alarm; `lost_s` is what all steps from there to the newcomer's second one took beyond
  usual ones: the slow steps, the replacement, everything; `after` is the speed afterwards, of that before.
- restart: a job under torchrun is ended with a checkpoint and started again, as in `bench replace`: what somebody loses
  who notices as soon, and has a machine at once.
- measuring: what it takes of a worker's step to measure it (`bench/measuring.py`), and by how much that makes the
  message longer that it sends after each step anyway.

`efficiency` is of the hour that begins with the slow-down: what is lost once, and for `nobody acts` all the time.
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

from understudy.host.family import die_with_parent
from understudy_bench import measuring
from understudy_bench.harness import Bench, Check, Progress, Result, interleave, median, spread
from understudy_bench.processes import workplace
from understudy_bench.replace import restart
from understudy_bench.running import Entry, Running
from understudy_bench.scripts import OURS

MACHINES = 4
FACTOR = 1.2
ROUNDS, QUICK = 6, 2
STEPS, QUICK_STEPS = 500, 100
"""Undisturbed, in all lives together."""
WARM_UP = 10
QUIET = 30
"""Steps by which it is known how long one takes."""
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
"""Half a core for a moment, now and then."""


# -- what is computed from what was seen -------------------------------------------------------------------------------


def ends_of(metrics: Sequence[Entry]) -> dict[int, float]:
    """Step → its seconds, of the role for which it took longest."""
    found: dict[int, float] = {}
    for entry in metrics:
        step = int(entry["step"])
        found[step] = max(found.get(step, 0.0), float(entry["seconds"]))
    return found


def beyond(steps: Mapping[int, float], first: int, last: int, usual_s: float) -> float:
    """What these steps took beyond usual ones."""
    return sum(steps[step] - usual_s for step in range(first, last + 1) if step in steps)


def hour(lost_s: float) -> float:
    """Of an hour, what is left where so much is lost once."""
    return 1.0 - lost_s / HOUR_S


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    slowed = [row for row in rows if row["part"] == "slowed"]
    restarts = [row["lost_s"] for row in rows if row["part"] == "restart"]
    ours, slow = median(row["lost_s"] for row in slowed), median(row["slow_s"] for row in slowed)
    noticing = median(row["noticing_s"] for row in slowed)
    found: list[dict[str, object]] = [
        {"part": "an hour", "who": "understudy", "lost_s": round(ours, 3), "efficiency": round(hour(ours), 5)}
    ]
    if restarts:
        lost = noticing + median(restarts)
        found.append(
            {"part": "an hour", "who": "restart", "lost_s": round(lost, 3), "efficiency": round(hour(lost), 5)}
        )
    usual = median(row["step_s"] for row in slowed)
    found.append({"part": "an hour", "who": "nobody acts", "efficiency": round(usual / slow, 5)})
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
        Check("blamed", "the slow one" if right else "somebody else", "the slow one", right),
        Check("after", round(after, 3), f">= {AFTER_BAR}", after >= AFTER_BAR),
        Check("ratio_restart", round(ratio, 1), "> 1", ratio > 1),
        Check("measuring", round(share, 6), f"< {measuring.BAR} of a step", share < measuring.BAR),
    ]


# -- the job -----------------------------------------------------------------------------------------------------------


async def _life(number: int, steps: int, folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Undisturbed steps beside busy processes, then a worker becomes slow."""
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
    async with Running(settings) as job:
        await job.reach(WARM_UP)
        await job.standby_ready()
        began, first = time.time(), job.step
        with ExitStack() as stack:
            for seed in range(2):
                noise = subprocess.Popen(  # no session of its own, which the kernel might give a share of its own
                    [sys.executable, "-c", NOISE, str(10 * number + seed)], preexec_fn=lambda: die_with_parent(ours)
                )
                stack.callback(noise.wait)
                stack.callback(noise.kill)
            await job.train(steps)
        alarms = sum(event["kind"] == "straggler" and event["at"] > began for event in job.events)
        undisturbed = {"part": "undisturbed", "round": number, "steps": job.step - first, "alarms": alarms}
        progress.advance(f"undisturbed {number + 1}: {alarms} alarms")
        await job.train(QUIET)
        quiet = ends_of(job.metrics())
        usual_s = median(seconds for step, seconds in quiet.items() if step > max(quiet) - QUIET)
        victim = await job.player(chance.randrange(MACHINES))
        since, onset = time.time(), job.step + 1
        await job.slow(victim["name"], victim["workers"][0], FACTOR)
        alarm = await job.event("straggler", since)
        noticed = job.step
        settled = await job.event("settled", since)
        last = job.step + 1
        await job.train(QUIET + 2)
        seen = ends_of(job.metrics())
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
    rows: list[dict[str, Any]] = [measuring.row()]
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
    "straggler", "how soon a slow worker is noticed, and what it costs until a standby has its place", measure
)
