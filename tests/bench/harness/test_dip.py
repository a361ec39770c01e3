from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_bench.harness.dip import (
    BEFORE_S,
    CELLS,
    EVERY_S,
    Curve,
    around_row,
    of_ends,
    of_marks,
    sampled,
    together,
)
from understudy_bench.harness.marks import Mark

FOREVER = float("inf")


def at(curve: Curve, seconds: float) -> float | None:
    return curve[round((seconds + BEFORE_S) / EVERY_S)]


def film(place: int, pid: int, first: int, ends: Sequence[float], took: float = 0.2) -> list[Mark]:
    """Steps of a process, with a micro-shard each."""
    found = []
    for number, end in enumerate(ends):
        step = first + number
        found += [Mark(place, pid, "begin", step, end - took), Mark(place, pid, "end", step, end, shards=(place,))]
    return found


def steady(start: float, count: int) -> list[float]:
    return [start + 0.2 * number for number in range(1, count + 1)]


def test_undisturbed_training_is_a_line_at_one() -> None:
    curve = of_ends(steady(90.0, 100), 100.0, 0.2)
    known = [value for value in curve if value is not None]
    assert known
    assert all(value == pytest.approx(1.0) for value in known)


@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=20))
def test_no_work_is_lost_or_made_up_by_sampling(lengths: list[float]) -> None:
    clock, stretches = -BEFORE_S, []
    for length in lengths:
        end = min(clock + length, CELLS * EVERY_S - BEFORE_S)
        if end > clock:
            stretches.append((clock, end, 3.0))
            clock = end
    curve = sampled(stretches, -FOREVER, FOREVER)
    assert sum(value or 0.0 for value in curve) * EVERY_S == pytest.approx(3.0 * (clock + BEFORE_S), abs=1e-6)


def test_a_killed_one_of_two_leaves_half_until_it_is_back() -> None:
    marks = [
        *film(0, 10, 0, steady(90.0, 100)),
        *film(1, 11, 0, steady(90.0, 50)),
        *film(1, 12, 60, steady(102.0, 40)),
    ]
    curve = of_marks(marks, 100.05, FOREVER)
    assert at(curve, -1.0) == pytest.approx(1.0)
    assert at(curve, 1.0) == pytest.approx(0.5)
    assert at(curve, 4.0) == pytest.approx(1.0)


def test_repeated_work_counts_once_unless_processes_number_steps_independently() -> None:
    marks = film(0, 10, 0, steady(90.0, 50)) + film(0, 11, 40, steady(101.0, 40))
    curve = of_marks(marks, 100.05, FOREVER)
    assert at(curve, 1.5) == 0.0
    assert at(curve, 4.0) == pytest.approx(1.0)
    assert at(of_marks(marks, 100.05, FOREVER, counted_alike=False), 1.5) == pytest.approx(1.0)


def test_nothing_is_said_of_the_time_after_the_next_death() -> None:
    marks = film(0, 10, 0, steady(90.0, 100))
    curve = of_marks(marks, 100.05, 102.0)
    assert at(curve, 1.0) is not None
    assert at(curve, 3.0) is None


def test_a_job_that_never_trained_has_no_curve() -> None:
    assert of_marks([], 100.0, FOREVER) == [None] * CELLS


def test_the_mean_is_of_those_that_were_watched_if_they_are_half() -> None:
    row = around_row("ours", {"loss": "worker"}, [[1.0, 0.0, None], [1.0, 0.5, None], [0.5, None, 1.0]])
    assert row["interruptions"] == 3
    assert row["series"]["share"] == [pytest.approx(0.833), pytest.approx(0.25), None]
    assert together([])["share"] == []
