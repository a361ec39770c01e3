from __future__ import annotations

import math
from typing import Any

import pytest

from understudy_bench.harness.marks import Mark
from understudy_bench.rebalance import Window, checks_of, ended_at, joined, knee, knee_row, moved, restart_row, row_of
from understudy_bench.workload import WORKS


def test_a_step_has_ended_when_the_last_place_has_ended_it() -> None:
    marks = [Mark(place, 1, kind, 3, at) for place, kind, at in [(0, "end", 5.0), (1, "end", 6.0), (1, "begin", 9.0)]]
    assert ended_at(marks, 3) == 6.0


def test_what_the_shared_cores_cost_is_told_apart_from_what_replacing_costs() -> None:
    row = row_of(100, control=Window(200, 50.0), replacing=Window(200, 62.5, 2, 0.5), step_s=0.2)
    assert (row["wall"], row["cores"], row["replacing"]) == (0.64, 0.8, 0.8)
    assert (row["made"], row["told_lost_s"]) == (100.0, 0.25)


def test_a_restart_is_measured_against_its_own_undisturbed_steps() -> None:
    assert restart_row(50, Window(100, 40.0, 2), 0.2)["wall"] == 0.5


def test_the_knee_lies_between_two_spacings_by_their_logarithms() -> None:
    found = knee({400: 1.0, 100: 0.97, 25: 0.93}, 0.95)
    assert found == pytest.approx(50.0)
    assert knee({400: 1.0, 100: 0.97}, 0.95) is None
    assert knee({400: 0.9}, 0.95) == math.inf


def test_a_knee_that_was_not_reached_is_said_in_words() -> None:
    rows = [{"system": "understudy", "made": made, "wall": left} for made, left in [(100.0, 0.99), (12.5, 0.96)]]
    assert knee_row(rows, "understudy", "wall")["steps"] == "less than 12.5, if at all"
    assert knee_row([{**row, "wall": 0.5} for row in rows], "understudy", "wall")["steps"] == (
        "more than all that were tried"
    )


def test_windows_of_one_spacing_count_as_one() -> None:
    assert joined([Window(200, 50.0, 2, 0.1), Window(100, 26.0, 1, 0.3)]) == Window(300, 76.0, 3, 0.4)


def _moved(links: str = "own", **lost: list[float]) -> list[dict[str, Any]]:
    counts = {"one": 1, "quarter": 2, "half": 4}
    return [
        {"links": links, "machines": counts[name], "lost_s": value, "measured_s": 1.0, "step_s": 0.2}
        for name, values in lost.items()
        for value in values
    ]


def test_moves_are_compared_by_their_medians_and_never_with_nothing() -> None:
    found = moved(_moved(one=[0.1, 0.2, 0.9], quarter=[0.25, 0.3, 0.1], half=[0.3]))
    assert [(row["machines"], row["lost_s"], row["ratio"]) for row in found] == [
        (1, 0.2, 1.0),
        (2, 0.25, 1.25),
        (4, 0.3, 1.5),
    ]
    assert [row["ratio"] for row in moved(_moved(one=[-0.01], half=[0.0]))] == [1.0, 1.0]


def test_the_checks_hold_the_speed_at_one_spacing_and_the_bits() -> None:
    row = row_of(100, control=Window(200, 50.0), replacing=Window(200, 50.25, 2, 0.1), step_s=0.24)
    moves = moved(_moved(one=[0.1], quarter=[0.1], half=[0.14]))
    assert [check.ok for check in checks_of([row], moves, True)] == [True] * 5
    slow = row_of(100, control=Window(200, 50.0), replacing=Window(200, 51.0, 2, 0.1), step_s=0.24)
    dear = moved(_moved(one=[0.1], quarter=[0.15], half=[0.14]))
    assert [check.ok for check in checks_of([slow], dear, False)] == [False, True, False, True, False]


def test_links_that_all_share_are_told_and_have_no_bar() -> None:
    row = row_of(100, control=Window(200, 50.0), replacing=Window(200, 50.25, 2, 0.1), step_s=0.24)
    both = [*_moved(one=[0.1], quarter=[0.1], half=[0.1]), *_moved("shared", one=[0.02], quarter=[0.03], half=[0.05])]
    found = {check.name: (check.value, check.ok) for check in checks_of([row], moved(both), True)}
    assert found["half_at_once"] == (1.0, True)
    assert found["half_at_once_shared_links"] == (2.5, True)


def test_hurried_work_computes_the_same() -> None:
    steady, hurried = WORKS["steady"], WORKS["hurried"]
    assert (steady.micro, steady.build, steady.loss) == (hurried.micro, hurried.build, hurried.loss)
    assert hurried.length_s == 0 < steady.length_s
