"""Overhead: what a step costs under `understudy run`, against plain DDP over Gloo started by torchrun.

Both jobs live all the time, with the same model, batches and threads on the same cores. They train by turns, a block
of steps each. While one trains, all processes of the other are stopped, those that only look after it too: what the
controller and the agents use counts for understudy alone, and what torchrun uses for plain alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from understudy_bench.contest import STEPS, WARM_UP, Contest, kept, ours
from understudy_bench.harness import Bench, Check, Progress, Result, interleave, median, spread
from understudy_bench.processes import Command, interruptible, torchrun
from understudy_bench.scripts import PLAIN

SYSTEMS = ("understudy", "plain")
LAYOUTS = {2: (2, 1), 4: (2, 2)}
"""Workers → understudy's machines and workers on each. Two machines, so that it has no more shared memory than needed:
Gloo talks over loopback."""
BLOCKS = {2: 20, 4: 12}
QUICK = {2: 5}
BAR = 1.02

Times = Mapping[str, Sequence[Sequence[float]]]
"""System → block → seconds of its steps on all workers."""


def ratios(times: Times) -> list[float]:
    """By block: how much longer a step takes under understudy."""
    return [median(o) / median(p) for o, p in zip(times["understudy"], times["plain"], strict=True)]


def total_ratio(times: Times) -> float:
    """The same of all steps together."""
    ours, plain = ([s for block in times[system] for s in block] for system in SYSTEMS)
    return median(ours) / median(plain)


def rows_of(workers: int, times: Times) -> list[dict[str, object]]:
    """A row for each block and one for all together."""
    pooled = {system: [[s for block in times[system] for s in block]] for system in SYSTEMS}
    rows: list[dict[str, object]] = []
    for name, part in (("", times), ("all", pooled)):
        for number, ratio in enumerate(ratios(part)):
            row: dict[str, object] = {"workers": workers, "block": name or str(number)}
            for system in SYSTEMS:
                values = [seconds * 1e3 for seconds in part[system][number]]
                row[f"{system}_ms"] = round(median(values), 2)
                row[f"{system}_spread"] = [round(value, 1) for value in spread(values)]
            row["ratio"] = round(ratio, 4)
            if name:
                row["ratio_spread"] = [round(value, 3) for value in spread(ratios(times))]
            rows.append(row)
    return rows


def _commands(workers: int, folder: Path) -> dict[str, Command]:
    machines, nproc = LAYOUTS[workers]
    command, env = torchrun(workers, PLAIN, "--gate", str(folder / "gate"))
    plain = Command(command, folder / "plain.log", env)
    return {"understudy": ours("understudy", folder, machines, nproc), "plain": plain}


def measure(quick: bool, progress: Progress) -> Result:
    plan = QUICK if quick else BLOCKS
    progress.total = sum(len(SYSTEMS) * blocks for blocks in plan.values())
    rows: list[dict[str, object]] = []
    checks = []
    for workers, blocks in plan.items():
        times: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
        with (
            interruptible(),
            TemporaryDirectory(prefix="understudy-bench-") as folder,
            Contest(workers, _commands(workers, Path(folder)), Path(folder) / "gate") as contest,
        ):
            for system in SYSTEMS:
                contest.train(system, WARM_UP)
            for block, system in interleave(SYSTEMS, blocks):
                times[system].append(kept(contest.train(system, STEPS)))
                progress.advance(f"{workers} workers: {system}, block {block + 1}")
        rows += rows_of(workers, times)
        ratio = total_ratio(times)
        checks.append(Check(f"ratio_{workers}", round(ratio, 4), f"<= {BAR}", ratio <= BAR))
    return Result(rows, checks)


BENCH = Bench("overhead", "a step under understudy run, against plain DDP over Gloo", measure)
