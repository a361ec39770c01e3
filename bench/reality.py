"""Reality: does the simulator predict the share of time that a real job trains, while its workers are killed at random?

Four replicas with one worker each train a small model; each of a worker's six micro-shards takes at least 25 ms (see
`bench mask`), so that the number of cores does not matter. Workers are killed (kill -9) at the ends of exponential
lives with a mean of 24 s, drawn when a worker takes a role: one death in about six seconds. Lives are dealt like cards
from a seed, so that a short run has as many deaths as its rate says.

- recovery: training waits until a standby has taken the role. There is one standby; the dead worker's machine is the
  next one after its new worker has rehearsed, and a death before that has to wait for it;
- masking: no standby. The survivors continue, and the dead worker's machine starts a new worker, which joins them.

Each has two jobs: one for calibration (with another seed; `understudy plan --calibrate` reads its ledger in the same
way), and the one that is predicted. In the second, disturbed stretches of a minute alternate with undisturbed ones, in
which the time of an undisturbed step is measured and all replicas come back.

- `measured`: steps completed in the disturbed stretches × the undisturbed step time ÷ their length;
- `simulated`: the efficiency by `planning/simulation/jump.py`, for as many machines, stretches of the same length, the
  calibration's durations and the same lives in the same order. Repairs are drawn anew in each of 100 runs;
- `expected`: the same with lives that are drawn anew, 2,000 runs. `chance`: the range of 95 % of the means of as many
  stretches. It is wide: one draw of lives cannot be compared with the mean over all draws;
- `naive`: the error of a prediction without failures, to show how much there is to predict.

The check: simulated ÷ measured over all stretches is within 10 % of 1. One stretch by itself may be further off. The
computer must do nothing else: how soon a standby is ready again depends on the free cores, and a calibration under one
load does not hold under another.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from understudy.cli.calibration import calibrated
from understudy.planning.failures import Failures, Repair, Times
from understudy.planning.inputs.calibrate import Calibrated
from understudy.planning.setting import Cluster, PlanningSetting, StepWork
from understudy.planning.simulation.jump import simulate
from understudy.planning.strategy import Strategy, mask_and_refill, trainmover
from understudy_bench.harness.bench import Bench, Check, Progress, Result, median
from understudy_bench.harness.job import BenchJob
from understudy_bench.harness.marks import Mark, MarkReader, gaps
from understudy_bench.harness.processes import rests, workplace
from understudy_bench.scripts import OURS
from understudy_bench.workload import WORKS

# -- deaths ------------------------------------------------------------------------------------------------------------

LOOK_S = 0.1
DECK = 16


def lives(mean: float, chance: random.Random) -> Iterator[float]:
    """Yield exponential lives, dealt like cards: every deck has each quantile of the distribution once.

    So a short run has about as many failures as its rate says.
    """
    cards = [-log(1 - (number + 0.5) / DECK) for number in range(DECK)]
    scale = mean * DECK / sum(cards)
    while True:
        chance.shuffle(cards)
        yield from (scale * card for card in cards)


def processes(machines: Sequence[Mapping[str, Any]], dead: set[int]) -> dict[int, int]:
    """Role → id of its live process, on machines with one worker each."""
    return {
        machine["roles"][0]: machine["pids"][0]
        for machine in machines
        if machine["roles"] and machine["pids"] and machine["pids"][0] not in dead
    }


class Hazard:
    """Kills the workers of a job at random. A role's next death is drawn when a worker takes the role."""

    def __init__(self, job: BenchJob, mean: float, chance: random.Random) -> None:
        self._job, self._lives = job, lives(mean, chance)
        self._due: dict[int, tuple[int, float]] = {}
        self._dead: set[int] = set()
        self.deaths: list[float] = []

    async def kill_for(self, seconds: float) -> tuple[float, float]:
        """Kill workers for so many seconds; returns begin and end.

        The last live worker is spared until another one is live: without a checkpoint, no copy of the state would be
        left.
        """
        began = time.time()
        self._due.clear()
        while (now := time.time()) < began + seconds:
            live = processes(await self._job.machines(), self._dead)
            self._due = {role: due for role, due in self._due.items() if live.get(role) == due[0]}
            for role, pid in live.items():
                if role not in self._due:
                    self._due[role] = (pid, now + next(self._lives))
            await self._kill(live, min(began + seconds, now + LOOK_S))
            self._job.check()
        return began, time.time()

    async def _kill(self, live: Mapping[int, int], until: float) -> None:
        """Kill the workers that are due before `until`, each at its moment."""
        for role, (pid, at) in sorted(self._due.items(), key=lambda due: due[1][1]):
            if at > until or len(live) - len(self._dead & set(live.values())) < 2:
                break
            await asyncio.sleep(max(0.0, at - time.time()))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.deaths.append(time.time())
            self._dead.add(pid)
            del self._due[role]
        await asyncio.sleep(max(0.0, until - time.time()))


# -- the question ------------------------------------------------------------------------------------------------------

REPLICAS, WORK = 4, "paced"
MTBF_S = 24.0
QUIET_S, SETTLE_S = 8.0, 1.0
RUNS, SAME_LUCK = 2000, 100
NO_CHECKPOINT = 1e9
BAR = 0.10
SYSTEMS: Mapping[str, Mapping[str, object]] = {
    "recovery": {"standbys": 1},
    "masking": {"standbys": 0, "mask": "anywhere"},
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Length:
    """Seconds of the calibration, of a disturbed stretch, and how many there are."""

    calibration: float
    stretch: float
    stretches: int


FULL, QUICK = Length(75.0, 60.0, 3), Length(48.0, 40.0, 2)


@dataclass(frozen=True)
class Stretch:
    """The measurements of a disturbed stretch."""

    seconds: float
    steps: int
    deaths: int
    step_s: float
    """An undisturbed step, measured before and after the stretch."""

    @property
    def efficiency(self) -> float:
        return self.steps * self.step_s / self.seconds


# -- the real job ------------------------------------------------------------------------------------------------------


class RealJob:
    """A job that trains, and its marks."""

    def __init__(self, system: str, folder: Path) -> None:
        self.run_dir, marks = folder / "run", folder / "marks"
        marks.mkdir(parents=True)
        self.marks = MarkReader(marks)
        self._system = system
        self.job = BenchJob(
            {
                **{"script": OURS, "args": ("--marks", str(marks), "--work", WORK), "run_dir": str(self.run_dir)},
                **{"name": "bench-reality", "machines": REPLICAS, "threads": 1, "quarantine": 1_000_000},
                **SYSTEMS[system],
            }
        )

    async def whole(self) -> None:
        """Wait until no role is vacant and the standby, if any, is ready and idle."""
        standbys = int(str(SYSTEMS[self._system]["standbys"]))

        async def there() -> bool | None:
            machines = await self.job.machines()
            view = await self.job.call("GET", "/job")
            ready = [machine for machine in machines if set(machine["rehearsed"]) >= set(range(REPLICAS))]
            if view["status"] != "training" or view["vacant"] or view["change"] or len(ready) < standbys:
                return None
            pids = [pid for machine in ready for pid in self.job.processes_of(machine["name"])]
            return True if await rests(pids, SETTLE_S) else None

        await self.job.until("all replicas and standbys", there)

    async def undisturbed(self) -> float:
        """Measure the seconds of an undisturbed step."""
        await self.whole()
        began = time.time() + SETTLE_S
        await asyncio.sleep(QUIET_S + SETTLE_S)
        return step_time(self.marks.look(), began, time.time())

    async def disturbed(self, seconds: float, seed: str) -> tuple[float, float, int]:
        """Kill workers for so many seconds; returns begin, end and the number of deaths."""
        hazard = Hazard(self.job, MTBF_S, random.Random(seed))
        began, ended = await hazard.kill_for(seconds)
        return began, ended, len(hazard.deaths)


def step_time(marks: Sequence[Mark], began: float, ended: float) -> float:
    """The median step between two times, over all places."""
    found: list[float] = []
    for place in {mark.place for mark in marks}:
        ends = (m.at for m in marks if m.place == place and m.kind == "end" and began <= m.at <= ended)
        found += gaps(ends)
    return median(found)


def progressed(marks: Sequence[Mark], began: float, ended: float) -> int:
    """The number of steps that the job advanced between two times."""

    def reached(at: float) -> int:
        return max((mark.step for mark in marks if mark.kind == "end" and mark.at <= at), default=-1)

    return reached(ended) - reached(began)


async def calibration(system: str, folder: Path, seconds: float) -> Calibrated:
    """Calibrate with a run of other deaths."""
    real = RealJob(system, folder)
    async with real.job as job:
        await job.train(12)
        await real.undisturbed()
        await real.disturbed(seconds, f"calibration {system}")
        await real.whole()
        await job.stop()
    return calibrated(real.run_dir)


async def observed(system: str, folder: Path, length: Length, done: Callable[[str], None]) -> list[Stretch]:
    """Run the job that is predicted, and measure its disturbed stretches."""
    real = RealJob(system, folder)
    found = []
    async with real.job as job:
        await job.train(12)
        before = await real.undisturbed()
        for number in range(length.stretches):
            began, ended, deaths = await real.disturbed(length.stretch, luck(system, number))
            after = await real.undisturbed()
            steps = progressed(real.marks.look(), began, ended)
            found.append(Stretch(ended - began, steps, deaths, (before + after) / 2))
            done(f"{system}: {deaths} deaths, efficiency {found[-1].efficiency:.3f}")
            before = after
        await job.stop()
    return found


# -- the simulated one -------------------------------------------------------------------------------------------------


class Dealt(Failures, frozen=True):
    """Failures with the lives of a real job, in the same order."""

    deck: Iterator[float] = iter(())

    def lifetimes(self, rng: np.random.Generator, count: int) -> Times:
        return np.array([next(self.deck) for _ in range(count)])


def luck(system: str, stretch: int) -> str:
    return f"reality {system} {stretch}"


def setting_of(system: str, known: Calibrated) -> PlanningSetting:
    if known.step is None:
        raise ValueError("no step was measured")
    compute = WORKS[WORK].micro * WORKS[WORK].length_s
    work = StepWork(min(compute, known.step), max(0.0, known.step - compute))
    durations = known.durations
    if system == "masking":  # the dead worker's own machine brings it back, and `refill` is all of that
        durations = msgspec.structs.replace(durations, cold=0.0)
    return PlanningSetting(Cluster(REPLICAS, REPLICAS, 1), work, durations)


def predicted(system: str, known: Calibrated, length: Length) -> list[float]:
    """The simulated efficiency of each stretch, with the stretch's own lives."""
    setting, repair = setting_of(system, known), known.repair or Repair()
    strategy = strategy_of(system, setting)
    found = []
    for stretch in range(length.stretches):
        runs = []
        for seed in range(SAME_LUCK):
            failures = Dealt(MTBF_S, deck=lives(MTBF_S, random.Random(luck(system, stretch))))
            outcome = simulate(setting, failures, strategy, repair, runs=1, horizon=length.stretch, seed=seed)
            runs.append(float(outcome.efficiency.value))
        found.append(float(np.mean(runs)))
    return found


def expected(system: str, known: Calibrated, length: Length) -> list[float]:
    """The simulated efficiency of many stretches, with lives drawn anew."""
    setting, repair = setting_of(system, known), known.repair or Repair()
    strategy = strategy_of(system, setting)
    outcome = simulate(setting, Failures(MTBF_S), strategy, repair, runs=RUNS, horizon=length.stretch)
    return [float(each) for each in outcome.useful / outcome.seconds]


def strategy_of(system: str, setting: PlanningSetting) -> Strategy:
    if system == "recovery":
        return trainmover(setting, 1, NO_CHECKPOINT)
    masking = mask_and_refill(setting, 0, NO_CHECKPOINT, "anywhere", WORKS[WORK].micro)
    return msgspec.structs.replace(masking, may_recover=False)


# -- both --------------------------------------------------------------------------------------------------------------


def rows_of(system: str, seen: Sequence[Stretch], simulated: Sequence[float], anyhow: Sequence[float]) -> list[Row]:
    rows: list[Row] = [
        {
            **{"system": system, "stretch": str(number), "seconds": round(each.seconds, 1), "deaths": each.deaths},
            **{"steps": each.steps, "step_s": round(each.step_s, 4), "measured": round(each.efficiency, 4)},
            "simulated": round(own, 4),
        }
        for number, (each, own) in enumerate(zip(seen, simulated, strict=True))
    ]
    seconds = sum(each.seconds for each in seen)
    measured = sum(each.efficiency * each.seconds for each in seen) / seconds
    mean = float(np.mean(simulated))
    total = {
        **{"system": system, "stretch": f"all {len(seen)}", "seconds": round(seconds, 1)},
        **{"deaths": sum(each.deaths for each in seen), "steps": sum(each.steps for each in seen)},
        **{"step_s": round(median(each.step_s for each in seen), 4), "measured": round(measured, 4)},
        **{"simulated": round(mean, 4), "ratio": round(mean / measured, 4), "naive": round(1 / measured, 4)},
        "expected": round(float(np.mean(anyhow)), 4),
        "chance": [round(each, 4) for each in chances(anyhow, len(seen))],
    }
    return [*rows, total]


def chances(simulated: Sequence[float], stretches: int) -> list[float]:
    """The range of 95 % of the means of so many stretches."""
    half = 1.96 * float(np.std(simulated)) / stretches**0.5
    mean = float(np.mean(simulated))
    return [mean - half, mean + half]


def calibration_rows(system: str, known: Calibrated) -> list[Row]:
    """Rows with the simulator's calibrated durations, and the source of each."""
    values = {**msgspec.to_builtins(known.durations), "step": known.step, "repair": known.repair and known.repair.mean}
    return [
        {"system": system, "stretch": "calibration", "what": name, "value_s": round(values[name], 4), "why": why}
        for name, why in known.sources.items()
        if name in known.measured
    ]


def checks_of(rows: Sequence[Row]) -> list[Check]:
    checks = []
    for row in rows:
        if "ratio" in row:
            ok = abs(row["ratio"] - 1) <= BAR
            checks.append(Check(f"ratio_{row['system']}", row["ratio"], f"1 ± {BAR:g}", ok))
    return checks


def measure(quick: bool, progress: Progress) -> Result:
    length = QUICK if quick else FULL
    progress.total = len(SYSTEMS) * (1 + length.stretches)
    rows: list[Row] = []
    with workplace() as folder:
        for system in SYSTEMS:
            known = asyncio.run(calibration(system, folder / f"{system}-calibration", length.calibration))
            progress.advance(f"{system}: calibrated")
            seen = asyncio.run(observed(system, folder / system, length, progress.advance))
            said = predicted(system, known, length), expected(system, known, length)
            rows += [*calibration_rows(system, known), *rows_of(system, seen, *said)]
    return Result(rows, checks_of(rows))


BENCH = Bench("reality", "whether the simulator predicts how much of the time a job under failures trains", measure)
