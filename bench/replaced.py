"""A job whose machines are replaced by plan, one after the other, and what its steps took around that."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.launch.local import LocalJob
from understudy.launch.spec import make
from understudy_bench.around import Curve, of_ends
from understudy_bench.harness import median
from understudy_bench.processes import CommandFailed

QUIET = 12
"""Undisturbed steps before a replacement, to know how long one takes."""
AFTER = 6
"""Steps after a newcomer's first one, to see that training is as fast as before."""
WARM_UP = 5
LIMIT_S = 180.0
LOOK_S = 0.1

Row = dict[str, object]
Steps = Mapping[tuple[int, int], float]
"""(role, step) → its seconds, from the end of the step before to its own."""


@dataclass(frozen=True)
class Life:
    """A job's script, its settings, and who is measured in it, one replacement after the other."""

    script: str
    settings: Mapping[str, object]
    systems: Sequence[str]
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """Of one replacement: its figures, and how fast training was around it."""

    row: Row
    around: Curve


def read_steps(lines: Iterable[str]) -> dict[tuple[int, int], float]:
    """The metrics that agents write; a line that is not complete yet is left out."""
    found = {}
    for line in lines:
        if line.endswith("\n"):
            entry = json.loads(line)
            found[entry["role"], entry["step"]] = float(entry["seconds"])
    return found


def usual(steps: Steps, first: int, last: int) -> float:
    """The median of these steps on all roles."""
    return median(seconds for (_, step), seconds in steps.items() if first <= step <= last)


def lost_around(steps: Steps, first: int, usual_s: float) -> float:
    """What the slowest role has lost by a change whose first step is `first`."""
    return max(steps[role, first - 1] + steps[role, first] for role in {role for role, _ in steps}) - 2 * usual_s


def slowed(steps: Steps, first: int, last: int, usual_s: float) -> float:
    """What these steps took beyond usual ones, on the slowest role."""
    numbers = range(first, last + 1)
    return max(sum(steps[role, step] - usual_s for step in numbers) for role in {role for role, _ in steps})


def around(steps: Steps, first: int, since: int, usual_s: float) -> Curve:
    """How fast the role was that lost most; time counts from the end of the last step before the two that count."""
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


class Stage:
    """A job that trains, and its metrics."""

    def __init__(self, job: LocalJob, following: asyncio.Task[Any], said: Sequence[str]) -> None:
        self._job, self._following, self._said = job, following, said
        self._replaced = 0

    async def until(self, what: str, look: Callable[[], Any]) -> Any:
        """What `look` finds, once it finds something."""
        late = time.monotonic() + LIMIT_S
        while not (found := look()):
            if self._following.done():
                ended = self._following.result()
                raise CommandFailed("\n  ".join([f"the job has {ended.status}: {ended.reason}", *self._said[-15:]]))
            if time.monotonic() > late:
                raise CommandFailed("\n  ".join([f"{what}: nothing for {LIMIT_S:g} s", *self._said[-15:]]))
            await asyncio.sleep(LOOK_S)
        return found

    async def call(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self._job.client.call, method, path, body)

    @property
    def step(self) -> int:
        return max((step for _, step in self.steps()), default=0)

    async def train(self, steps: int) -> None:
        goal = self.step + steps
        await self.until(f"step {goal}", lambda: self.step >= goal)

    def steps(self) -> dict[tuple[int, int], float]:
        found = {}
        for path in self._job.run_dir.glob("metrics-*.jsonl"):
            with path.open() as file:
                found.update(read_steps(file))
        return found

    async def _standby(self) -> str:
        """A machine that waits, with its worker started."""
        await self.call("POST", "/standbys", {"type": "add-standby", "count": 1})
        late = time.monotonic() + LIMIT_S
        while True:
            for machine in await self.call("GET", "/machines"):
                if machine["state"] == "standby" and machine["pids"] and all(machine["pids"]):
                    return str(machine["name"])
            if time.monotonic() > late:
                raise CommandFailed(f"no standby has come within {LIMIT_S:g} s")
            await self.until("a step", lambda: True)
            await asyncio.sleep(LOOK_S)

    async def replace(self, system: str) -> Seen:
        newcomer = "" if system == "no standby" else await self._standby()
        await self.train(3)
        quiet = self.step
        await self.train(QUIET)
        asked = self.step
        roster = await self.call("GET", "/roster")
        role = self._replaced % len(roster)
        leaver = roster[role]["machine"]
        self._replaced += 1
        options = {"stop_the_world": system == "naive", "all_links": system == "no delta"}
        request = {"type": "replace", "machines": [leaver], "standbys": [newcomer] if newcomer else []}
        asked_at = time.monotonic()
        if not newcomer:
            await self.call("POST", "/standbys", {"type": "add-standby", "count": 1})
        answer = await self.call("POST", "/replace", {**request, **options})
        late = time.monotonic() + LIMIT_S
        while not answer["done"]:
            if time.monotonic() > late:
                raise CommandFailed(f"replacing {leaver} has not ended within {LIMIT_S:g} s")
            await self.until("a step", lambda: True)
            answer = await asyncio.to_thread(self._job.client.answer, answer["id"], 1.0)
        if not answer["ok"] or "lost" not in answer:
            raise CommandFailed("\n  ".join([f"replacing {leaver}: {answer['text']}", *self._said[-15:]]))

        if not newcomer:
            newcomer = (await self.call("GET", "/roster"))[role]["machine"]
        metrics = self._job.run_dir / f"metrics-{newcomer}.jsonl"

        def first_step() -> int:
            with metrics.open() as file:
                return min((step for _, step in read_steps(file)), default=0)

        first = await self.until(f"the first step of {newcomer}", first_step)
        ready_s = time.monotonic() - asked_at
        await self.until(f"step {first + AFTER}", lambda: self.step > first + AFTER)
        steps = self.steps()
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
        return Seen(row, around(steps, first, quiet, usual_s))


async def replacements(life: Life, folder: Path, done: Callable[[str, Seen], None]) -> None:
    """One life of a job, in which its machines are replaced one after the other."""
    settings = {"script": life.script, "args": life.args, "name": "bench-replace", "machines": 2, "threads": 1}
    # the newcomer rehearses when it is asked for, so that it is seen what that costs
    spec = make({**settings, "run_dir": str(folder), "warm": 0, **life.settings})
    said: list[str] = []
    async with LocalJob(spec, on_line=said.append) as job:
        following = asyncio.ensure_future(job.wait())
        try:
            stage = Stage(job, following, said)
            await stage.train(WARM_UP)
            for system in life.systems:
                done(system, await stage.replace(system))
            await job.stop()
            await asyncio.wait_for(following, LIMIT_S)
        finally:
            following.cancel()
