"""The cost of recording: the time of a step after the recording, against a job that never records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from understudy_bench.harness.bench import Check, interleave, median, spread
from understudy_bench.harness.job import BenchJob
from understudy_bench.harness.turns import STEPS, WARM_UP, Turns, kept, ours
from understudy_bench.rehearsal.promotion import EXAMPLES

SYSTEMS = {"recorded": (), "unrecorded": ("--recording-limit", "0")}
BAR = 1.02
WEIGHED = ("gpt_ddp.py", "gpt_fsdp.py")
"""Examples of which the recordings are measured, at their usual size."""

Row = dict[str, object]
Blocks = Mapping[str, Sequence[Sequence[float]]]
"""Recorded or not → block → seconds of its steps on all workers."""


def step_rows(times: Blocks) -> list[Row]:
    """One row for each pair of blocks, and one for all."""
    rows: list[Row] = []
    for number, (on, off) in enumerate(zip(times["recorded"], times["unrecorded"], strict=True)):
        found = {"recorded_s": round(median(on), 4), "unrecorded_s": round(median(off), 4)}
        rows.append({"part": "recording", "round": str(number), **found, "ratio": round(median(on) / median(off), 4)})
    return [*rows, {"part": "recording", "round": f"all {len(rows)}", **_total(times)}]


def _total(times: Blocks) -> Row:
    pooled = {system: [each for block in times[system] for each in block] for system in SYSTEMS}
    return {
        **{f"{system}_s": round(median(values), 4) for system, values in pooled.items()},
        "ratio": round(step_ratio(times), 4),
        "ratio_spread": [round(each, 4) for each in spread(pairs(times))],
    }


def pairs(times: Blocks) -> list[float]:
    """For each pair of neighbouring blocks: the step time after a recording, divided by that without one."""
    return [median(on) / median(off) for on, off in zip(times["recorded"], times["unrecorded"], strict=True)]


def step_ratio(times: Blocks) -> float:
    """The median over pairs: other programs of the computer affect both blocks of most pairs alike."""
    return median(pairs(times))


def size_row(model: str, recorded: Sequence[int]) -> Row:
    """The sizes of a model's recordings; roles with equal state share one recording."""
    sizes = [round(size / 1e6, 3) for size in recorded]
    return {"part": "recording", "model": model, "recordings": len(sizes), "recorded_mb": sizes}


def check_of(times: Blocks) -> Check:
    ratio = step_ratio(times)
    return Check("recording_off", round(ratio, 4), f"<= {BAR}", ratio <= BAR)


def step_times(folder: Path, blocks: int, done: Callable[[str], None]) -> dict[str, list[list[float]]]:
    """Run both jobs at the same time, and let them train by turns."""
    folder.mkdir(parents=True)
    commands = {system: ours(system, folder, 2, 1, options) for system, options in SYSTEMS.items()}
    times: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
    with Turns(2, commands, folder / "gate") as jobs:
        for system in SYSTEMS:
            jobs.train(system, WARM_UP)
        for block, system in interleave(tuple(SYSTEMS), blocks):
            times[system].append(kept(jobs.train(system, STEPS)))
            done(f"{system}, block {block + 1}")
    return times


async def sizes_of(example: str, folder: Path) -> list[int]:
    """The bytes of an example's recordings."""
    settings = {"script": str(EXAMPLES / example), "name": "bench-rehearsal", "machines": 2, "steps": 6, "threads": 1}
    async with BenchJob({**settings, "run_dir": str(folder)}) as job:
        await job.ended()
        return [int(event["data"]["bytes"]) for event in job.events if event["kind"] == "recorded"]
