"""Memory: what a planned replacement takes on the machines that train, over and above what training takes; and what it
takes to keep gradients (`keeping.py`).

A job of three replicas of a 10-million-parameter GPT, of which one is replaced, several times. The parts are the two
stayers, the leaver and the joiner. Peaks are those of each worker's resident memory (`resident.py`).

- `steady_mb`: the peak of some steps in which nothing happens: before the change, of a joiner after it;
- `peak_mb`: the peak from the request to a few steps after the first one of the newcomer;
- `growth`: the difference in proportion to the state (parameters and the optimizer's two moments).

The JSON has the curve of each worker from before the request until after the change, a point every 20 ms, with the time
of the phases. The allocator gives large blocks back at once here, as in `bench rehearsal`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy_bench import keeping
from understudy_bench import model as gpt
from understudy_bench.harness import Bench, Check, Progress, Result, median, spread
from understudy_bench.memory import ENV
from understudy_bench.processes import rests, workplace
from understudy_bench.resident import PERIOD_S, Resident, Sampler, Watched
from understudy_bench.running import Running
from understudy_bench.scripts import OURS

MACHINES = 3
WARM_UP = 8
STEADY = 15
"""Steps of a window in which nothing happens."""
AFTER = 6
"""Steps after the change that still belong to it."""
ROUNDS, QUICK_ROUNDS = 5, 1
BAR = 0.01
PARTS = ("stayer", "leaver", "joiner")

Row = dict[str, Any]


# -- what is computed from what was seen -------------------------------------------------------------------------------


def row_of(part: str, number: int, steady: Resident, change: Resident, state: int) -> Row:
    growth = change.own_peak - steady.own_peak
    return {
        "part": "a replacement",
        "who": part,
        "round": number,
        "steady_mb": round(steady.own_peak / 1e6, 2),
        "peak_mb": round(change.own_peak / 1e6, 2),
        "growth_mb": round(growth / 1e6, 3),
        "growth": round(growth / state, 5),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for each part: medians, and where most repetitions lie."""
    found: list[Row] = []
    for part in PARTS:
        mine = [row for row in rows if row["who"] == part]
        total: Row = {"part": "a replacement", "who": part, "round": f"all {len(mine)}"}
        for name in ("steady_mb", "peak_mb", "growth_mb", "growth"):
            total[name] = round(median(row[name] for row in mine), 5)
        found.append({**total, "growth_spread": [round(value, 5) for value in spread(row["growth"] for row in mine)]})
    return found


def checks_of(summed: Sequence[Mapping[str, Any]]) -> list[Check]:
    growth = {row["who"]: row["growth"] for row in summed}
    return [
        Check("stayer_growth", growth["stayer"], f"< {BAR} of the state", growth["stayer"] < BAR),
        Check("leaver_growth", growth["leaver"], "any", True),
        Check("joiner_growth", growth["joiner"], "any", True),
    ]


def state_bytes() -> int:
    """Parameters and two moments of each."""
    return 3 * sum(parameter.numel() * parameter.element_size() for parameter in gpt.build(0).parameters())


# -- what is done ------------------------------------------------------------------------------------------------------


async def _standby(job: Running) -> Mapping[str, Any]:
    """A machine that waits, with nothing left to do."""
    await job.add_standby()

    async def there() -> Mapping[str, Any] | None:
        for machine in await job.machines():
            if machine["state"] == "standby" and len(machine["rehearsed"]) >= MACHINES:
                return machine if await rests(job.family(machine["name"])) else None
        return None

    return await job.until("a standby", there)


async def _replace(job: Running, number: int, state: int) -> list[Row]:
    standby = await _standby(job)
    players = [machine for machine in await job.machines() if machine["roles"]]
    leaver = next(machine for machine in players if number % MACHINES in machine["roles"])
    watched = [
        *(Watched("stayer", machine["pids"][0]) for machine in players if machine is not leaver),
        Watched("leaver", leaver["pids"][0]),
        Watched("joiner", standby["pids"][0]),
    ]
    with Sampler(watched) as sampler:
        sampler.window()
        await job.train(STEADY)
        steady = sampler.window()
        asked = time.time()
        answer = await job.replace(leaver["name"], standby["name"])
        done = time.time()
        await job.train(AFTER)
        await asyncio.sleep(2 * PERIOD_S)
        change = sampler.window()
        await job.train(STEADY)
        await asyncio.sleep(2 * PERIOD_S)
        later = sampler.window()
    rows = []
    for each in watched:
        usual = later if each.part == "joiner" else steady
        row = row_of(each.part, number, usual[each.pid], change[each.pid], state)
        marks = {"asked": asked, "settled": done}
        rows.append({**row, "phases": answer["phases"], "curve": each.curve(asked, marks)})
    return rows


async def _live(rounds: int, folder: Path, state: int, done: Callable[[str], None]) -> list[Row]:
    settings = {"script": OURS, "name": "bench-memory", "machines": MACHINES, "threads": 1, "env": ENV}
    rows: list[Row] = []
    async with Running({**settings, "heartbeat": 20.0, "run_dir": str(folder)}) as job:
        await job.reach(WARM_UP)
        for number in range(rounds):
            found = await _replace(job, number, state)
            rows += found
            done(f"replacement {number + 1}: stayers {max(row['growth_mb'] for row in found[:-2]):+.2f} MB")
        await job.stop()
    return rows


def measure(quick: bool, progress: Progress) -> Result:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    progress.total = rounds + len(keeping.SETTINGS)
    state = state_bytes()
    with workplace() as folder:
        rows = asyncio.run(_live(rounds, folder / "run", state, progress.advance))
        kept = asyncio.run(keeping.weigh(folder, progress.advance))
    summed = summary(rows)
    size: Row = {"part": "state", "parameters_and_moments_mb": round(state / 1e6, 2)}
    return Result([size, *rows, *summed, *kept], [*checks_of(summed), *keeping.checks_of(kept)])


BENCH = Bench("memory", "what a replacement takes of memory on stayers, leaver and joiner, and kept gradients", measure)
