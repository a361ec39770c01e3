"""Overhead: the time of a step under `understudy run`, against plain DDP over Gloo started by torchrun.

Both jobs run at the same time, with the same model, batches and threads on the same cores. They train by turns, a few
steps each. While one trains, all processes of the other are stopped, its controller, agents or torchrun included: their
processor time counts for their own job alone.

By default, the C library returns freed memory to the kernel or keeps it, depending on the layout of the heap: thousands
of page faults per step, or hardly any, for all the life of a process. This makes steps of both systems up to a tenth
longer or shorter, so here the library keeps the memory. Both jobs are started several times; each start counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from understudy_bench.harness.bench import Bench, Check, Progress, Result, interleave, median, spread
from understudy_bench.harness.processes import Command, torchrun, workplace
from understudy_bench.harness.turns import STEADY, WARM_UP, Turns, kept, ours
from understudy_bench.scripts import PLAIN

SYSTEMS = ("understudy", "plain")
LAYOUTS = {2: (2, 1), 4: (2, 2)}
"""Workers → understudy's machines, and workers on each. Two machines, so that links between them use TCP, as Gloo's
do."""
PLAN = {2: (6, 15), 4: (5, 8)}
"""Workers → number of starts, and turns of each job per start."""
QUICK = {2: (2, 5)}
TURN = 4
"""Steps of a turn; the first one fills the caches and does not count. Turns are short, since the load by other programs
changes from one second to the next."""
DROPPED = 1
BAR = 1.02

Times = Mapping[str, Sequence[Sequence[float]]]
"""System → start → seconds of its steps on all workers."""


def rows_of(workers: int, times: Times) -> list[dict[str, object]]:
    """One row for each start, and one for all: the medians over starts."""
    typical = {system: [median(start) for start in times[system]] for system in SYSTEMS}
    rows: list[dict[str, object]] = []
    for number in range(len(typical["plain"])):
        rows.append(_row(workers, str(number), {system: times[system][number] for system in SYSTEMS}))
    rows.append(_row(workers, "all", typical))
    rows[-1]["ratio_spread"] = [
        round(value, 3)
        for value in spread([o / p for o, p in zip(*(typical[system] for system in SYSTEMS), strict=True)])
    ]
    return rows


def _row(workers: int, start: str, seconds: Mapping[str, Sequence[float]]) -> dict[str, object]:
    row: dict[str, object] = {"workers": workers, "start": start}
    for system in SYSTEMS:
        row[f"{system}_ms"] = round(1e3 * median(seconds[system]), 2)
        row[f"{system}_spread"] = [round(1e3 * value, 1) for value in spread(seconds[system])]
    row["ratio"] = round(median(seconds["understudy"]) / median(seconds["plain"]), 4)
    return row


def _commands(workers: int, folder: Path) -> dict[str, Command]:
    machines, nproc = LAYOUTS[workers]
    command, env = torchrun(workers, PLAIN, "--gate", str(folder / "gate"))
    plain = Command(command, folder / "plain.log", {**env, **STEADY})
    return {"understudy": ours("understudy", folder, machines, nproc), "plain": plain}


def measure(quick: bool, progress: Progress) -> Result:
    plan = QUICK if quick else PLAN
    progress.total = sum(len(SYSTEMS) * starts * turns for starts, turns in plan.values())
    rows: list[dict[str, object]] = []
    checks = []
    for workers, (starts, turns) in plan.items():
        times: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
        for start in range(starts):
            for system, seconds in _live(workers, turns, f"{workers} workers, start {start + 1}", progress).items():
                times[system].append(seconds)
        rows += rows_of(workers, times)
        ratio = rows[-1]["ratio"]
        assert isinstance(ratio, float)
        checks.append(Check(f"ratio_{workers}", ratio, f"<= {BAR}", ratio <= BAR))
    return Result(rows, checks)


def _live(workers: int, turns: int, what: str, progress: Progress) -> dict[str, list[float]]:
    """Start both jobs and let them train by turns. Returns the seconds of their steps."""
    times: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    with (
        workplace() as folder,
        Turns(workers, _commands(workers, folder), folder / "gate") as jobs,
    ):
        for system in SYSTEMS:
            jobs.train(system, WARM_UP)
        for turn, system in interleave(SYSTEMS, turns):
            times[system] += kept(jobs.train(system, TURN), DROPPED)
            progress.advance(f"{what}: {system}, turn {turn + 1}")
    return times


BENCH = Bench("overhead", "a step under understudy run, against plain DDP over Gloo", measure)
