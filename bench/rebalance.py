"""Rebalance: how much speed remains if a machine is replaced every so many steps for as long as a job runs?

Spacing. A step takes 0.2 s: its worker computes a little and waits for the rest, as for an accelerator, so that the two
cores are mostly free for the machines that start. They are still two cores for all machines. So three kinds of windows
alternate in one job:

- calm: undisturbed steps;
- control: standbys start, rehearse and are dismissed at the same rate, and no machine is replaced;
- replacing: standbys start and rehearse, and each replaces a machine.

`wall` is the speed of the replacing window divided by that of calm windows, `cores` the same of the control window:
this part of the loss comes from the cores that all machines share here. `replacing` is `wall` divided by `cores`: what
the replacements themselves leave. A replacement that has to wait for its standby makes the spacing longer: `spacing`
was asked for, `made` is what came about.

The restart does the same with torchrun: save, end, start, load. At its end, the disturbed job must hold the same bits
as an undisturbed job after as many steps.

At once. Of eight machines, one, a quarter and half are replaced at one boundary, by turns. `lost_s` is what training
lost as the runtime reports it, `ratio` that divided by the loss of one machine; `measured_s` is the loss by the clock
from the request on, with all effects of the shared cores. State travels from each leaver to its joiner in two ways:

- links own: each machine sends its state, 2.4 MB and then 0.8 MB of gradients, at 12 MB/s. That takes 0.2 s and 0.07 s,
  as 10 GB and 3.3 GB do between accelerators with 400 Gbit/s each. The check is about these;
- links shared: as fast as two cores move it for all machines together. Four joiners cost two cores four times as much
  as one; machines with cores of their own would not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from understudy.launch.local import Ended
from understudy_bench.harness.bench import Bench, Check, Progress, Result, interleave, median, rounded, spread
from understudy_bench.harness.job import BenchJob
from understudy_bench.harness.marks import Mark, MarkReader
from understudy_bench.harness.processes import Command, CommandFailed, torchrun, workplace
from understudy_bench.scripts import OURS, RESTARTED

# -- the job -----------------------------------------------------------------------------------------------------------

WARM_UP = 10
"""Steps before the first window; the recording is over by then."""
SETTLE = 3
"""Steps after the pool is full, before the next window."""
LIMIT_S = 300.0


@dataclass(frozen=True)
class Window:
    """Consecutive steps, and the time that they took."""

    steps: int
    seconds: float
    changes: int = 0
    lost_s: float = 0.0
    """What training lost by the changes, as the runtime reports it."""

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


def ended_at(marks: Iterable[Mark], step: int) -> float:
    """When the last place ended a step."""
    return max(mark.at for mark in marks if mark.kind == "end" and mark.step == step)


class PooledJob:
    """A job with a pool of standbys that the benchmark keeps full."""

    def __init__(self, job: BenchJob, marks: Path, machines: int, pool: int) -> None:
        self._job, self._machines, self._pool = job, machines, pool
        self._marks = MarkReader(marks)
        self._turn = 0

    async def reach(self, step: int) -> None:
        """Wait until all places have ended a step."""

        async def there() -> bool | None:
            marks = self._marks.look()[-6 * self._machines :]
            done = {mark.place for mark in marks if mark.kind == "end" and mark.step >= step}
            return True if len(done) == self._machines else None

        await self._job.until(f"step {step}", there)

    @property
    def step(self) -> int:
        """The last step that at least one place has ended."""
        return max((mark.step for mark in self._marks.look()[-6 * self._machines :] if mark.kind == "end"), default=-1)

    async def _ready(self) -> list[str]:
        """The standbys that have rehearsed every role."""
        found = [machine for machine in await self._job.machines() if machine["state"] == "standby"]
        return [m["name"] for m in found if m["pids"] and all(m["pids"]) and len(m["rehearsed"]) >= self._machines]

    async def full(self) -> None:
        """Wait until the pool is full and all its standbys have rehearsed."""

        async def there() -> bool | None:
            return True if len(await self._ready()) >= self._pool else None

        await self._job.until(f"{self._pool} standbys", there)
        await self.reach(self.step + SETTLE)

    async def calm(self, steps: int) -> Window:
        """Measure undisturbed steps."""
        first = self.step
        await self.reach(first + steps)
        return self._window(first, first + steps)

    def _window(self, first: int, last: int, changes: int = 0, lost_s: float = 0.0) -> Window:
        marks = self._marks.look()
        return Window(last - first, ended_at(marks, last) - ended_at(marks, first), changes, lost_s)

    async def _leavers(self, count: int) -> list[str]:
        """The next machines to replace, in the order of their roles."""
        names = {role: machine["name"] for machine in await self._job.machines() for role in machine["roles"]}
        chosen = [names[(self._turn + number) % self._machines] for number in range(count)]
        self._turn += count
        return chosen

    async def disturbed(self, spacing: int, times: int, *, replacing: bool) -> Window:
        """Replace a machine every `spacing` steps; or only dismiss a standby and start another one."""
        first = self.step
        lost = 0.0
        for number in range(times):
            await self.reach(first + number * spacing + spacing // 2)
            if replacing:
                answer = await self._job.replace(await self._leavers(1))
                lost += answer.get("lost") or 0.0
            else:
                await self._dismiss_one()
            await self._job.add_standby()
        last = max(first + times * spacing, self.step)
        await self.reach(last)
        return self._window(first, last, times, lost)

    async def _dismiss_one(self) -> None:
        async def ready() -> str | None:
            return next(iter(await self._ready()), None)

        await self._job.remove_standby(await self._job.until("a standby that can go", ready))

    async def move(self, count: int, quiet: int, after: int) -> dict[str, Any]:
        """Replace so many machines at one boundary, then fill the pool again."""
        await self.full()
        before = await self.calm(quiet)
        first = self.step
        answer = await self._job.replace(await self._leavers(count))
        last = max(first + after, self.step)
        await self.reach(last)
        around = self._window(first, last)
        await self._job.add_standby(count)
        return {
            "lost_s": answer["lost"],
            "measured_s": around.seconds - around.steps * before.step_s,
            "step_s": before.step_s,
            "phases": answer["phases"],
            "bytes": answer["bytes"],
        }


def settings_of(folder: Path, machines: int, pool: int, work: str = "steady", link_rate: int = 0) -> dict[str, Any]:
    args = ("--work", work, "--link-rate", str(link_rate), *(("--marks", str(folder / "marks")) if pool else ()))
    found = {"script": OURS, "args": args, "name": "bench-rebalance", "machines": machines, "standbys": pool}
    # starting machines delay the heartbeats of the others on the same cores
    return {**found, "threads": 1, "heartbeat": 20.0, "run_dir": str(folder / "run")}


def opened(folder: Path, machines: int, pool: int, work: str = "steady", link_rate: int = 0) -> tuple[BenchJob, Path]:
    """A job that has not started, and the folder of its marks."""
    marks = folder / "marks"
    marks.mkdir(parents=True)
    return BenchJob(settings_of(folder, machines, pool, work, link_rate)), marks


async def undisturbed(folder: Path, machines: int, steps: int) -> Mapping[str, str]:
    """The digests of an undisturbed job after so many steps; its steps do not wait."""
    async with BenchJob({**settings_of(folder, machines, 0, "hurried"), "steps": steps}) as job:
        ended = await job.ended()
    return digests_of(ended)


def digests_of(ended: Ended) -> dict[str, str]:
    if ended.code:
        raise CommandFailed(f"the job has {ended.status}: {ended.reason}")
    found: dict[str, str] = ended.view["digests"]
    return found


def restarts(folder: Path, spacing: int, times: int) -> tuple[Window, float]:
    """Run a plain job that is restarted from a checkpoint every `spacing` steps.

    Returns the window of all its steps, and the seconds of an undisturbed step.
    """
    marks = folder / "marks"
    marks.mkdir(parents=True)
    watch, ends = MarkReader(marks), [WARM_UP]
    for number in range(times + 1):
        steps = spacing if number else WARM_UP
        command, env = torchrun(
            2,
            RESTARTED,
            *("--marks", str(marks), "--checkpoint", str(folder / "checkpoint.pt"), "--work", "steady"),
            *("--steps", str(steps), "--every", str(1 << 40)),
        )
        with Command(command, folder / "log", env) as running:
            running.wait(LIMIT_S)
        if number:
            ends.append(ends[-1] + spacing)
    found = watch.look()
    at = {step: ended_at(found, step) for step in range(ends[-1])}
    seconds = at[ends[-1] - 1] - at[ends[0] - 1]
    gaps = sorted(at[step] - at[step - 1] for step in at if step > 2 and step not in ends)
    return Window(times * spacing, seconds, times), gaps[len(gaps) // 2]


async def close(job: BenchJob) -> tuple[int, Mapping[str, str]]:
    """Stop the job at a boundary. Returns its number of steps, and the digest of each role's state."""
    ended = await job.stop()
    return int(ended.view["step"]), digests_of(ended)


# -- the question ------------------------------------------------------------------------------------------------------

Plan = Sequence[tuple[int, int]]
"""(steps between two replacements, number of replacements); windows of the same spacing count as one."""
SPACINGS: Plan = ((25, 5), (100, 2), (12, 8), (100, 2), (200, 1), (50, 3), (100, 2))
RESTARTS: Plan = ((100, 1), (50, 2), (25, 2))
QUICK_SPACINGS: Plan = ((100, 1), (25, 2))
QUICK_RESTARTS: Plan = ((25, 1),)
CALM = 20
"""Steps of a calm window."""
POOL = 2
MACHINES = 8
"""Machines of the job in which several are replaced at once."""
SHARES = {"quarter": MACHINES // 4, "half": MACHINES // 2}
COUNTS = tuple(sorted({1, *SHARES.values()}))
QUIET, AFTER = 10, 12
"""Steps measured before and after a replacement."""
MOVES = {"own": 6, "shared": 4}
QUICK_MOVES = {"own": 2}
LINK_RATES = {"own": 12_000_000, "shared": 0}
"""Bytes per second of a machine's link for state; 0: unlimited."""

BAR = 0.99
AT = 100
KNEE = 0.95
MOVE_BAR = 1.5
FLOOR_S = 0.002
"""Losses below this cannot be measured."""

Row = dict[str, object]


# -- figures -----------------------------------------------------------------------------------------------------------


def speed_left(window: Window, step_s: float) -> float:
    """The speed of a window, as a share of the speed of an undisturbed job."""
    return window.steps * step_s / window.seconds


def joined(windows: Sequence[Window]) -> Window:
    return Window(
        sum(window.steps for window in windows),
        sum(window.seconds for window in windows),
        sum(window.changes for window in windows),
        sum(window.lost_s for window in windows),
    )


def row_of(spacing: int, control: Window, replacing: Window, step_s: float) -> Row:
    wall, cores = speed_left(replacing, step_s), speed_left(control, step_s)
    return {
        "part": "spacing",
        "system": "understudy",
        "spacing": spacing,
        "made": round(replacing.steps / replacing.changes, 1),
        "changes": replacing.changes,
        "wall": round(wall, 4),
        "cores": round(cores, 4),
        "replacing": round(wall / cores, 4),
        "told_lost_s": round(replacing.lost_s / replacing.changes, 4),
        "step_s": round(step_s, 4),
    }


def restart_row(spacing: int, window: Window, step_s: float) -> Row:
    return {
        "part": "spacing",
        "system": "restart",
        "spacing": spacing,
        "made": float(spacing),
        "changes": window.changes,
        "wall": round(speed_left(window, step_s), 4),
        "step_s": round(step_s, 4),
    }


def knee(points: Mapping[float, float], level: float) -> float | None:
    """The spacing at which the remaining speed falls below a level, interpolated between logarithms of spacings.

    None: never; infinite: already at the widest spacing.
    """
    ordered = sorted(points.items(), reverse=True)
    if not ordered or ordered[0][1] < level:
        return math.inf
    for (wide, above), (close_by, below) in pairwise(ordered):
        if below < level:
            share = (above - level) / (above - below)
            return math.exp(math.log(wide) + share * (math.log(close_by) - math.log(wide)))
    return None


def knee_row(rows: Sequence[Mapping[str, Any]], system: str, column: str) -> Row:
    points = {row["made"]: row[column] for row in rows if row["system"] == system and column in row}
    found = knee(points, KNEE)
    least = min(points) if points else 0
    text = "more than all that were tried" if found == math.inf else f"less than {least:g}, if at all"
    return {
        "part": f"spacing at which less than {KNEE:g} is left",
        "system": system,
        "of": column,
        "steps": text if found is None or found == math.inf else round(found, 1),
    }


def moved(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row for each kind of links and number of machines: medians and 80 % spreads."""
    found: list[Row] = []
    for links, count in sorted({(row["links"], row["machines"]) for row in rows}):
        alike = [row for row in rows if row["links"] == links]
        mine = [row for row in alike if row["machines"] == count]
        lost = [row["lost_s"] for row in mine]
        one = median(row["lost_s"] for row in alike if row["machines"] == 1)
        found.append(
            {
                "part": "at once",
                "links": links,
                "machines": count,
                "of": MACHINES,
                "round": f"all {len(mine)}",
                "lost_s": round(median(lost), 4),
                "ratio": round(max(median(lost), FLOOR_S) / max(one, FLOOR_S), 3),
                "lost_spread": [round(value, 4) for value in spread(lost)],
                "measured_s": round(median(row["measured_s"] for row in mine), 4),
                "step_s": round(median(row["step_s"] for row in mine), 4),
            }
        )
    return found


def checks_of(rows: Sequence[Mapping[str, Any]], moves: Sequence[Mapping[str, Any]], same: bool) -> list[Check]:
    at = next(row for row in rows if row["system"] == "understudy" and row["spacing"] == AT)
    ratios = {row["machines"]: row["ratio"] for row in moves if row["links"] == "own"}
    shared = {row["machines"]: row["ratio"] for row in moves if row["links"] == "shared"}
    return [
        Check(f"left_at_{AT}", at["replacing"], f">= {BAR}", at["replacing"] >= BAR),
        Check("wall_left_at_100", at["wall"], "any: the cores are shared", True),
        *(
            Check(f"{share}_at_once", ratios[count], f"< {MOVE_BAR} times one machine", ratios[count] < MOVE_BAR)
            for share, count in SHARES.items()
        ),
        *(
            Check(f"{share}_at_once_shared_links", shared[count], "any: the cores are shared", True)
            for share, count in SHARES.items()
            if count in shared
        ),
        Check("bit_identical", "yes" if same else "no", "yes", same),
    ]


# -- the windows -------------------------------------------------------------------------------------------------------


async def _rebalance(plan: Plan, folder: Path, done: Callable[[str], None]) -> tuple[list[Row], int, Mapping[str, str]]:
    """Run one job through the plan. Returns a row for each spacing, the number of steps, and the final digests."""
    job, marks = opened(folder, 2, POOL)
    calm: list[Window] = []
    seen: dict[int, dict[bool, list[Window]]] = {}
    async with job:
        pooled = PooledJob(job, marks, 2, POOL)
        await pooled.reach(WARM_UP)
        for number, (spacing, times) in enumerate(plan):
            for replacing in (False, True) if number % 2 else (True, False):
                await pooled.full()
                calm.append(await pooled.calm(CALM))
                window = await pooled.disturbed(spacing, times, replacing=replacing)
                seen.setdefault(spacing, {False: [], True: []})[replacing].append(window)
                done(f"every {spacing} steps, {'replacing' if replacing else 'control'}: {window.step_s:.3f} s a step")
        steps, digests = await close(job)
    step_s = sum(window.seconds for window in calm) / sum(window.steps for window in calm)
    rows = [
        row_of(spacing, joined(pair[False]), joined(pair[True]), step_s)
        for spacing, pair in sorted(seen.items(), reverse=True)
    ]
    return rows, steps, digests


async def _move(links: str, times: int, folder: Path, done: Callable[[str], None]) -> list[Row]:
    pool = max(COUNTS)
    job, marks = opened(folder, MACHINES, pool, "slow", LINK_RATES[links])
    rows: list[Row] = []
    async with job:
        pooled = PooledJob(job, marks, MACHINES, pool)
        await pooled.reach(WARM_UP)
        for number, count in interleave(COUNTS, times):
            row = await pooled.move(count, QUIET, AFTER)
            told = {"part": "at once", "links": links, "machines": count, "of": MACHINES, "round": number}
            rows.append(rounded({**told, **row}))
            done(f"{count} of {MACHINES} at once, links {links}: {row['lost_s']:.3f} s lost")
        await close(job)
    return rows


def measure(quick: bool, progress: Progress) -> Result:
    plan, starts, times = (QUICK_SPACINGS, QUICK_RESTARTS, QUICK_MOVES) if quick else (SPACINGS, RESTARTS, MOVES)
    progress.total = 2 * len(plan) + len(starts) + len(COUNTS) * sum(times.values()) + 1
    with workplace() as place:
        rows, steps, digests = asyncio.run(_rebalance(plan, place / "spaced", progress.advance))
        for number, (spacing, count) in enumerate(starts):
            window, step_s = restarts(place / f"restart-{number}", spacing, count)
            rows.append(restart_row(spacing, window, step_s))
            progress.advance(f"restart every {spacing} steps: {window.step_s:.3f} s a step")
        same = asyncio.run(undisturbed(place / "undisturbed", 2, steps)) == digests
        progress.advance(f"undisturbed, {steps} steps")
        moves: list[Row] = []
        for links, rounds in times.items():
            moves += asyncio.run(_move(links, rounds, place / f"moved-{links}", progress.advance))
    knees = [knee_row(rows, "understudy", column) for column in ("wall", "replacing")]
    summed = moved(moves)
    knees.append(knee_row(rows, "restart", "wall"))
    return Result([*rows, *knees, *moves, *summed], checks_of(rows, summed, same))


BENCH = Bench("rebalance", "how much speed remains when a machine is replaced every so many steps", measure)
