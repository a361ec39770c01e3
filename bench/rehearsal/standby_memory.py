"""The memory of a standby's worker, against those that train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy_bench.harness.bench import Check, median
from understudy_bench.harness.job import BenchJob
from understudy_bench.harness.memory import RETURN_FREED, Memory, memory_of
from understudy_bench.rehearsal.first_step import WARM_UP, Contestant, standby_of

BAR = 1.02
"""Small blocks lie in memory more or less densely: ratios up to this count as equal."""

Row = dict[str, object]


def memory_row(training: Sequence[Memory], parked: Memory, number: int) -> Row:
    """The standby's worker against the leanest worker that trains, all between two steps.

    Resident memory counts, as on a machine of its own: the part that is shared with other processes depends on the
    process that forked the worker.
    """
    least = min(training, key=lambda each: each.resident)
    return {
        **{"part": "memory", "round": str(number), "ratio": round(parked.resident / least.resident, 4)},
        "parked_mb": round(parked.resident / 1e6, 1),
        "training_mb": [round(each.resident / 1e6, 1) for each in training],
        "parked_own_mb": round(parked.own / 1e6, 1),
        "training_own_mb": [round(each.own / 1e6, 1) for each in training],
    }


def check_of(rows: Sequence[Mapping[str, Any]]) -> Check:
    ratio = median(row["ratio"] for row in rows)
    return Check("parked_memory", round(ratio, 4), f"<= {BAR}", ratio <= BAR)


async def _between_steps(job: BenchJob, standby: Mapping[str, Any], rest: Path) -> tuple[list[Memory], Memory]:
    """The memory of both workers that train and of the standby's worker, while the job rests between two steps."""
    goal = job.step + 5
    half = rest.with_suffix(".half")
    half.write_text(str(goal))
    half.replace(rest)

    async def resting() -> bool | None:
        made = {entry["role"] for entry in job.metrics() if entry["step"] == goal - 1}
        return True if made == {0, 1} else None

    await job.until("a rest", resting)
    workers = [(await job.machine_of(role))["pids"][0] for role in (0, 1)]
    found = [memory_of(pid) for pid in workers], memory_of(standby["pids"][0])
    rest.unlink()
    return found


async def weigh(folder: Path, times: int, done: Callable[[str], None]) -> list[Row]:
    """Measure so many times; one row each."""
    folder.mkdir(parents=True)
    contestant = Contestant("", True)
    rows = []
    async with BenchJob({**contestant.settings(folder), "env": RETURN_FREED}) as job:
        await job.reach(WARM_UP)
        standby = await standby_of(job, contestant)
        for number in range(times):
            training, parked = await _between_steps(job, standby, folder / "rest")
            rows.append(memory_row(training, parked, number))
            done(f"memory {number + 1}")
        await job.stop()
    return rows
