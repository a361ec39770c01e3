"""Scale: what the control plane does as a job grows, from 64 to 4,096 machines.

The controller is the real one, a process of its own with its ledger on disk. The machines are a crowd: thousands of
agents in one process that speak the real protocol over real sockets, each with a worker that answers as workers do and
trains nothing. Both have one of two cores.

For each size: all machines come and the first generation is formed; then failures (a machine is lost, everybody halts
and reports, a standby takes its place) and planned replacements by turns; then a while in which agents only beat.

- `decided_s`: from the report of the loss to when the last machine has read that it is to go on;
- `armed_s`: from the request to when the leaver has read that everybody has prepared;
- `cpu_s`: processor time of the controller for one change, from the kernel's clock of it, so that whoever else computes
  here is not in it; `cpu_us_per_machine` the same in proportion;
- `frames` and `bytes` per machine, both directions, acknowledgements included.

The checks hold the slope of processor time over machines in a log-log plot from 256 up (1 is proportional) and messages
and bytes per machine, which must not grow.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy_bench.harness import Bench, Check, Progress, Result, median, spread
from understudy_bench.processes import workplace
from understudy_bench.scale_stage import Stage, controller

SIZES = (64, 256, 1024, 4096)
QUICK = (64, 256, 1024)
CHANGES = 3
"""Of each kind at each size."""
QUICK_CHANGES = 2
BEATS_S = 5.0
FROM = 256
SLOPE_BAR = 1.15
GROWTH_BAR = 1.1

Row = dict[str, object]


# -- what is computed from what was seen -------------------------------------------------------------------------------


def slope(points: Mapping[int, float]) -> float:
    """Of the straight line through the logarithms: the power of the size with which something grows."""
    xs, ys = [math.log(size) for size in points], [math.log(max(value, 1e-9)) for value in points.values()]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def column(rows: Sequence[Mapping[str, Any]], what: str, name: str) -> dict[int, float]:
    """By size, of the sizes that count."""
    return {row["machines"]: row[name] for row in rows if row["what"] == what and row["machines"] >= FROM}


def summed(what: str, machines: int, seen: Sequence[Mapping[str, float]]) -> Row:
    """One row for all changes of a kind at a size: medians."""
    row: Row = {"part": "changes", "what": what, "machines": machines, "rounds": len(seen)}
    for name in seen[0]:
        row[name] = round(median(each[name] for each in seen), 4)
    cpu = [each["cpu_s"] for each in seen]
    row["cpu_us_per_machine"] = round(1e6 * median(cpu) / machines, 1)
    row["cpu_spread"] = [round(value, 4) for value in spread(cpu)]
    return row


def checks_of(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    checks = []
    for what in ("failure", "planned"):
        power = slope(column(rows, what, "cpu_s"))
        checks.append(Check(f"{what}_cpu_slope", round(power, 3), f"<= {SLOPE_BAR}", power <= SLOPE_BAR))
    for what in ("failure", "planned"):
        for name in ("frames", "bytes"):
            values = column(rows, what, name)
            growth = values[max(values)] / values[min(values)]
            checks.append(Check(f"{what}_{name}_growth", round(growth, 3), f"<= {GROWTH_BAR}", growth <= GROWTH_BAR))
    return checks


# -- what is done ------------------------------------------------------------------------------------------------------


async def _at_size(machines: int, changes: int, folder: Path, done: Callable[[str], None]) -> list[Row]:
    folder.mkdir()
    seen: dict[str, list[dict[str, float]]] = {}
    with controller(folder, machines) as (process, url, secret):
        async with Stage(process, url, secret, machines) as stage:
            seen["formation"] = [await stage.form()]
            done(f"{machines} machines: formed")
            for number in range(changes):
                for what in ("failure", "planned"):
                    found = await (stage.failure() if what == "failure" else stage.planned())
                    seen.setdefault(what, []).append(found)
                    done(f"{machines} machines, {what} {number + 1}: {found['cpu_s']:.3f} s of processor time")
            beats = await stage.beats(BEATS_S)
            done(f"{machines} machines: beats")
    rows = [summed(what, machines, each) for what, each in seen.items()]
    return [*rows, {"part": "at rest", "machines": machines, **beats}]


def measure(quick: bool, progress: Progress) -> Result:
    sizes, changes = (QUICK, QUICK_CHANGES) if quick else (SIZES, CHANGES)
    progress.total = len(sizes) * (2 + 2 * changes)
    rows: list[Row] = []
    with workplace() as folder:
        for machines in sizes:
            rows += asyncio.run(_at_size(machines, changes, folder / str(machines), progress.advance))
    kinds = [row for row in rows if "what" in row]
    return Result(sorted(rows, key=_order), checks_of(kinds))


def _order(row: Mapping[str, Any]) -> tuple[bool, str]:
    """Changes of a kind together."""
    return row["part"] != "changes", str(row.get("what", ""))


BENCH = Bench("scale", "what a change costs the controller, from 64 to 4,096 machines", measure)
