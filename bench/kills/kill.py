"""Kill a worker or a machine in the middle of a step, in jobs that take turns, and measure the cost."""

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

from understudy_bench.harness.bench import Progress, interleave, median
from understudy_bench.harness.dip import QUIET, Curve, around_row, of_marks
from understudy_bench.harness.marks import Mark, gaps
from understudy_bench.harness.processes import CommandFailed, workplace
from understudy_bench.kills.contestants import Contestant, Loss, until
from understudy_bench.kills.cost import Outage, outage

WARM_UP = 3
AFTERWARDS = 8
"""Steps after the last death, which show whether training is as fast as before."""
OTHERS = ("torchft", "torchrun", "torchrun, DCP", "torchrun, every step")
"""Systems of which a job that does not continue is a result, not an error."""


@dataclass(frozen=True)
class Life:
    """A contestant's name, how its job is started, and its losses, one after the other."""

    system: str
    start: Callable[[Path], Contestant]
    losses: Sequence[Loss]


@dataclass(frozen=True)
class Death:
    """One loss: its place and time, its cost, and the marks that show it."""

    system: str
    loss: Loss
    round: int
    place: int
    at: float
    cost: Outage
    marks: Sequence[Mark]
    around: Curve = field(default_factory=list)
    """How fast training was before and after, up to the neighbouring deaths."""


@dataclass(frozen=True)
class Stuck:
    """A job of another system that stopped training before all its losses had happened."""

    system: str
    round: int
    why: str


async def _train(job: Contestant, steps: int) -> None:
    """Wait until every place has completed so many more steps in which all places took part."""
    began = time.time()

    def trained() -> bool:
        ends = [mark for mark in job.marks.ends() if mark.at > began and mark.full]
        return all(sum(mark.place == place for mark in ends) >= steps for place in range(job.size.places))

    await until(job, f"{steps} steps", trained, 0.1)


async def kill(job: Contestant, loss: Loss, chance: random.Random) -> tuple[int, float, Outage]:
    """Kill a random place in the middle of a step. Returns the place, the time and the cost."""
    await job.prepare()
    await _train(job, WARM_UP + QUIET)
    place = chance.choice(job.targets(loss))
    victims = await job.victims(place, loss)
    ends = job.marks.ends(place)
    await until(job, "a step", lambda: len(job.marks.ends(place)) > len(ends))
    await asyncio.sleep(chance.random() * median(gaps(mark.at for mark in ends[-QUIET:])))
    at = time.time()
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await job.lost(place, loss)
    found: list[Outage] = []

    def over() -> bool:
        cost = outage(job.marks.look(), place, at)
        found.extend([] if cost is None else [cost])
        return cost is not None

    await until(job, f"training after the loss of a {loss}", over, 0.1)
    return place, at, found[0]


async def _live(life: Life, number: int, folder: Path, done: Callable[[str], None]) -> list[Death | Stuck]:
    """Run one job with all its losses. A job of another system that stops training is a result, not an error."""
    system, losses = life.system, life.losses
    chance = random.Random(f"{system} {losses} {number}")
    seen: list[Death | Stuck] = []
    marks = None
    try:
        async with life.start(folder) as job:
            marks = job.marks
            await until(job, "the first step", lambda: len(job.marks.ends()) > 0, 0.1)
            for loss in losses:
                place, at, cost = await kill(job, loss, chance)
                death = Death(
                    system=system,
                    loss=loss,
                    round=number,
                    place=place,
                    at=at,
                    cost=cost,
                    marks=tuple(job.marks.marks),
                )
                seen.append(death)
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
    return seen if marks is None else _with_curves(seen, marks.look())


def _with_curves(seen: Sequence[Death | Stuck], marks: Sequence[Mark]) -> list[Death | Stuck]:
    """The same with each death's dip, from the end of the death before it to the next death."""
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
    """A row with the mean dip for each system and kind of loss."""
    kinds: dict[tuple[str, Loss], list[Curve]] = {}
    for death in deaths:
        kinds.setdefault((death.system, death.loss), []).append(death.around)
    return [around_row(system, {"loss": loss}, curves) for (system, loss), curves in kinds.items()]


def run_lives(lives: Sequence[Life], rounds: int, progress: Progress) -> Iterator[Death | Stuck]:
    """Run every life once in each round, one job at a time. No process or file is left, however this ends."""
    progress.total = rounds * sum(len(life.losses) for life in lives)
    with workplace() as folder:
        for number, life in interleave(lives, rounds):
            place = folder / f"{number}-{lives.index(life)}"
            yield from asyncio.run(_live(life, number, place, progress.advance))


def separated(seen: Iterable[Death | Stuck]) -> tuple[list[Death], list[dict[str, Any]]]:
    """The deaths, and a row for each job that was cut short."""
    deaths, rows = [], []
    for each in seen:
        if isinstance(each, Death):
            deaths.append(each)
        else:
            rows.append({"system": each.system, "round": f"{each.round}, cut short", "why": each.why})
    return deaths, rows
