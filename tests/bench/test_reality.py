"""The parts of the benchmark that need no job: counts, predictions and checks."""

from __future__ import annotations

import random
from itertools import islice

import msgspec
import pytest

from understudy.planning.inputs.calibrate import MeasuredLoss, MeasuredRun, calibrate
from understudy_bench.harness.marks import Mark
from understudy_bench.reality import (
    DECK,
    MTBF_S,
    Length,
    Stretch,
    calibration_rows,
    checks_of,
    expected,
    lives,
    predicted,
    processes,
    progressed,
    rows_of,
    step_time,
)


def test_lives_have_their_mean_and_come_in_another_order_with_another_seed() -> None:
    one = list(islice(lives(24.0, random.Random("a")), 10 * DECK))
    assert sum(one) / len(one) == pytest.approx(24.0)
    assert one[:DECK] != list(islice(lives(24.0, random.Random("b")), DECK))
    assert sorted(one[:DECK]) == pytest.approx(sorted(one[DECK : 2 * DECK]))
    assert sum(life < 24.0 for life in one) / len(one) == pytest.approx(0.63, abs=0.03)


def test_processes_by_role() -> None:
    machines = [
        {"roles": [0], "pids": [10]},
        {"roles": [1], "pids": []},
        {"roles": [], "pids": [12]},
        {"roles": [2], "pids": [13]},
    ]
    assert processes(machines, {13}) == {0: 10}


def marks(*steps: tuple[int, int, float]) -> list[Mark]:
    return [Mark(place, 1, "end", step, at) for place, step, at in steps]


def test_steps_count_once_for_all_places() -> None:
    seen = marks((0, 4, 1.0), (1, 4, 1.0), (0, 5, 2.0), (0, 6, 3.0), (1, 6, 3.5), (1, 7, 9.0))
    assert progressed(seen, 1.5, 4.0) == 2
    assert progressed(seen, 0.0, 10.0) == 8


def test_the_undisturbed_step_is_of_its_own_stretch() -> None:
    seen = marks(*((0, step, step * 0.2) for step in range(10)), *((0, 10 + step, 2 + step) for step in range(5)))
    assert step_time(seen, 0.0, 1.9) == pytest.approx(0.2)


QUIET = MeasuredRun(
    0.16, 100, detected=[0.0], recovered=[0.08], masked=[MeasuredLoss(0.0)], joined=[MeasuredLoss(0.0)], away=[0.001]
)


LENGTH = Length(0.0, 45.0, 3)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_if_failures_cost_nothing_only_the_computation_for_others_is_lost() -> None:
    known = calibrate(msgspec.structs.replace(QUIET, refilled=[0.001]))
    assert mean(expected("recovery", known, LENGTH)) == pytest.approx(1 - 0.08 * 4 / MTBF_S, abs=0.01)
    assert mean(expected("masking", known, LENGTH)) > 0.98
    assert mean(predicted("recovery", known, LENGTH)) > 0.97


def test_long_repairs_and_refills_are_felt() -> None:
    slow = calibrate(msgspec.structs.replace(QUIET, refilled=[6.0], away=[6.0]))
    for system in ("recovery", "masking"):
        assert 0.5 < mean(expected(system, slow, LENGTH)) < 0.9


def test_the_same_luck_is_near_what_is_expected_and_always_the_same() -> None:
    slow = calibrate(msgspec.structs.replace(QUIET, refilled=[3.0], away=[3.0]))
    for system in ("recovery", "masking"):
        found = predicted(system, slow, LENGTH)
        assert len(set(found)) == LENGTH.stretches
        assert found == predicted(system, slow, LENGTH)
        assert mean(found) == pytest.approx(mean(expected(system, slow, LENGTH)), abs=0.1)


def test_a_stretch_and_its_rows() -> None:
    seen = [Stretch(50.0, 250, 8, 0.16), Stretch(50.0, 200, 12, 0.16)]
    assert seen[0].efficiency == pytest.approx(0.8)
    *_, total = rows_of("masking", seen, [0.8, 0.7], [0.7, 0.8] * 50)
    assert total["measured"] == pytest.approx(0.72)
    assert total["simulated"] == pytest.approx(0.75)
    assert total["ratio"] == pytest.approx(0.75 / 0.72, abs=1e-4)
    assert total["deaths"] == 20
    assert total["chance"] == pytest.approx([0.75 - 1.96 * 0.05 / 2**0.5, 0.75 + 1.96 * 0.05 / 2**0.5], abs=1e-3)


@pytest.mark.parametrize(("ratio", "ok"), [(1.0, True), (0.91, True), (1.09, True), (0.89, False), (1.11, False)])
def test_ten_percent(ratio: float, ok: bool) -> None:
    (check,) = checks_of([{"system": "recovery", "stretch": "0"}, {"system": "recovery", "ratio": ratio}])
    assert check.ok is ok


def test_the_calibration_is_shown_with_its_grounds() -> None:
    rows = calibration_rows("recovery", calibrate(QUIET))
    assert {row["what"] for row in rows} >= {"detect", "hand_over", "step", "repair"}
    assert all("measured in" in row["why"] for row in rows)
