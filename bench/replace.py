"""Replace: what training loses when a machine is replaced by plan, against the two ways it could be done otherwise.

- understudy: the newcomer rehearses and connects while the others train, state travels while the last step computes;
- naive: the same runtime with the world stopped, so that everybody waits while the newcomer rehearses, all links are
  opened anew, and the state goes over at the boundary;
- restart: save a checkpoint, end, start everything again with torchrun, load.

Understudy and naive take turns in one job of two machines. While it runs there is no restart, and while there is a
restart it does not run: nobody computes beside the one that is measured. The blocks of both kinds alternate.

What is lost is the time of the two steps around the change beyond two usual ones; for a restart, the time from the end
of the last step before to the end of the first one after, beyond one usual step. Usual is the median of undisturbed
steps just before. `told_s` is what the runtime itself says. Usual, for the runtime, are the last steps before the
change; where all machines share two cores, these are slow while the newcomer rehearses. So it says less, and it is not
what is compared. `beside_s` is what those slow steps took beyond usual ones; a machine of its own would take nothing.
What the leaver's processes use to end, after the newcomer's first step, is in none of the figures, for the same reason.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from understudy.launch.local import LocalJob
from understudy.launch.spec import make
from understudy_bench.harness import Bench, Check, Progress, Result, interleave, median, spread
from understudy_bench.processes import Command, CommandFailed, interruptible, torchrun
from understudy_bench.scripts import OURS, PLAIN

BLOCKS = (("understudy", "naive", "understudy"), ("understudy", "understudy", "naive")) * 3
"""The replacements in each life of the job; after or before each of them comes a restart."""
QUICK = (("understudy", "naive", "understudy", "understudy"),)
QUIET = 12
"""Undisturbed steps before a replacement, to know how long one takes."""
WARM_UP = 5
LIMIT_S = 180.0
LOOK_S = 0.1
RESTART_BAR = 40

Row = dict[str, object]
Steps = Mapping[tuple[int, int], float]
"""(role, step) → its seconds, from the end of the step before to its own."""


# -- what is computed from what was seen -------------------------------------------------------------------------------


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


def restart_row(
    before: Sequence[tuple[str, float]], launched: float, after: Sequence[tuple[str, float]]
) -> tuple[float, float, dict[str, float]]:
    """Seconds lost, seconds of a usual step and where the time went, from what ended when in both lives of the job."""
    ends = [at for name, at in before if name == "step"]
    step_s = median(later - end for end, later in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False))
    clock = ends[-1]
    phases = {}
    for name, at in [
        *(mark for mark in before if mark[0] == "save"),
        ("stop", launched),
        *(mark for mark in after if mark[0] != "step"),
        ("first step", next(at for name, at in after if name == "step")),
    ]:
        phases[name], clock = at - clock, at
    return clock - ends[-1] - step_s, step_s, phases


def by_system(rows: Iterable[Mapping[str, Any]], column: str) -> dict[str, list[float]]:
    """A column's values, of the rows that have it."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if column in row:
            found.setdefault(row["system"], []).append(row[column])
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for all repetitions of a system together: medians, and where most of them lie."""
    columns = {column: by_system(rows, column) for column in ("lost_s", "told_s", "beside_s", "step_s")}
    found: list[Row] = []
    for system, values in columns["lost_s"].items():
        medians = {name: round(median(column[system]), 4) for name, column in columns.items() if system in column}
        lost_spread = [round(value, 4) for value in spread(values)]
        found.append({"system": system, "round": "all", **medians, "lost_spread": lost_spread})
    return found


def checks_of(lost: Mapping[str, Sequence[float]]) -> list[Check]:
    ours = max(median(lost["understudy"]), 1e-3)  # below a millisecond nothing is measured
    restart, naive = median(lost["restart"]) / ours, median(lost["naive"]) / ours
    return [
        Check("ratio_restart", round(restart, 1), f">= {RESTART_BAR}", restart >= RESTART_BAR),
        Check("ratio_naive", round(naive, 1), "> 1", naive > 1),
    ]


# -- the job whose machines are replaced -------------------------------------------------------------------------------


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

    async def replace(self, system: str) -> Row:
        newcomer = await self._standby()
        await self.train(3)
        quiet = self.step
        await self.train(QUIET)
        asked = self.step
        roster = await self.call("GET", "/roster")
        leaver = roster[self._replaced % len(roster)]["machine"]
        self._replaced += 1
        request = {"type": "replace", "machines": [leaver], "standbys": [newcomer]}
        answer = await self.call("POST", "/replace", {**request, "stop_the_world": system == "naive"})
        late = time.monotonic() + LIMIT_S
        while not answer["done"]:
            if time.monotonic() > late:
                raise CommandFailed(f"replacing {leaver} has not ended within {LIMIT_S:g} s")
            await self.until("a step", lambda: True)
            answer = await asyncio.to_thread(self._job.client.answer, answer["id"], 1.0)
        if not answer["ok"] or "lost" not in answer:
            raise CommandFailed("\n  ".join([f"replacing {leaver}: {answer['text']}", *self._said[-15:]]))

        metrics = self._job.run_dir / f"metrics-{newcomer}.jsonl"

        def first_step() -> int:
            with metrics.open() as file:
                return min((step for _, step in read_steps(file)), default=0)

        first = await self.until(f"the first step of {newcomer}", first_step)
        await self.until(f"step {first}", lambda: self.step > first)
        steps = self.steps()
        usual_s = usual(steps, quiet, asked - 1)
        return {
            "lost_s": lost_around(steps, first, usual_s),
            "told_s": answer["lost"],
            "beside_s": slowed(steps, asked, first - 2, usual_s),
            "step_s": usual_s,
            "phases": answer["phases"],
            "bytes": answer["bytes"],
            "again": answer["again"],
        }


async def _replacements(block: Sequence[str], folder: Path, done: Callable[[str], None]) -> list[tuple[str, Row]]:
    """One life of a job, in which its machines are replaced one after the other."""
    settings = {"script": OURS, "name": "bench-replace", "machines": 2, "threads": 1, "run_dir": str(folder)}
    spec = make(
        {**settings, "warm": 0}
    )  # the newcomer rehearses when it is asked for, so that it is seen what that costs
    said: list[str] = []
    rows = []
    async with LocalJob(spec, on_line=said.append) as job:
        following = asyncio.ensure_future(job.wait())
        try:
            stage = Stage(job, following, said)
            await stage.train(WARM_UP)
            for system in block:
                rows.append((system, await stage.replace(system)))
                done(system)
            await job.stop()
            await asyncio.wait_for(following, LIMIT_S)
        finally:
            following.cancel()
    return rows


# -- the restart -------------------------------------------------------------------------------------------------------


def _restart(folder: Path) -> Row:
    """A job that is ended with a checkpoint and started again."""
    folder.mkdir()
    checkpoint, marks = folder / "checkpoint.pt", (folder / "before", folder / "after")
    steps = (WARM_UP + QUIET + 1, 3)
    launched = []
    for number, extra in enumerate((("--save",), ())):
        options = ("--steps", str(steps[number]), "--checkpoint", str(checkpoint), "--marks", str(marks[number]))
        command, env = torchrun(2, PLAIN, *options, *extra)
        launched.append(time.time())
        with Command(command, folder / "log", env) as running:
            running.wait(LIMIT_S)
    before, after = (json.loads(path.read_text()) for path in marks)
    lost_s, step_s, phases = restart_row(before, launched[1], after)
    size = checkpoint.stat().st_size
    checkpoint.unlink()
    return {"lost_s": lost_s, "step_s": step_s, "phases": phases, "bytes": size}


def measure(quick: bool, progress: Progress) -> Result:
    blocks = QUICK if quick else BLOCKS
    progress.total = sum(len(block) + 1 for block in blocks)
    rows: list[Row] = []

    def keep(system: str, number: int, row: Row) -> None:
        rows.append({"system": system, "round": number, **_rounded(row)})

    with interruptible(), TemporaryDirectory(prefix="understudy-bench-") as folder:
        for number, kind in interleave(("job", "restart"), len(blocks)):
            place = Path(folder) / f"{kind}-{number}"
            if kind == "restart":
                keep("restart", number, _restart(place))
                progress.advance(f"restart {number + 1}")
                continue
            for system, row in asyncio.run(_replacements(blocks[number], place, progress.advance)):
                keep(system, number, row)
    return Result([*rows, *summary(rows)], checks_of(by_system(rows, "lost_s")))


def _rounded(row: Row) -> Row:
    """Tenths of milliseconds are enough."""

    def short(value: object) -> object:
        if isinstance(value, float):
            return round(value, 4)
        return {name: short(each) for name, each in value.items()} if isinstance(value, dict) else value

    return {name: short(value) for name, value in row.items()}


BENCH = Bench("replace", "what training loses by a planned replacement, against restarting from a checkpoint", measure)
