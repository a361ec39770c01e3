"""Failure: what training loses when a worker, or a whole machine, is killed without warning (kill -9).

Contestants:

- understudy: two machines with one worker each, and a standby that can take either role at once. A machine with a dead
  worker becomes the next standby; a machine that died comes back;
- torchrun: plain DDP over Gloo with a checkpoint every 10 steps. A worker is lost on one node with two workers, the
  best case for torchrun; a machine is one of two nodes. The node with the rendezvous is spared: its loss ends the job;
- torchrun, DCP: the loss of a worker, with checkpoints by torch.distributed.checkpoint;
- torchrun, every step: the loss of a worker, with a checkpoint after each step, which slows down every step;
- torchft, if it is installed: two replicas with short limits (heartbeat 1 s, process group 2 s, the lighthouse checks
  every 50 ms and waits 300 ms for replicas that are alive and late).

A worker is one process. A machine is its agent and all descendants. All run on this computer: the kernel closes a dead
machine's connections at once, for all contestants alike, and understudy's launcher sees its agent end. A machine that
loses power would be noticed only by its silence. torchrun and torchft do not fill a lost machine's place themselves:
the benchmark starts one right after the death, as a scheduler that needs no time would. torchrun's limit for a silent
node is 2 s here, not its default of 15 s.

The moment of the death (the end of a step plus a random share of a step) and the place are random, from a fixed seed.
Time is the wall clock, noted just before the kill and by the training scripts at the end of each step.

Columns:

- `stall_s`: from the death to the survivors' next completed step, less an undisturbed step (the median of the 12
  before). If a step that needs nothing more from the dead worker ends undisturbed, the step after it counts.
- `full_strength_s`: from the death to the end of the first step in which all places take part again.
- `new_step_s`: from the death to the end of the first step that had not been completed before.
- `repeated`: steps that survivors began again, the one in flight included. `dropped`: steps with data that had no
  effect. `restarted`: the survivors' processes were restarted too.

One job runs at a time. Each job has a few deaths, and the jobs of all contestants alternate. Each contestant loses 10
workers and 5 machines; those with DCP and with a checkpoint after every step lose no machines. A quick run has 2 and 1,
and one worker for each torchrun contestant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from understudy_bench.harness.bench import Bench, Check, Progress, Result, median, rounded, spread
from understudy_bench.kills.contestants import (
    NOT_INSTALLED,
    Loss,
    recovering,
    torchft,
    torchft_is_installed,
    torchrun_nodes,
    torchrun_one_node,
)
from understudy_bench.kills.cost import Outage
from understudy_bench.kills.kill import Life, around_rows, run_lives, separated

ROUNDS = 5


def lives(times: int) -> list[Life]:
    """All contestants; those of torchrun lose a worker `times` times."""
    workers: list[Loss] = ["worker"] * times
    return [
        Life("understudy", recovering, ("worker", "machine", "worker")),
        Life("torchrun", torchrun_one_node, workers),
        Life("torchrun", torchrun_nodes, ("machine",)),
        Life("torchrun, DCP", partial(torchrun_one_node, dcp=True), workers),
        Life("torchrun, every step", partial(torchrun_one_node, every=1), workers),
        Life("torchft", torchft, ("worker", "machine", "worker")),
    ]


LIVES, QUICK = lives(2), lives(1)
TORCHRUN_BAR, TORCHFT_BAR = 10.0, 2.0

Row = dict[str, object]


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row for all losses of a kind of one contestant: medians and 80 % spreads."""
    kinds = dict.fromkeys((row["system"], row["loss"]) for row in rows)
    found: list[Row] = []
    for system, loss in kinds:
        mine = [row for row in rows if (row["system"], row["loss"]) == (system, loss)]
        total: Row = {"system": system, "loss": loss, "round": f"all {len(mine)}"}
        for column in ("stall_s", "full_strength_s", "new_step_s", "step_s", "repeated", "dropped"):
            values = [row[column] for row in mine if row[column] is not None]
            if values:
                total[column] = round(median(values), 4)
            if values and column in ("stall_s", "full_strength_s"):
                total[f"{column.removesuffix('_s')}_spread"] = [round(value, 4) for value in spread(values)]
        total["restarted"] = f"{sum(row['restarted'] for row in mine)} of {len(mine)}"
        found.append(total)
    return found


def stalls(rows: Sequence[Mapping[str, Any]], loss: Loss) -> dict[str, list[float]]:
    """System → the survivors' stalls, in seconds."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["loss"] == loss:
            found.setdefault(row["system"], []).append(row["stall_s"])
    return found


def checks_of(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """The other systems stall several times longer when a worker dies, and understudy repeats only steps in flight."""
    of = {system: median(values) for system, values in stalls(rows, "worker").items()}
    ours = max(of["understudy"], 1e-3)  # below a millisecond nothing is measured
    checks = []
    for system, bar in (("torchrun", TORCHRUN_BAR), ("torchft", TORCHFT_BAR)):
        if system in of:
            ratio = of[system] / ours
            checks.append(Check(f"ratio_{system}", round(ratio, 2), f">= {bar:g}", ratio >= bar))
    lost = sum(row["dropped"] + max(row["repeated"] - 1, 0) for row in rows if row["system"] == "understudy")
    return [*checks, Check("steps_lost", lost, "0", lost == 0)]


def row_of(system: str, loss: Loss, number: int, place: int, cost: Outage) -> Row:
    return {"system": system, "loss": loss, "round": str(number), "place": place, **rounded(asdict(cost))}


def measure(quick: bool, progress: Progress) -> Result:
    possible = [life for life in (QUICK if quick else LIVES) if life.system != "torchft" or torchft_is_installed()]
    deaths, cut_short = separated(run_lives(possible, 1 if quick else ROUNDS, progress))
    rows = [row_of(death.system, death.loss, death.round, death.place, death.cost) for death in deaths]
    missing: list[Row] = [] if torchft_is_installed() else [{"system": "torchft", "absent": NOT_INSTALLED}]
    return Result([*rows, *summary(rows), *cut_short, *missing, *around_rows(deaths)], checks_of(rows))


BENCH = Bench("failure", "what training loses when a worker or a machine dies, against torchrun and torchft", measure)
