"""A job that stops training: a result for another system, an error for understudy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from understudy_bench.harness.marks import Mark
from understudy_bench.harness.processes import CommandFailed
from understudy_bench.kills import kill as killing
from understudy_bench.kills.contestants import Contestant
from understudy_bench.kills.cost import Outage
from understudy_bench.kills.kill import Death, Life, Stuck, separated

COST = Outage(step_s=0.5, stall_s=0.7, full_strength_s=3.0, new_step_s=None, repeated=1, dropped=0, restarted=False)


class Marks:
    """One mark, and no more."""

    marks: tuple[()] = ()

    def ends(self) -> list[int]:
        return [1]

    def look(self) -> list[Mark]:
        return []


class Job:
    """Trains until it has seen some deaths, and never again."""

    def __init__(self, folder: Path) -> None:
        self.marks: Any = Marks()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        return None


def lived(system: str, monkeypatch: pytest.MonkeyPatch, survived: int = 1) -> tuple[list[Death | Stuck], list[str]]:
    deaths: list[str] = []

    async def once(job: Contestant, loss: str, chance: object) -> tuple[int, float, Outage]:
        if len(deaths) == survived:
            raise CommandFailed("it has not done this within 180 s: 15 steps:\n  its last words")
        deaths.append(loss)
        return 1, 20.0, COST

    monkeypatch.setattr(killing, "kill", once)
    said: list[str] = []
    start: Any = Job
    life = Life(system, start, ("worker", "machine", "worker"))
    return asyncio.run(killing._live(life, 2, Path(), said.append)), said


def test_another_systems_job_that_is_stuck_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, said = lived("torchft", monkeypatch)
    deaths, rows = separated(seen)
    assert [death.loss for death in deaths] == ["worker"]
    assert rows == [
        {"system": "torchft", "round": "2, cut short", "why": "it has not done this within 180 s: 15 steps"}
    ]
    assert len(said) == 3


def test_a_job_that_is_stuck_before_a_death_is_told_of_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    deaths, (row,) = separated(lived("torchft", monkeypatch, survived=0)[0])
    assert (deaths, row["round"]) == ([], "2, cut short")


def test_our_own_job_that_is_stuck_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed, match="15 steps"):
        lived("understudy", monkeypatch)
