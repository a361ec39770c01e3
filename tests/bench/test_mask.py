from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from rich.console import Console

from understudy_bench import mask
from understudy_bench.harness.bench import Progress
from understudy_bench.harness.marks import Mark
from understudy_bench.kills.contestants import NOT_INSTALLED
from understudy_bench.kills.cost import Outage
from understudy_bench.kills.kill import Death, Life
from understudy_bench.mask import MASKING, RECOVERY, REFILL, checks_of, row_of, summary, waits

STEP = Outage(0.2, 0.12345, 3.0, 2.0, 1, 0, False)
SPEED = 0.75


def death_of(system: str, number: int = 0) -> Death:
    return Death(system=system, loss="worker", round=number, place=1, at=20.6, cost=STEP, marks=film())


def row(system: str, stall: float, share: float | None = SPEED, **other: Any) -> dict[str, Any]:
    found = row_of(death_of(system))
    return {**found, "stall_s": stall, "degraded": share, **other}


def film(alone: int = 15) -> list[Mark]:
    """Four replicas with three micro-shards each; the second dies, and the others make a few steps without it."""
    marks = []
    for place in range(4):
        own = tuple(range(3 * place, 3 * place + 3))
        marks += [Mark(place, place, "end", step, float(step), shards=own) for step in range(21)]
        if place != 1:
            more = (*own, 3 + (0, 0, 1, 2)[place])
            marks += [Mark(place, place, "end", 21 + n, 22.0 + 4 / 3 * n, shards=more) for n in range(alone + 1)]
    marks.append(Mark(1, 9, "end", 22 + alone, 24.0 + 4 / 3 * alone, shards=(3, 4, 5)))
    return sorted(marks, key=lambda mark: mark.at)


def test_a_row_has_what_was_seen() -> None:
    seen = row_of(death_of("torchft", 4))
    assert seen == {
        **{"system": "torchft", "round": "4", "place": 1, "step_s": 0.2, "stall_s": 0.1235, "full_strength_s": 3.0},
        **{"new_step_s": 2.0, "repeated": 1, "dropped": 0, "restarted": False, "degraded": 0.75, "recomputed": 0},
    }


def test_without_a_refill_there_is_no_time_to_full_strength() -> None:
    assert row(MASKING, 0.1)["full_strength_s"] is None
    assert row(REFILL, 0.1)["full_strength_s"] == 3.0


def test_the_summary_has_a_row_for_each_system_and_its_ratio_to_masking() -> None:
    seen = [row(MASKING, 0.1), row(MASKING, 0.3, 0.7, recomputed=18), row("torchrun", 5.0, None, restarted=True)]
    ours, torchrun = summary(seen)
    assert (ours["round"], ours["stall_s"], ours["degraded"]) == ("all 2", 0.2, 0.725)
    assert ours["stall_spread"] == [pytest.approx(0.12), pytest.approx(0.28)]
    assert ours["restarted"] == "0 of 2"
    assert ours["recomputed"] == "18 in 1 of 2"
    assert "wait_ratio" not in ours
    assert "full_strength_s" not in ours
    assert (torchrun["wait_ratio"], torchrun["restarted"]) == (13.0, "1 of 1")
    assert "degraded" not in torchrun
    assert waits(seen) == {MASKING: pytest.approx(0.4), "torchrun": pytest.approx(5.2)}


def test_a_stall_of_less_than_nothing_still_has_a_ratio() -> None:
    assert summary([row(MASKING, -0.1), row("torchrun", 4.8)])[1]["wait_ratio"] == 50.0


def verdicts(rows: Sequence[dict[str, Any]]) -> dict[str, bool]:
    return {check.name: check.ok for check in checks_of(rows)}


def test_all_checks_hold() -> None:
    rows = [row(MASKING, 0.39), row(MASKING, 9.0, 0.713), row(MASKING, 0.1, 0.713), row("torchft", 9.0, 0.1, dropped=3)]
    assert verdicts(rows) == {"stall_s": True, "degraded": True, "steps_lost": True}


@pytest.mark.parametrize(
    ("wrong", "failed"),
    [
        (row(MASKING, 0.41), "stall_s"),
        (row(MASKING, 0.1, 0.71), "degraded"),
        (row(MASKING, 0.1, None), "degraded"),
        (row(MASKING, 0.1, dropped=1), "steps_lost"),
        (row(MASKING, 0.1, repeated=2), "steps_lost"),
    ],
)
def test_each_check_can_fail(wrong: dict[str, Any], failed: str) -> None:
    assert [name for name, ok in verdicts([wrong]).items() if not ok] == [failed]


def test_a_step_that_recovery_loses_counts_as_well() -> None:
    assert not verdicts([row(MASKING, 0.1), row(RECOVERY, 0.5, None, repeated=2)])["steps_lost"]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("quick", [True, False])
def test_every_contestant_loses_enough(monkeypatch: pytest.MonkeyPatch, installed: bool, quick: bool) -> None:
    def run_lives(lives: Sequence[Life], rounds: int, progress: Progress) -> Iterator[Death]:
        for number in range(rounds):
            for life in lives:
                for _ in life.losses:
                    yield death_of(life.system, number)

    monkeypatch.setattr(mask, "run_lives", run_lives)
    monkeypatch.setattr(mask, "torchft_is_installed", lambda: installed)
    result = mask.measure(quick, Progress("mask", Console(file=io.StringIO())))
    single = [each["system"] for each in result.rows if str(each.get("round")).isdigit()]
    systems = [MASKING, REFILL, RECOVERY, *(["torchft"] if installed else []), "torchrun"]
    assert {system: single.count(system) for system in systems} == dict.fromkeys(systems, 1 if quick else 8)
    assert ({"system": "torchft", "absent": NOT_INSTALLED} in result.rows) is not installed
    assert all(check.ok for check in result.checks)
