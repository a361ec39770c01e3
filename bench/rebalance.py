"""Rebalance: a machine is replaced every so many steps for as long as a job runs; how much of its speed is left?

A step takes 0.2 s, of which its worker computes a little and waits for the rest, as for an accelerator: the processor's
two cores are free for the machines that start beside it, as they would be elsewhere. They still are two cores for
everybody. So there are three kinds of windows, by turns in one job:

- calm: nothing happens;
- control: standbys start, rehearse and are dismissed at the same rate, and nobody is replaced;
- replacing: the same standbys start and rehearse, and each takes a machine's place.

`wall` is what is left of a calm window's speed when machines are replaced, `cores` what is left of it in the control
window: that part of the loss is due to the cores that all machines share here, and is none where each has its own.
`replacing` is the first in proportion to the second: what the replacements themselves leave. A replacement that has to
wait for its standby makes the spacing longer: `spacing` is what was asked for, `made` what came about.

The restart does the same with torchrun: save, end, start, load. In the end the job that was disturbed all the time must
hold, bit for bit, what an undisturbed one holds after as many steps.

Moving: of eight machines one, a quarter and half are replaced at one boundary, by turns; what training lost is what the
runtime says, and `ratio` is that in proportion to what one machine costs. `measured_s` is the same by the clock, from
the request on, with all that shares the cores. State goes from each machine to its successor, in two ways:

- links own: each machine gives its state, 2.4 MB and then 0.8 MB of gradients, at 12 MB/s. That takes 0.2 s and 0.07 s,
  as 10 GB and 3.3 GB do between accelerators with 400 Gbit/s each. This has the bar.
- links shared: as fast as two cores move it for all machines together. There is next to nothing to wait for, and
  four newcomers cost two cores four times what one costs; where each machine has cores of its own, they do not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from understudy_bench.harness import Bench, Check, Progress, Result, interleave, median, rounded, spread
from understudy_bench.processes import workplace
from understudy_bench.rebalance_job import WARM_UP, Troupe, Window, close, opened, restarts, undisturbed

Plan = Sequence[tuple[int, int]]
"""Steps between two replacements, and how many there are; windows of the same spacing count as one."""
SPACINGS: Plan = ((25, 5), (100, 2), (12, 8), (100, 2), (200, 1), (50, 3), (100, 2))
RESTARTS: Plan = ((100, 1), (50, 2), (25, 2))
QUICK_SPACINGS: Plan = ((100, 1), (25, 2))
QUICK_RESTARTS: Plan = ((25, 1),)
CALM = 20
"""Steps of a calm window."""
POOL = 2
MACHINES = 8
"""Of the job in which several are replaced at once."""
SHARES = {"quarter": MACHINES // 4, "half": MACHINES // 2}
COUNTS = tuple(sorted({1, *SHARES.values()}))
QUIET, AFTER = 10, 12
"""Steps before and after that."""
MOVES = {"own": 6, "shared": 4}
QUICK_MOVES = {"own": 2}
LINK_RATES = {"own": 12_000_000, "shared": 0}
"""Bytes a second over a machine's link for state; 0: as many as it can."""

BAR = 0.99
AT = 100
KNEE = 0.95
MOVE_BAR = 1.5
FLOOR_S = 0.002
"""Below this nothing is measured."""

Row = dict[str, object]


# -- what is computed from what was seen -------------------------------------------------------------------------------


def speed_left(window: Window, step_s: float) -> float:
    """Of the steps that an undisturbed job makes in the same time, those that this one has made."""
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
    """The spacing at which the speed that is left falls below a level, between those that were measured, by their
    logarithms; None where it never does, infinite where it always is."""
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
    """A row for each kind of links and number of machines: the median, and where most repetitions lie."""
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


# -- what is done ------------------------------------------------------------------------------------------------------


async def _rebalance(plan: Plan, folder: Path, done: Callable[[str], None]) -> tuple[list[Row], int, Mapping[str, str]]:
    """One life of a job; a row for each spacing, its steps in all, and what its roles hold in the end."""
    job, marks = opened(folder, 2, POOL)
    calm: list[Window] = []
    seen: dict[int, dict[bool, list[Window]]] = {}
    async with job:
        troupe = Troupe(job, marks, 2, POOL)
        await troupe.reach(WARM_UP)
        for number, (spacing, times) in enumerate(plan):
            for replacing in (False, True) if number % 2 else (True, False):
                await troupe.full()
                calm.append(await troupe.calm(CALM))
                window = await troupe.disturbed(spacing, times, replacing=replacing)
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
        troupe = Troupe(job, marks, MACHINES, pool)
        await troupe.reach(WARM_UP)
        for number, count in interleave(COUNTS, times):
            row = await troupe.move(count, QUIET, AFTER)
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


BENCH = Bench("rebalance", "how much of its speed is left when a machine is replaced every so many steps", measure)
