from __future__ import annotations

import pytest

from understudy_bench.harness.dip import BEFORE_S, CELLS, EVERY_S
from understudy_bench.harness.job import entries_of
from understudy_bench.replace import (
    SYSTEMS,
    TURNS,
    around,
    by_system,
    checks_of,
    in_turn,
    lost_around,
    restart_row,
    slowed,
    steps_of,
    summary,
    usual,
)

LINES = ['{"step": 4, "role": 0, "seconds": 0.2, "loss": 7.0}\n', '{"step": 5, "role": 1, "seconds": 0.3}\n']


def test_metrics_are_read_by_role_and_step() -> None:
    assert steps_of(entries_of(LINES)) == {(0, 4): 0.2, (1, 5): 0.3}


def test_a_line_that_is_still_being_written_is_left_out() -> None:
    assert steps_of(entries_of([LINES[0], '{"step": 5, "ro'])) == {(0, 4): 0.2}


def test_what_was_lost_is_what_the_slowest_role_took_beyond_two_usual_steps() -> None:
    steps = {(role, step): 0.2 for role in (0, 1) for step in range(10)}
    usual_s = usual(steps, 0, 5)
    assert lost_around(steps, 8, usual_s) == pytest.approx(0.0)
    steps |= {(0, 7): 0.3, (0, 8): 0.25, (1, 8): 0.5}
    assert lost_around(steps, 8, usual_s) == pytest.approx(0.3)


def test_only_the_steps_that_are_named_are_usual() -> None:
    steps = {(0, 1): 9.0, (0, 2): 1.0, (1, 2): 2.0, (0, 3): 3.0, (1, 3): 9.0}
    assert usual(steps, 2, 3) == 2.5


def test_a_restart_lasts_from_the_last_step_before_to_the_first_one_after() -> None:
    before = [("start", 90.0), ("join", 91.0), ("build", 92.0)]
    before += [("step", 100.0 + 0.5 * number) for number in range(20)]
    end = before[-1][1]
    before.append(("save", end + 0.25))
    after = [("start", end + 4.0), ("join", end + 4.5), ("build", end + 6.0), ("step", end + 7.0), ("step", end + 8.0)]
    lost_s, step_s, phases = restart_row(before, end + 1.0, after)
    assert (lost_s, step_s) == (6.5, 0.5)
    assert phases == {"save": 0.25, "stop": 0.75, "start": 3.0, "join": 0.5, "build": 1.5, "first step": 1.0}
    assert sum(phases.values()) == lost_s + step_s


def test_checks_compare_medians() -> None:
    lost = {"understudy": [0.1, 0.1, 9.0], "naive": [0.3], "restart": [3.9, 4.1]}
    rows = [{"system": system, "lost_s": value} for system, values in lost.items() for value in values]
    assert by_system(rows, "lost_s") == lost
    restart, naive = checks_of(lost)
    assert (restart.name, restart.value, restart.ok) == ("ratio_restart", 40.0, True)
    assert (naive.name, naive.value, naive.ok) == ("ratio_naive", 3.0, True)
    restart, naive = checks_of({**lost, "naive": [0.1], "restart": [3.9]})
    assert (restart.ok, naive.ok) == (False, False)


def test_losing_nothing_measurable_is_no_division_by_zero() -> None:
    restart, _ = checks_of({"understudy": [-0.01], "naive": [1.0], "restart": [5.0]})
    assert restart.value == 5000.0


def test_the_summary_has_a_row_for_each_system() -> None:
    rows = [{"system": "understudy", "lost_s": lost, "told_s": lost / 2} for lost in (0.1, 0.2, 0.3)]
    ours, restart = summary([*rows, {"system": "restart", "lost_s": 5.0}])
    assert ours == {
        "system": "understudy",
        "round": "all",
        "lost_s": 0.2,
        "told_s": 0.1,
        "lost_spread": [pytest.approx(0.12), pytest.approx(0.28)],
    }
    assert restart == {"system": "restart", "round": "all", "lost_s": 5.0, "lost_spread": [5.0, 5.0]}


def test_steps_that_are_slow_beside_a_rehearsal_are_summed_up() -> None:
    steps = {(role, step): 0.2 for role in (0, 1) for step in range(6)} | {(1, 2): 0.5, (1, 3): 0.3, (1, 4): 9.0}
    assert slowed(steps, 1, 3, 0.2) == pytest.approx(0.4)
    assert slowed(steps, 3, 2, 0.2) == 0


def test_every_round_begins_with_another_one_and_has_all() -> None:
    lives = [in_turn(number).systems for number in range(len(TURNS))]
    assert all(sorted(systems) == sorted(TURNS) for systems in lives)
    assert [systems[0] for systems in lives] == list(TURNS)
    assert set(TURNS) <= set(SYSTEMS)


def test_the_dip_is_that_of_the_role_that_lost_most() -> None:
    steps = {(role, step): 0.2 for role in (0, 1) for step in range(40)} | {(1, 20): 0.6}
    curve = around(steps, 20, 0, 0.2)
    assert len(curve) == CELLS

    def at(seconds: float) -> float | None:
        return curve[round((seconds + BEFORE_S) / EVERY_S)]

    assert at(-1.0) == pytest.approx(1.0)
    assert at(0.3) == pytest.approx(1 / 3)  # step 19 ends after 0.2 s, step 20 after another 0.6 s
    assert at(1.0) == pytest.approx(1.0)
    assert curve[-1] is None
