from __future__ import annotations

from typing import Any

import pytest

from understudy_bench.straggler import AFTER_BAR, NOTICED_BAR, beyond, checks_of, slowest, summary


def rows(**changed: Any) -> list[dict[str, Any]]:
    """Of two rounds; `changed` is of the second one in which a worker was slow."""
    slowed = {
        **{"part": "slowed", "slow": "m1", "blamed": "m1", "noticed": 18, "step_s": 0.4, "slow_s": 0.5},
        **{"noticing_s": 1.8, "lost_s": 2.0, "after": 0.99},
    }
    found: list[dict[str, Any]] = [{"part": "measuring", "us_per_step": 40.0}]
    for again in ({}, changed):
        found += [{"part": "undisturbed", "steps": 250, "alarms": 0}, {**slowed, **again}]
        found.append({"part": "restart", "lost_s": 6.0})
    return found


def test_a_step_takes_as_long_as_for_the_slowest() -> None:
    metrics = [{"step": 3, "seconds": 0.4}, {"step": 3, "seconds": 0.5}, {"step": 4, "seconds": 0.4}]
    assert slowest(metrics) == {3: 0.5, 4: 0.4}


def test_what_is_lost_is_what_steps_took_beyond_usual_ones() -> None:
    steps = {1: 9.0, 2: 0.5, 3: 0.6, 5: 0.4, 6: 9.0}
    assert beyond(steps, 2, 5, 0.4) == pytest.approx(0.3)


def test_an_hour_with_it_against_one_without_and_against_others() -> None:
    ours, restart, none = summary(rows())
    assert (ours["lost_s"], ours["efficiency"]) == (2.0, pytest.approx(1 - 2 / 3600, abs=1e-5))
    assert (restart["lost_s"], restart["efficiency"]) == (7.8, pytest.approx(1 - 7.8 / 3600, abs=1e-5))
    assert none["efficiency"] == 0.8


@pytest.mark.parametrize(
    ("changed", "fails"),
    [
        ({}, []),
        ({"noticed": NOTICED_BAR + 1}, ["noticed"]),
        ({"blamed": "m2"}, ["blamed"]),
        ({"after": 2 * AFTER_BAR - 1.0}, ["after"]),
        ({"lost_s": 20.0}, ["ratio_restart"]),
    ],
)
def test_each_check_can_fail(changed: dict[str, Any], fails: list[str]) -> None:
    assert [check.name for check in checks_of(rows(**changed)) if not check.ok] == fails


def test_one_false_alarm_is_one_too_many() -> None:
    found = rows()
    found[1]["alarms"] = 1
    (check,) = [check for check in checks_of(found) if not check.ok]
    assert (check.name, check.bar) == ("false_alarms", "none in 500 steps")


def test_measuring_must_cost_next_to_nothing() -> None:
    found = rows()
    found[0]["us_per_step"] = 500.0
    (check,) = [check for check in checks_of(found) if not check.ok]
    assert (check.name, check.value) == ("measuring", 0.00125)
