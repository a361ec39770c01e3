from __future__ import annotations

import asyncio
import io
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from rich.console import Console

from understudy_bench import failure
from understudy_bench.failure import checks_of, row_of, stalls, summary
from understudy_bench.harness.bench import Progress
from understudy_bench.harness.marks import Mark, MarkReader
from understudy_bench.harness.processes import CommandFailed, rests
from understudy_bench.kills.contestants import NOT_INSTALLED, PAIR, Loss
from understudy_bench.kills.cost import Outage
from understudy_bench.kills.kill import Life

SEEN = Outage(0.2, 1.23456, 3.0, 2.0, 1, 0, False)


def rows(**stalled: Sequence[float]) -> list[dict[str, Any]]:
    return [
        row_of(system, "worker", number, 0, Outage(0.2, stall, 2 * stall, None, 1, 0, False))
        for system, values in stalled.items()
        for number, stall in enumerate(values)
    ]


def test_a_row_has_what_was_seen() -> None:
    assert row_of("torchrun", "machine", 4, 1, SEEN) == {
        **{"system": "torchrun", "loss": "machine", "round": "4", "place": 1, "step_s": 0.2, "stall_s": 1.2346},
        **{"full_strength_s": 3.0, "new_step_s": 2.0, "repeated": 1, "dropped": 0, "restarted": False},
    }


def test_the_summary_has_a_row_for_each_system_and_kind_of_loss() -> None:
    ours, machine = summary([*rows(understudy=(0.1, 0.2, 0.3)), row_of("understudy", "machine", 0, 1, SEEN)])
    assert (ours["loss"], ours["round"], ours["stall_s"]) == ("worker", "all 3", 0.2)
    assert ours["stall_spread"] == [pytest.approx(0.12), pytest.approx(0.28)]
    assert ours["full_strength_s"] == 0.4
    assert ours["full_strength_spread"] == [pytest.approx(0.24), pytest.approx(0.56)]
    assert ours["restarted"] == "0 of 3"
    assert "new_step_s" not in ours
    assert (machine["loss"], machine["round"], machine["new_step_s"]) == ("machine", "all 1", 2.0)


def test_checks_compare_medians_of_dead_workers() -> None:
    found = [*rows(understudy=(0.1, 0.1, 9.0), torchrun=(0.9, 1.1), torchft=(0.19,))]
    found.append(row_of("understudy", "machine", 0, 0, Outage(0.2, 50.0, 50.0, 50.0, 1, 0, False)))
    assert stalls(found, "worker")["torchrun"] == [0.9, 1.1]
    torchrun, torchft, lost = checks_of(found)
    assert (torchrun.name, torchrun.value, torchrun.ok) == ("ratio_torchrun", 10.0, True)
    assert (torchft.name, torchft.value, torchft.ok) == ("ratio_torchft", 1.9, False)
    assert (lost.name, lost.value, lost.ok) == ("steps_lost", 0, True)


def test_without_torchft_it_is_not_compared() -> None:
    assert [check.name for check in checks_of(rows(understudy=(0.1,), torchrun=(0.9,)))] == [
        "ratio_torchrun",
        "steps_lost",
    ]


def test_losing_nothing_measurable_is_no_division_by_zero() -> None:
    assert checks_of(rows(understudy=(-0.1,), torchrun=(5.0,)))[0].value == 5000.0


def test_a_step_of_ours_that_was_done_in_vain_fails_a_check() -> None:
    for dropped, repeated, count in ((1, 1, 1), (0, 4, 3)):
        wasted = row_of("understudy", "worker", 0, 0, Outage(0.2, 0.1, 0.1, 0.1, repeated, dropped, False))
        lost = checks_of([wasted])[-1]
        assert (lost.value, lost.ok) == (count, False)


class Film(MarkReader):
    """Steps of a hundredth of a second as they would have happened by now, and a break after each death."""

    STEP_S, BREAK_S = 0.01, 0.1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._pids = {place: 100 + place for place in range(PAIR.places)}
        self._time, self._step = time.time(), 0

    def look(self) -> list[Mark]:
        while self._time + self.STEP_S < time.time():
            for place, pid in self._pids.items():
                self.marks.append(Mark(place, pid, "begin", self._step, self._time))
            self._time, self._step = self._time + self.STEP_S, self._step + 1
            for place, pid in self._pids.items():
                self.marks.append(Mark(place, pid, "end", self._step - 1, self._time))
        return self.marks

    def die(self, place: int) -> None:
        self.look()
        self._pids[place] += 10
        self._time += self.BREAK_S


class Fake:
    """A job that is only a film; a victim is a process that sleeps."""

    jobs: list[Fake]
    size = PAIR

    def __init__(self, folder: Path) -> None:
        self.marks: MarkReader = Film(folder)
        self.dead: list[subprocess.Popen[bytes]] = []
        self.prepared = 0
        self.open = False
        self.broken = False
        self.jobs.append(self)

    async def __aenter__(self) -> Self:
        self.open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.open = False

    def check(self) -> None:
        if self.broken:
            raise CommandFailed(self.with_output("has ended"))

    def with_output(self, what: str) -> str:
        return f"fake … {what}"

    async def prepare(self) -> None:
        self.prepared += 1

    def targets(self, loss: Loss) -> Sequence[int]:
        return [1] if loss == "machine" else range(PAIR.places)

    async def victims(self, place: int, loss: Loss) -> list[int]:
        self.dead.append(subprocess.Popen(["sleep", "1000"]))
        return [self.dead[-1].pid]

    async def lost(self, place: int, loss: Loss) -> None:
        assert self.dead[-1].wait(10) == -9
        assert isinstance(self.marks, Film)
        self.marks.die(place)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fake]]:
    Fake.jobs = []
    monkeypatch.setattr(failure, "ROUNDS", 2)
    names = ("understudy", "torchrun", "torchft")
    monkeypatch.setattr(failure, "LIVES", [Life(name, Fake, ("worker", "machine")) for name in names])
    yield Fake.jobs
    for process in [process for fake in Fake.jobs for process in fake.dead]:
        process.kill()
        process.wait()


def progress() -> Progress:
    return Progress("failure", Console(file=io.StringIO()))


@pytest.mark.parametrize("installed", [True, False])
def test_every_contestant_lives_in_every_round(
    fakes: list[Fake], monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(failure, "torchft_is_installed", lambda: installed)
    result = failure.measure(False, progress())
    single = [row for row in result.rows if str(row.get("round", "all")).isdigit()]
    order = [(row["system"], row["loss"], row["round"]) for row in single]
    systems = ["understudy", "torchrun", "torchft"] if installed else ["understudy", "torchrun"]
    turned = [*systems[1:], systems[0]]
    assert order == [
        (system, loss, str(number))
        for number, round_ in enumerate((systems, turned))
        for system in round_
        for loss in ("worker", "machine")
    ]
    assert all(row["place"] == 1 for row in single if row["loss"] == "machine")
    assert all(float(str(row["stall_s"])) < float(str(row["full_strength_s"])) for row in single)
    assert all((row["repeated"], row["dropped"], row["restarted"]) == (0, 0, False) for row in single)
    assert ({"system": "torchft", "absent": NOT_INSTALLED} in result.rows) is not installed
    assert all(fake.prepared == 2 and not fake.open for fake in fakes)


def test_a_job_that_ends_is_an_error_with_its_words(fakes: list[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Fake) -> None:
        self.broken = True

    monkeypatch.setattr(Fake, "prepare", broken)
    with pytest.raises(CommandFailed, match="fake … has ended"):
        failure.measure(False, progress())
    assert not any(fake.open for fake in fakes)


async def _rest_of(command: list[str]) -> bool:
    with subprocess.Popen(command) as process:
        try:
            return await rests([process.pid], 0.5)
        finally:
            process.kill()


def test_a_process_that_computes_does_not_rest() -> None:
    assert asyncio.run(_rest_of(["sleep", "1000"]))
    assert not asyncio.run(_rest_of(["sh", "-c", "while :; do :; done"]))
