"""A job whose machines are replaced again and again, and what its marks tell of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.launch.local import Ended
from understudy_bench.outage import Mark, Watch
from understudy_bench.processes import Command, CommandFailed, torchrun
from understudy_bench.running import Running
from understudy_bench.scripts import OURS, RESTARTED

WARM_UP = 10
"""Steps before anything is done: the recording is over then."""
SETTLE = 3
"""Steps after the pool is full, in which nothing is counted."""
LIMIT_S = 300.0


@dataclass(frozen=True)
class Window:
    """Steps that were made one after the other, and how long that took."""

    steps: int
    seconds: float
    changes: int = 0
    lost_s: float = 0.0
    """What the runtime says that training has lost by those changes."""

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


def ended_at(marks: Iterable[Mark], step: int) -> float:
    """When the last of all places has ended a step."""
    return max(mark.at for mark in marks if mark.kind == "end" and mark.step == step)


class Troupe:
    """A job with a pool of standbys that is kept full."""

    def __init__(self, job: Running, marks: Path, machines: int, pool: int) -> None:
        self._job, self._machines, self._pool = job, machines, pool
        self._watch = Watch(marks)
        self._turn = 0

    async def reach(self, step: int) -> None:
        """All places have ended this step."""

        async def there() -> bool | None:
            marks = self._watch.look()[-6 * self._machines :]
            done = {mark.place for mark in marks if mark.kind == "end" and mark.step >= step}
            return True if len(done) == self._machines else None

        await self._job.until(f"step {step}", there)

    @property
    def step(self) -> int:
        """The last that somebody has ended."""
        return max((mark.step for mark in self._watch.look()[-6 * self._machines :] if mark.kind == "end"), default=-1)

    async def _ready(self) -> list[str]:
        """Standbys with nothing left to rehearse."""
        found = [machine for machine in await self._job.machines() if machine["state"] == "standby"]
        return [m["name"] for m in found if m["pids"] and all(m["pids"]) and len(m["rehearsed"]) >= self._machines]

    async def full(self) -> None:
        """The pool is full, and everybody in it has rehearsed."""

        async def there() -> bool | None:
            return True if len(await self._ready()) >= self._pool else None

        await self._job.until(f"{self._pool} standbys", there)
        await self.reach(self.step + SETTLE)

    async def calm(self, steps: int) -> Window:
        """Nothing happens meanwhile."""
        first = self.step
        await self.reach(first + steps)
        return self._window(first, first + steps)

    def _window(self, first: int, last: int, changes: int = 0, lost_s: float = 0.0) -> Window:
        marks = self._watch.look()
        return Window(last - first, ended_at(marks, last) - ended_at(marks, first), changes, lost_s)

    async def _leavers(self, count: int) -> list[str]:
        """The machines whose turn it is."""
        names = {role: machine["name"] for machine in await self._job.machines() for role in machine["roles"]}
        chosen = [names[(self._turn + number) % self._machines] for number in range(count)]
        self._turn += count
        return chosen

    async def disturbed(self, spacing: int, times: int, *, replacing: bool) -> Window:
        """A replacement every so many steps, or the same standbys coming and going without one."""
        first = self.step
        lost = 0.0
        for number in range(times):
            await self.reach(first + number * spacing + spacing // 2)
            if replacing:
                answer = await self._job.replace_all(await self._leavers(1))
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
        """Replace so many at one boundary, and bring others for the pool when that is over."""
        await self.full()
        before = await self.calm(quiet)
        first = self.step
        answer = await self._job.replace_all(await self._leavers(count))
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
    # machines that start beside the others keep these from being heard in time now and then
    return {**found, "threads": 1, "heartbeat": 20.0, "run_dir": str(folder / "run")}


def opened(folder: Path, machines: int, pool: int, work: str = "steady", link_rate: int = 0) -> tuple[Running, Path]:
    """A job that is not running yet, and the folder of its marks."""
    marks = folder / "marks"
    marks.mkdir(parents=True)
    return Running(settings_of(folder, machines, pool, work, link_rate)), marks


async def undisturbed(folder: Path, machines: int, steps: int) -> Mapping[str, str]:
    """The digests of a job that has made so many steps with nothing happening; it does not wait between them."""
    async with Running({**settings_of(folder, machines, 0, "hurried"), "steps": steps}) as job:
        ended = await job.ended()
    return digests_of(ended)


def digests_of(ended: Ended) -> dict[str, str]:
    if ended.code:
        raise CommandFailed(f"the job has {ended.status}: {ended.reason}")
    found: dict[str, str] = ended.view["digests"]
    return found


def restarts(folder: Path, spacing: int, times: int) -> tuple[Window, float]:
    """A plain job that is ended with a checkpoint and started again every so many steps; the second is an undisturbed
    step of it."""
    marks = folder / "marks"
    marks.mkdir(parents=True)
    watch, ends = Watch(marks), [WARM_UP]
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


async def close(job: Running) -> tuple[int, Mapping[str, str]]:
    """End it at a boundary; its steps, and the digests of what its roles hold."""
    ended = await job.stop()
    return int(ended.view["step"]), digests_of(ended)
