"""Failure: what training loses when a worker, or a whole machine, is killed without warning (kill -9).

- understudy: two machines with a worker each and a standby whose one worker could take either's role at once. A machine
  whose worker has died is the next standby, one that has died comes back;
- torchrun: plain DDP over Gloo with a checkpoint every 10 steps. A worker is lost on one node with two, the best case
  for torchrun; a machine is one node of two, and the one with the rendezvous is spared, since that would end the job;
- torchrun, DCP: the same where a worker is lost, with checkpoints by torch.distributed.checkpoint;
- torchrun, every step: the same with a checkpoint after each step, which has its price in every step;
- torchft, where it is installed: two replicas, with short limits (heartbeat 1 s, process group 2 s, a look at who is
  there every 50 ms, 300 ms for those who live and are late).

A worker is one process. A machine is its agent with everything that comes from it. All run on this computer, so the
kernel closes a dead machine's connections at once, for all contestants alike, and understudy's launcher sees its agent
end; one without power would be noticed only by its silence. Where nobody takes a lost machine's place by himself
(torchrun, torchft), the benchmark starts one right after the death, as a scheduler would that needs no time. torchrun
takes a node for gone after 2 s of silence here, not after its usual 15.

The moment is random: some step's end and a random share of a step more, from a fixed seed, and so is who dies. Time is
the wall clock, noted just before the kill and by the training scripts at the end of each step.

- `stall_s`: from the death to the survivors' next completed step, less an undisturbed one: the median of the 12 before.
  A step that needed nothing more from the dead one may end by itself; then the one after it is late and counts.
- `full_strength_s`: from the death to the end of the first step in which everybody takes part again.
- `new_step_s`: from the death to the end of the first step that had not been done before.
- `repeated`: steps that survivors began again, the one in flight included. `dropped`: steps whose data never had any
  effect. `restarted`: the survivors' processes were started again, too.

Only one job runs at a time. Each lives for a few deaths, and the lives of all contestants alternate. Each contestant
loses 10 workers and 5 machines, those with DCP and with a checkpoint after every step no machines; a quick run takes
2 and 1, and of torchrun's contestants one worker each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from understudy_bench.harness import Bench, Check, Progress, Result, median, rounded, spread
from understudy_bench.outage import Outage
from understudy_bench.strike import Life, around_rows, play, told
from understudy_bench.struck import (
    NOT_INSTALLED,
    Loss,
    Torchft,
    Torchrun,
    TorchrunDcp,
    TorchrunEveryStep,
    TorchrunNodes,
    Understudy,
    torchft_is_installed,
)

ROUNDS = 5
LIVES: Sequence[Life] = (
    ("understudy", Understudy, ("worker", "machine", "worker")),
    ("torchrun", Torchrun, ("worker", "worker")),
    ("torchrun", TorchrunNodes, ("machine",)),
    ("torchrun, DCP", TorchrunDcp, ("worker", "worker")),
    ("torchrun, every step", TorchrunEveryStep, ("worker", "worker")),
    ("torchft", Torchft, ("worker", "machine", "worker")),
)
QUICK: Sequence[Life] = (
    ("understudy", Understudy, ("worker", "machine", "worker")),
    ("torchrun", Torchrun, ("worker",)),
    ("torchrun", TorchrunNodes, ("machine",)),
    ("torchrun, DCP", TorchrunDcp, ("worker",)),
    ("torchrun, every step", TorchrunEveryStep, ("worker",)),
    ("torchft", Torchft, ("worker", "machine", "worker")),
)
TORCHRUN_BAR, TORCHFT_BAR = 10.0, 2.0

Row = dict[str, object]


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for all deaths of a kind that a contestant has seen: medians, and where most of them lie."""
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
    """The survivors' stalls by system."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["loss"] == loss:
            found.setdefault(row["system"], []).append(row["stall_s"])
    return found


def checks_of(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """How many times longer the others stall when a worker dies; and of our steps only those in flight are repeated."""
    of = {system: median(values) for system, values in stalls(rows, "worker").items()}
    ours = max(of["understudy"], 1e-3)  # below a millisecond nothing is measured
    checks = []
    for system, bar in (("torchrun", TORCHRUN_BAR), ("torchft", TORCHFT_BAR)):
        if system in of:
            ratio = of[system] / ours
            checks.append(Check(f"ratio_{system}", round(ratio, 2), f">= {bar:g}", ratio >= bar))
    lost = sum(row["dropped"] + max(row["repeated"] - 1, 0) for row in rows if row["system"] == "understudy")
    return [*checks, Check("steps_lost", lost, "0", lost == 0)]


def row_of(system: str, loss: Loss, number: int, place: int, seen: Outage) -> Row:
    return {"system": system, "loss": loss, "round": str(number), "place": place, **rounded(asdict(seen))}


def measure(quick: bool, progress: Progress) -> Result:
    lives = [life for life in (QUICK if quick else LIVES) if life[0] != "torchft" or torchft_is_installed()]
    deaths, cut_short = told(play(lives, 1 if quick else ROUNDS, progress))
    rows = [row_of(death.system, death.loss, death.round, death.place, death.seen) for death in deaths]
    missing: list[Row] = [] if torchft_is_installed() else [{"system": "torchft", "loss": NOT_INSTALLED}]
    return Result([*rows, *summary(rows), *cut_short, *missing, *around_rows(deaths)], checks_of(rows))


BENCH = Bench("failure", "what training loses when a worker or a machine dies, against torchrun and torchft", measure)
