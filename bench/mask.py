"""Mask: what training loses when a replica is killed without warning (kill -9) and the survivors compute its share.

Four replicas, one worker each, six micro-shards per replica and step: DDP on a small model. A micro-shard takes 25 ms:
a worker that has computed it earlier waits, as it would for an accelerator. Otherwise, on a few cores, the survivors
would inherit the dead worker's processor, and training without it would look better than it is. Six, because 24
micro-shards are eight for each of three survivors. If they cannot be divided evenly, the largest share counts: of 16 it
is 6, so that with four per replica at best 0.67 of the speed could remain. DDP synchronises within the last
micro-shard's 25 ms; the runtime's sum in masked steps comes after them and is part of `step_s`.

Contestants:

- masking: `--mask anywhere`, no standby. The dead worker's machine is quarantined (`quarantine = 1`,
  `no_standby = stop`) and readmitted after the survivors have completed some 20 steps, for the next death. So it has no
  time to full strength;
- masking, standby: a standby that has not rehearsed (`warm = 0`) does so while the survivors train, then it joins. With
  a standby that has rehearsed, the runtime weighs a hand-over against masking, and prefers the hand-over of a small
  model;
- recovery: no masking, and a standby that can take any role at once;
- torchft, if it is installed: four replicas, limits as in `bench failure`. The survivors continue with less data, and
  the dead replica's torchrun restarts it;
- torchrun: plain DDP over Gloo on one node, with a checkpoint every 10 steps.

The moment of the death (the end of a step plus a random share of a step) and the place are random, from a fixed seed.
Time is the wall clock, noted just before the kill and by the training scripts at the end of each step.

Columns:

- `stall_s`: from the death to the survivors' next completed step, less an undisturbed step (the median of the 12
  before); of three survivors, the one that waited longest. Negative values: the worker died late in a step that the
  survivors completed. `wait_ratio`: the median time from the death to that step, divided by masking's; stalls
  themselves may be too near to zero.
- `degraded`: micro-shards per second without the dead worker, divided by those before: medians of the first 20 steps
  (at least 10) after the delayed one. Processes that start or rehearse on the same cores slow the survivors down; if
  workers compete for processors, the dead worker's processor speeds them up. torchft's survivors compute no more than
  before: 0.75. None: the survivors did not continue without it.
- `full_strength_s`: from the death to the end of the first step in which all replicas take part again.
- `repeated`: steps that survivors began again, the one in flight included. `recomputed`: micro-shards that a survivor
  computed after another survivor had. With masking there are none, unless the death comes between the last micro-shard
  and the vote: then all of them. For torchrun the step in flight is not known. `dropped`: steps with data that had no
  effect. `restarted`: the survivors' processes were restarted too.

One job runs at a time. Each job has two deaths, and the jobs of all contestants alternate. Each contestant loses 8
workers, one in a quick run. If a place of another system's job stays away for three minutes, the job is ended, and a
row says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from understudy_bench.harness.bench import Bench, Check, Progress, Result, median, rounded, spread
from understudy_bench.kills.contestants import (
    NOT_INSTALLED,
    Loss,
    Size,
    masking,
    recovering,
    refilling,
    torchft,
    torchft_is_installed,
    torchrun_one_node,
)
from understudy_bench.kills.cost import degraded, recomputed
from understudy_bench.kills.kill import Death, Life, around_rows, run_lives, separated

ROUNDS = 4
FOUR = Size(4, "paced")
MASKING, REFILL, RECOVERY = "masking", "masking, standby", "recovery"
TWICE: Sequence[Loss] = ("worker", "worker")
LIVES: Sequence[Life] = (
    Life(MASKING, partial(masking, size=FOUR), TWICE),
    Life(REFILL, partial(refilling, size=FOUR), TWICE),
    Life(RECOVERY, partial(recovering, size=FOUR), TWICE),
    Life("torchft", partial(torchft, size=FOUR), TWICE),
    Life("torchrun", partial(torchrun_one_node, size=FOUR), TWICE),
)
STALL_BAR_S, DEGRADED_BAR = 0.2, 0.95

Row = dict[str, Any]


def row_of(death: Death) -> Row:
    cost = asdict(death.cost)
    share = degraded(death.marks, death.place, death.at)
    if death.system == MASKING:
        cost["full_strength_s"] = None  # the benchmark itself delays it
    values = {**cost, "degraded": share, "recomputed": recomputed(death.marks, death.place, death.at)}
    return {"system": death.system, "round": str(death.round), "place": death.place, **rounded(values)}


def waits(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """System → the median seconds from a death to the survivors' next step."""
    systems = dict.fromkeys(row["system"] for row in rows)
    return {each: median(row["stall_s"] + row["step_s"] for row in rows if row["system"] == each) for each in systems}


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row for all deaths of a contestant: medians and 80 % spreads."""
    found: list[Row] = []
    of = waits(rows)
    for system in of:
        mine = [row for row in rows if row["system"] == system]
        total: Row = {"system": system, "round": f"all {len(mine)}"}
        for column in ("step_s", "stall_s", "full_strength_s", "new_step_s", "repeated", "dropped"):
            total |= _middle(mine, column)
        total["restarted"] = f"{sum(row['restarted'] for row in mine)} of {len(mine)}"
        total |= _middle(mine, "degraded")
        again = [row["recomputed"] for row in mine if row["recomputed"]]
        total["recomputed"] = f"{sum(again)} in {len(again)} of {len(mine)}"
        for column in ("stall_s", "degraded"):
            values = [row[column] for row in mine if row[column] is not None]
            if values:
                total[f"{column.removesuffix('_s')}_spread"] = [round(value, 4) for value in spread(values)]
        if system != MASKING and MASKING in of:
            total["wait_ratio"] = round(of[system] / of[MASKING], 2)
        found.append(total)
    return found


def _middle(rows: Sequence[Mapping[str, Any]], column: str) -> Row:
    values = [row[column] for row in rows if row[column] is not None]
    return {column: round(median(values), 4)} if values else {}


def checks_of(rows: Sequence[Mapping[str, Any]], replicas: int = FOUR.places) -> list[Check]:
    """Masking stalls for less than a step and 0.2 s and keeps the survivors' share of the speed; understudy loses no
    step, and repeats only steps in flight."""
    mine = [row for row in rows if row["system"] == MASKING]
    stall, most = median(row["stall_s"] for row in mine), median(row["step_s"] for row in mine) + STALL_BAR_S
    shares = [row["degraded"] for row in mine if row["degraded"] is not None]
    share, least = median(shares) if shares else 0.0, DEGRADED_BAR * (replicas - 1) / replicas
    ours = [row for row in rows if row["system"] in (MASKING, REFILL, RECOVERY)]
    lost = sum(row["dropped"] + max(row["repeated"] - 1, 0) for row in ours)
    return [
        Check("stall_s", round(stall, 4), f"< {most:.3f}, a step and {STALL_BAR_S:g} s", stall < most),
        Check(
            "degraded",
            round(share, 4),
            f">= {least:.4f}, {DEGRADED_BAR:g} × {replicas - 1}/{replicas}",
            len(shares) == len(mine) and share >= least,
        ),
        Check("steps_lost", lost, "0", lost == 0),
    ]


def measure(quick: bool, progress: Progress) -> Result:
    possible = [life for life in LIVES if life.system != "torchft" or torchft_is_installed()]
    lives = [replace(life, losses=life.losses[:1]) for life in possible] if quick else possible
    deaths, cut_short = separated(run_lives(lives, 1 if quick else ROUNDS, progress))
    rows = [row_of(death) for death in deaths]
    missing: list[Row] = [] if torchft_is_installed() else [{"system": "torchft", "absent": NOT_INSTALLED}]
    return Result([*rows, *summary(rows), *cut_short, *missing, *around_rows(deaths)], checks_of(rows))


BENCH = Bench("mask", "what training loses when the survivors mask a dead replica, and when they do not", measure)
