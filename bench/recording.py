"""What recording costs: the step time once it is over, against a job that never records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy_bench.contest import STEPS, WARM_UP, Contest, kept, ours
from understudy_bench.harness import Check, interleave, median, spread
from understudy_bench.memory import Memory
from understudy_bench.promotion import EXAMPLES
from understudy_bench.running import Running

SYSTEMS = {"recorded": (), "unrecorded": ("--recording-limit", "0")}
MEMORY_BAR = 1.02
"""Small blocks lie in memory more or less densely: within this, it is the same."""
BAR = 1.02
WEIGHED = ("gpt_ddp.py", "gpt_fsdp.py")
"""Other examples of which the recordings are weighed, at their usual size."""

Row = dict[str, object]
Blocks = Mapping[str, Sequence[Sequence[float]]]
"""Recorded or not → block → seconds of its steps on all workers."""


def step_rows(times: Blocks) -> list[Row]:
    """A row for each pair of blocks, and one for all."""
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
    """By pair of blocks, made one after the other: how much longer a step takes where there was a recording."""
    return [median(on) / median(off) for on, off in zip(times["recorded"], times["unrecorded"], strict=True)]


def step_ratio(times: Blocks) -> float:
    """The middle one: what else the computer does meets both blocks of most pairs alike."""
    return median(pairs(times))


def size_row(model: str, recorded: Sequence[int]) -> Row:
    """Each role of its kind has one recording; of roles that hold the same, one."""
    sizes = [round(size / 1e6, 3) for size in recorded]
    return {"part": "recording", "model": model, "recordings": len(sizes), "recorded_mb": sizes}


def memory_row(training: Sequence[Memory], parked: Memory, number: int) -> Row:
    """The standby's worker against the leanest of those that train, all between two steps. What is resident counts, as
    on a machine of its own: with how many others a process shares torch's code depends on where it was forked."""
    least = min(training, key=lambda each: each.resident)
    return {
        **{"part": "memory", "round": str(number), "ratio": round(parked.resident / least.resident, 4)},
        "parked_mb": round(parked.resident / 1e6, 1),
        "training_mb": [round(each.resident / 1e6, 1) for each in training],
        "parked_own_mb": round(parked.own / 1e6, 1),
        "training_own_mb": [round(each.own / 1e6, 1) for each in training],
    }


def checks_of(times: Blocks, memory: Sequence[Mapping[str, Any]]) -> list[Check]:
    ratio, held = step_ratio(times), median(row["ratio"] for row in memory)
    return [
        Check("recording_off", round(ratio, 4), f"<= {BAR}", ratio <= BAR),
        Check("parked_memory", round(held, 4), f"<= {MEMORY_BAR}", held <= MEMORY_BAR),
    ]


def step_times(folder: Path, blocks: int, done: Callable[[str], None]) -> dict[str, list[list[float]]]:
    """Both jobs live all the time and train by turns."""
    folder.mkdir(parents=True)
    commands = {system: ours(system, folder, 2, 1, options) for system, options in SYSTEMS.items()}
    times: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
    with Contest(2, commands, folder / "gate") as contest:
        for system in SYSTEMS:
            contest.train(system, WARM_UP)
        for block, system in interleave(tuple(SYSTEMS), blocks):
            times[system].append(kept(contest.train(system, STEPS)))
            done(f"{system}, block {block + 1}")
    return times


async def sizes_of(example: str, folder: Path) -> list[int]:
    """Of the recordings that an example leaves when it is started as its first lines say."""
    settings = {"script": str(EXAMPLES / example), "name": "bench-rehearsal", "machines": 2, "steps": 6, "threads": 1}
    async with Running({**settings, "run_dir": str(folder)}) as job:
        await job.ended()
        return [int(event["data"]["bytes"]) for event in job.events if event["kind"] == "recorded"]
