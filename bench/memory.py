"""What a standby's worker holds in memory, against those that train.

The allocator gives large blocks back at once here (`MALLOC_MMAP_THRESHOLD_`): usually it keeps some of what was freed,
now more and now less, up to the size of all gradients in the same process from one step to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_bench.first_step import WARM_UP, Contestant, standby_of
from understudy_bench.resident import sizes_in
from understudy_bench.running import Running

ENV = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}


@dataclass(frozen=True)
class Memory:
    """In bytes."""

    own: int
    """What nobody else has."""
    resident: int
    """With all that it has in common with other processes, such as torch's code."""


def memory_in(lines: Iterable[str]) -> Memory:
    """From `smaps_rollup`."""
    sizes = sizes_in(lines)
    return Memory(sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Rss"])


def memory_of(pid: int) -> Memory:
    with Path(f"/proc/{pid}/smaps_rollup").open() as file:
        return memory_in(file)


async def _at_rest(job: Running, standby: Mapping[str, Any], rest: Path) -> tuple[list[Memory], Memory]:
    """Of the workers that train and of the standby's, all between two steps."""
    goal = job.step + 5
    half = rest.with_suffix(".half")
    half.write_text(str(goal))
    half.replace(rest)

    async def resting() -> bool | None:
        made = {entry["role"] for entry in job.metrics() if entry["step"] == goal - 1}
        return True if made == {0, 1} else None

    await job.until("a rest", resting)
    workers = [(await job.player(role))["pids"][0] for role in (0, 1)]
    found = [memory_of(pid) for pid in workers], memory_of(standby["pids"][0])
    rest.unlink()
    return found


async def weigh(folder: Path, times: int, done: Callable[[str], None]) -> list[tuple[list[Memory], Memory]]:
    """So many times: what two workers that train hold, and a standby's that waits beside them."""
    folder.mkdir(parents=True)
    contestant = Contestant("", True)
    found = []
    async with Running({**contestant.settings(folder), "env": ENV}) as job:
        await job.reach(WARM_UP)
        standby = await standby_of(job, contestant)
        for number in range(times):
            found.append(await _at_rest(job, standby, folder / "rest"))
            done(f"memory {number + 1}")
        await job.stop()
    return found
