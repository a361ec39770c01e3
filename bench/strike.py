"""Kill somebody in the midst of a step, in the lives of jobs that take turns, and see what comes of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from understudy_bench.around import Curve, around_row, of_marks
from understudy_bench.harness import Progress, interleave, median
from understudy_bench.outage import QUIET, Mark, Outage, gaps, outage
from understudy_bench.processes import CommandFailed, workplace
from understudy_bench.struck import Loss, Struck, until

Life = tuple[str, Callable[[Path], Struck], Sequence[Loss]]
"""A contestant's name, how its job is started, and what dies in it, one after the other."""

WARM_UP = 3
AFTERWARDS = 8
"""Steps after the last death, to see that training is as fast as before."""

OTHERS = ("torchft", "torchrun", "torchrun, DCP", "torchrun, every step")
"""Whose jobs may fail to go on without ending the benchmark."""


@dataclass(frozen=True)
class Death:
    """Who died and when, what that has cost, and the marks by which it is known."""

    system: str
    loss: Loss
    round: int
    place: int
    at: float
    seen: Outage
    marks: Sequence[Mark]
    around: Curve = field(default_factory=list)
    """How fast training was before and after, as far as it was left alone."""


@dataclass(frozen=True)
class Stuck:
    """The life of another system's job that ended before all its deaths, since it did not go on training."""

    system: str
    round: int
    why: str


async def _train(job: Struck, steps: int) -> None:
    """Every place ends so many steps more, with everybody taking part."""
    began = time.time()

    def trained() -> bool:
        ends = [mark for mark in job.watch.ends() if mark.at > began and mark.full]
        return all(sum(mark.place == place for mark in ends) >= steps for place in range(job.size.places))

    await until(job, f"{steps} steps", trained, 0.1)


async def strike(job: Struck, loss: Loss, chance: random.Random) -> tuple[int, float, Outage]:
    """Kill somebody in the midst of a step; who, when, and what that has cost."""
    await job.prepare()
    await _train(job, WARM_UP + QUIET)
    place = chance.choice(job.targets(loss))
    victims = await job.victims(place, loss)
    ends = job.watch.ends(place)
    await until(job, "a step", lambda: len(job.watch.ends(place)) > len(ends))
    await asyncio.sleep(chance.random() * median(gaps(mark.at for mark in ends[-QUIET:])))
    at = time.time()
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await job.lost(place, loss)
    found: list[Outage] = []

    def over() -> bool:
        seen = outage(job.watch.look(), place, at)
        found.extend([] if seen is None else [seen])
        return seen is not None

    await until(job, f"training after the loss of a {loss}", over, 0.1)
    return place, at, found[0]


async def _live(life: Life, number: int, folder: Path, done: Callable[[str], None]) -> list[Death | Stuck]:
    """One life of a job with all its deaths. Of others' jobs one that no longer trains is a result, not an error."""
    system, start, losses = life
    chance = random.Random(f"{system} {losses} {number}")
    seen: list[Death | Stuck] = []
    watch = None
    try:
        async with start(folder) as job:
            watch = job.watch
            await until(job, "the first step", lambda: len(job.watch.ends()) > 0, 0.1)
            for loss in losses:
                place, at, cost = await strike(job, loss, chance)
                seen.append(Death(system, loss, number, place, at, cost, tuple(job.watch.marks)))
                done(f"{system}, {loss}: stalled {cost.stall_s:.2f} s")
            await _train(job, AFTERWARDS)
    except CommandFailed as error:
        if system not in OTHERS:
            raise
        why = str(error).splitlines()[0].rstrip(":")
        for _ in range(len(losses) - len(seen)):
            done(f"{system}: {why}")
        if len(seen) < len(losses):
            seen.append(Stuck(system, number, why))
    return seen if watch is None else _with_curves(seen, watch.look())


def _with_curves(seen: Sequence[Death | Stuck], marks: Sequence[Mark]) -> list[Death | Stuck]:
    """Each death with how fast training was around it: until the next one, and not before the last was over."""
    ends = [each.at for each in seen if isinstance(each, Death)]
    nexts = dict(pairwise([*ends, float("inf")]))
    found: list[Death | Stuck] = []
    for each in seen:
        if isinstance(each, Death):
            curve = of_marks(marks, each.at, nexts[each.at], counted_alike=each.system != "torchft")
            found.append(replace(each, around=curve))
        else:
            found.append(each)
    return found


def around_rows(deaths: Iterable[Death]) -> list[dict[str, Any]]:
    """A row with the dip for each kind of loss that a system has seen."""
    kinds: dict[tuple[str, Loss], list[Curve]] = {}
    for death in deaths:
        kinds.setdefault((death.system, death.loss), []).append(death.around)
    return [around_row(system, {"loss": loss}, curves) for (system, loss), curves in kinds.items()]


def play(lives: Sequence[Life], rounds: int, progress: Progress) -> Iterator[Death | Stuck]:
    """All lives once in each round, one job at a time; nothing of them is left, however this ends."""
    progress.total = rounds * sum(len(losses) for _, _, losses in lives)
    with workplace() as folder:
        for number, life in interleave(lives, rounds):
            place = folder / f"{number}-{lives.index(life)}"
            yield from asyncio.run(_live(life, number, place, progress.advance))


def told(seen: Iterable[Death | Stuck]) -> tuple[list[Death], list[dict[str, Any]]]:
    """The deaths, and a row for each life that did not get so far."""
    deaths, rows = [], []
    for each in seen:
        if isinstance(each, Death):
            deaths.append(each)
        else:
            rows.append({"system": each.system, "round": f"{each.round}, cut short", "why": each.why})
    return deaths, rows
