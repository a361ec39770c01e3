"""Mask: what training loses when a replica is killed without warning (kill -9) and the others stand in for it.

Four replicas, one worker each, six micro-shards a replica and step: DDP on a small model, and a worker that has
computed a micro-shard waits until 25 ms are over, as it would for an accelerator. On a few cores the survivors would
otherwise inherit the dead one's processor, and training without it would look better than it is. Six, because 24
micro-shards are eight for each of three survivors; where they cannot be shared out evenly the largest share counts (of
16 it is 6, so that four a replica could at best keep 0.67 of the speed). Where DDP synchronises by itself, it does so
within the last micro-shard's 25 ms; the runtime's sum in masked steps comes after them and is seen in `step_s`.

- masking: `--mask anywhere`, no standby. The dead one's machine is put aside (`quarantine = 1`, `no_standby = stop`)
  and let in again when the others have made some 20 steps without it, for the next death; so there is no time to full
  strength;
- masking, standby: a standby that has not rehearsed (`warm = 0`) does so while the others go on, then it joins them.
  Where one has, the runtime itself weighs a hand-over against masking, and with a small model prefers the former;
- recovery: no masking, and a standby that could take any role at once;
- torchft, where it is installed: four replicas, limits as in `bench failure`. The others go on with less data, and the
  dead one's torchrun starts it again;
- torchrun: plain DDP over Gloo on one node, with a checkpoint every 10 steps.

The moment is random: some step's end and a random share of a step more, from a fixed seed, and so is who dies. Time is
the wall clock, noted just before the kill and by the training scripts at the end of each step.

- `stall_s`: from the death to the survivors' next completed step, less an undisturbed one (median of the 12 before): of
  the three, the one that waited longest. It may be less than nothing where the death came late in a step.
  `wait_ratio`: the median time from the death to that step, of masking's; stalls themselves may be too near to zero.
- `degraded`: micro-shards per second without the dead one, of those before: medians of the first 20 steps, at least
  10, after the one that the death delayed. What is started or rehearses beside them on the same cores slows them down,
  and if they still fight for processors, the dead one's flatter them: torchft, whose survivors compute no more than
  before, has 0.75 where they do not. None: the others did not go on without it.
- `full_strength_s`: from the death to the end of the first step in which everybody takes part again.
- `repeated`: steps that survivors began again, the one in flight included. `recomputed`: micro-shards that survivors
  computed although one of them had done so before. With masking these are none, except where the death comes between
  the last micro-shard and the vote: then it is all of them. torchrun's are not asked about the step in flight.
  `dropped`: steps whose data never had any effect. `restarted`: the survivors' processes were started again, too.

Only one job runs at a time. Each lives for two deaths, and the lives of all contestants alternate; each contestant
loses 8 workers, one in a quick run. A job of another system in which somebody stays away for three minutes is ended,
and a row says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from understudy_bench.harness import Bench, Check, Progress, Result, median, rounded, spread
from understudy_bench.outage import degraded, recomputed
from understudy_bench.strike import Death, Life, around_rows, play, told
from understudy_bench.struck import (
    NOT_INSTALLED,
    Loss,
    Masked,
    Refilled,
    Size,
    Torchft,
    Torchrun,
    Understudy,
    torchft_is_installed,
)

ROUNDS = 4
FOUR = Size(4, "paced")
MASKING, REFILL, RECOVERY = "masking", "masking, standby", "recovery"
TWICE: Sequence[Loss] = ("worker", "worker")
LIVES: Sequence[Life] = (
    (MASKING, partial(Masked, size=FOUR), TWICE),
    (REFILL, partial(Refilled, size=FOUR), TWICE),
    (RECOVERY, partial(Understudy, size=FOUR), TWICE),
    ("torchft", partial(Torchft, size=FOUR), TWICE),
    ("torchrun", partial(Torchrun, size=FOUR), TWICE),
)
STALL_BAR_S, DEGRADED_BAR = 0.2, 0.95

Row = dict[str, Any]


def row_of(death: Death) -> Row:
    seen = asdict(death.seen)
    share = degraded(death.marks, death.place, death.at)
    if death.system == MASKING:
        seen["full_strength_s"] = None  # the benchmark has held it back
    values = {**seen, "degraded": share, "recomputed": recomputed(death.marks, death.place, death.at)}
    return {"system": death.system, "round": str(death.round), "place": death.place, **rounded(values)}


def waits(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By system, the median time from a death to the survivors' next step."""
    systems = dict.fromkeys(row["system"] for row in rows)
    return {each: median(row["stall_s"] + row["step_s"] for row in rows if row["system"] == each) for each in systems}


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for all deaths of a contestant: medians, and where most of them lie."""
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
    """Masking stalls for less than a step and a bit, and loses no more speed than its replica was worth; of
    understudy's steps none is lost, and only those in flight are begun again."""
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
    every = [(system, start, losses[:1] if quick else losses) for system, start, losses in LIVES]
    lives = [life for life in every if life[0] != "torchft" or torchft_is_installed()]
    deaths, cut_short = told(play(lives, 1 if quick else ROUNDS, progress))
    rows = [row_of(death) for death in deaths]
    missing: list[Row] = [] if torchft_is_installed() else [{"system": "torchft", "round": NOT_INSTALLED}]
    return Result([*rows, *summary(rows), *cut_short, *missing, *around_rows(deaths)], checks_of(rows))


BENCH = Bench("mask", "what training loses when others stand in for a dead replica, and when they do not", measure)
