"""Replace: what training loses when a machine is replaced by plan, against other ways of doing it.

Contestants:

- understudy: a standby waits. It rehearses and connects while the others train, and state travels while the last step
  computes;
- the same with one technique switched off. `no delta`: all links are opened, not only those that change. `no overlap`:
  all state is handed over at the boundary (`overlap = False`). `no standby`: a machine is started first.
  `no rehearsal`: the joiner enters `train` without a shadow step (`rehearsals = 0`); gradients are averaged by hand,
  since a DDP that has not made a step cannot join those that have;
- naive: a standby waits, but all training stops: all workers wait while it rehearses, all links are opened, and all
  state is handed over at the boundary;
- restart: save a checkpoint, end, restart with torchrun, load. `restart, DCP` saves and loads with
  torch.distributed.checkpoint, on all workers.

Contestants that differ in the request take turns in one job of two machines; those that differ in settings have jobs of
their own. One job runs at a time, and the jobs of all kinds alternate.

Columns:

- `lost_s`: the time of the two steps around the change, less two usual steps; for a restart, the time from the end of
  the last step before it to the end of the first step after it, less one usual step. A usual step is the median of
  undisturbed steps just before. What the leaver's processes use to end, after the joiner's first step, does not count;
- `told_s`: the loss as the runtime reports it. Its usual steps are the last ones before the change, which are slow here
  while the joiner rehearses on the same two cores. So it is smaller, and not what is compared;
- `beside_s`: what those slow steps took beyond usual ones. With a machine of its own the joiner would cost nothing;
- `ready_s`: from the request to the joiner's first step.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from understudy_bench.harness.bench import Bench, Check, Progress, Result, interleave, median, rounded, spread
from understudy_bench.harness.dip import QUIET, Curve, around_row, of_ends
from understudy_bench.harness.job import BenchJob, Entry
from understudy_bench.harness.processes import Command, CommandFailed, torchrun, workplace
from understudy_bench.scripts import OURS, PLAIN, TIMED

WARM_UP = 5
AFTER = 6
"""Steps after a joiner's first one, which show whether training is as fast as before."""
AFTERWARDS = 8
"""Steps of a restarted job."""
LIMIT_S = 180.0
ROUNDS = 6
RESTART_BAR = 40

Row = dict[str, object]
Steps = Mapping[tuple[int, int], float]
"""(role, step) → seconds from the end of the step before to its own."""


@dataclass(frozen=True)
class Life:
    """A job's script and settings, and the contestants that take turns in it."""

    script: str
    settings: Mapping[str, object]
    systems: Sequence[str]
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Replacement:
    """The figures of one replacement, and how fast training was around it."""

    row: Row
    around: Curve


TOGETHER, RESTARTS = "together", ("restart", "restart, DCP")
TURNS = ("understudy", "naive", "no delta", "understudy", "no standby")
ALONE: Mapping[str, Life] = {
    "no overlap": Life(OURS, {"overlap": False}, ("no overlap",)),
    "no rehearsal": Life(TIMED, {"rehearsals": 0}, ("no rehearsal",), ("--by-hand",)),
}
"""Contestants with settings of their own."""
KINDS = (TOGETHER, *ALONE, *RESTARTS)
SYSTEMS = ("understudy", "no delta", "no overlap", "no standby", "no rehearsal", "naive", *RESTARTS)


def in_turn(number: int) -> Life:
    """The job in which contestants take turns; each round begins with the next one."""
    first = number % len(TURNS)
    return Life(OURS, {}, (*TURNS[first:], *TURNS[:first]))


# -- figures -----------------------------------------------------------------------------------------------------------


def steps_of(metrics: Iterable[Entry]) -> dict[tuple[int, int], float]:
    return {(int(entry["role"]), int(entry["step"])): float(entry["seconds"]) for entry in metrics}


def usual(steps: Steps, first: int, last: int) -> float:
    """The median of the steps from `first` to `last`, on all roles."""
    return median(seconds for (_, step), seconds in steps.items() if first <= step <= last)


def lost_around(steps: Steps, first: int, usual_s: float) -> float:
    """What the slowest role lost by a change after which `first` is the first step."""
    return max(steps[role, first - 1] + steps[role, first] for role in {role for role, _ in steps}) - 2 * usual_s


def slowed(steps: Steps, first: int, last: int, usual_s: float) -> float:
    """What the steps from `first` to `last` took beyond usual ones, on the slowest role."""
    numbers = range(first, last + 1)
    return max(sum(steps[role, step] - usual_s for step in numbers) for role in {role for role, _ in steps})


def around(steps: Steps, first: int, since: int, usual_s: float) -> Curve:
    """The dip of the role that lost most; time counts from the end of the last step before the two that count."""
    role = max({role for role, _ in steps}, key=lambda role: steps[role, first - 1] + steps[role, first])
    ends, at, clock = [0.0], 0.0, 0.0
    step = since
    while (role, step) in steps:
        clock += steps[role, step]
        ends.append(clock)
        if step == first - 2:
            at = clock
        step += 1
    return of_ends(ends, at, usual_s)


def restart_row(
    before: Sequence[tuple[str, float]], launched: float, after: Sequence[tuple[str, float]]
) -> tuple[float, float, dict[str, float]]:
    """Seconds lost, seconds of a usual step, and seconds of each phase, from the marks of both runs of a job."""
    ends = [at for name, at in before if name == "step"]
    step_s = median(later - end for end, later in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False))
    clock = ends[-1]
    phases = {}
    for name, at in [
        *(mark for mark in before if mark[0] == "save"),
        ("stop", launched),
        *(mark for mark in after if mark[0] != "step"),
        ("first step", next(at for name, at in after if name == "step")),
    ]:
        phases[name], clock = at - clock, at
    return clock - ends[-1] - step_s, step_s, phases


def by_system(rows: Iterable[Mapping[str, Any]], column: str) -> dict[str, list[float]]:
    """System → a column's values, of the rows that have it."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if column in row:
            found.setdefault(row["system"], []).append(row[column])
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row for all repetitions of a system: medians and 80 % spreads."""
    names = ("lost_s", "told_s", "beside_s", "ready_s", "step_s")
    columns = {column: by_system(rows, column) for column in names}
    found: list[Row] = []
    for system in sorted(columns["lost_s"], key=SYSTEMS.index):
        values = columns["lost_s"][system]
        medians = {name: round(median(column[system]), 4) for name, column in columns.items() if system in column}
        lost_spread = [round(value, 4) for value in spread(values)]
        found.append({"system": system, "round": "all", **medians, "lost_spread": lost_spread})
    return found


def checks_of(lost: Mapping[str, Sequence[float]]) -> list[Check]:
    ours = max(median(lost["understudy"]), 1e-3)  # below a millisecond nothing is measured
    restart, naive = median(lost["restart"]) / ours, median(lost["naive"]) / ours
    return [
        Check("ratio_restart", round(restart, 1), f">= {RESTART_BAR}", restart >= RESTART_BAR),
        Check("ratio_naive", round(naive, 1), "> 1", naive > 1),
    ]


# -- a job whose machines are replaced ---------------------------------------------------------------------------------


async def replacements(life: Life, folder: Path, done: Callable[[str, Replacement], None]) -> None:
    """Run one job in which each contestant replaces one machine, one after the other."""
    settings = {"script": life.script, "args": life.args, "name": "bench-replace", "machines": 2, "threads": 1}
    # a standby rehearses when it is called, so that the cost of rehearsal is measured too
    async with BenchJob({**settings, "run_dir": str(folder), "warm": 0, **life.settings}) as job:
        await job.train(WARM_UP)
        for number, system in enumerate(life.systems):
            done(system, await _replace(job, system, number))
        await job.stop()


async def _replace(job: BenchJob, system: str, number: int) -> Replacement:
    """Replace the machine of role `number`, counted round, as a contestant does it."""
    joiner = "" if system == "no standby" else str((await job.new_standby())["name"])
    await job.train(3)
    quiet = job.step
    await job.train(QUIET)
    asked = job.step
    roster = await job.call("GET", "/roster")
    role = number % len(roster)
    leaver = roster[role]["machine"]
    asked_at = time.monotonic()
    if not joiner:
        await job.add_standby()
    answer = await job.replace(
        [leaver], [joiner] if joiner else [], stop_the_world=system == "naive", all_links=system == "no delta"
    )
    if "lost" not in answer:
        raise CommandFailed(job.with_output(f"replacing {leaver}: {answer['text']}"))
    if not joiner:
        joiner = (await job.call("GET", "/roster"))[role]["machine"]

    async def first_step() -> int | None:
        return min((step for _, step in steps_of(job.metrics(joiner))), default=None)

    first = await job.until(f"the first step of {joiner}", first_step)
    ready_s = time.monotonic() - asked_at
    await job.reach(first + AFTER + 1)
    steps = steps_of(job.metrics())
    usual_s = usual(steps, quiet, asked - 1)
    row: Row = {
        "lost_s": lost_around(steps, first, usual_s),
        "told_s": answer["lost"],
        "beside_s": slowed(steps, asked, first - 2, usual_s),
        "ready_s": ready_s,
        "step_s": usual_s,
        "phases": answer["phases"],
        "bytes": answer["bytes"],
        "again": answer["again"],
    }
    return Replacement(row, around(steps, first, quiet, usual_s))


# -- a job that is restarted -------------------------------------------------------------------------------------------


def restart(folder: Path, *, dcp: bool = False) -> Replacement:
    """Run a job that ends with a checkpoint, and restart it."""
    folder.mkdir()
    checkpoint, marks = folder / "checkpoint", (folder / "before", folder / "after")
    steps = (WARM_UP + QUIET + 1, AFTERWARDS)
    launched = []
    format = ("--dcp",) if dcp else ()
    for number, extra in enumerate((("--save", *format), format)):
        options = ("--steps", str(steps[number]), "--checkpoint", str(checkpoint), "--marks", str(marks[number]))
        command, env = torchrun(2, PLAIN, *options, *extra)
        launched.append(time.time())
        with Command(command, folder / "log", env) as running:
            running.wait(LIMIT_S)
    before, after = (json.loads(path.read_text()) for path in marks)
    lost_s, step_s, phases = restart_row(before, launched[1], after)
    kept = [file for file in folder.rglob("*") if file.relative_to(folder).parts[0].startswith(checkpoint.name)]
    size = sum(file.stat().st_size for file in kept if file.is_file())
    ends = [at for name, at in (*before, *after) if name == "step"]
    at = [at for name, at in before if name == "step"][-1]
    shutil.rmtree(folder)
    row: Row = {"lost_s": lost_s, "step_s": step_s, "phases": phases, "bytes": size}
    return Replacement(row, of_ends(ends, at, step_s))


def measure(quick: bool, progress: Progress) -> Result:
    rounds = 1 if quick else ROUNDS
    progress.total = rounds * (len(TURNS) + len(ALONE) + len(RESTARTS))
    rows: list[Row] = []
    curves: dict[str, list[Curve]] = {}

    def keep(number: int, system: str, seen: Replacement) -> None:
        rows.append({"system": system, "round": number, **rounded(seen.row)})
        curves.setdefault(system, []).append(seen.around)
        progress.advance(f"{system} {number + 1}")

    with workplace() as folder:
        for number, kind in interleave(KINDS, rounds):
            place = folder / f"{KINDS.index(kind)}-{number}"
            if kind in RESTARTS:
                keep(number, kind, restart(place, dcp=kind == RESTARTS[1]))
                continue
            life = in_turn(number) if kind == TOGETHER else ALONE[kind]
            asyncio.run(replacements(life, place, partial(keep, number)))
    dips = [around_row(system, {}, curves[system]) for system in SYSTEMS if system in curves]
    return Result([*rows, *summary(rows), *dips], checks_of(by_system(rows, "lost_s")))


BENCH = Bench("replace", "what training loses by a planned replacement, against restarting from a checkpoint", measure)
