from __future__ import annotations

from math import isfinite

import pytest

from understudy.masking.placement import PlacementError
from understudy.planning.papers import spare
from understudy.planning.papers.spare import (
    KINDS,
    HopelessCase,
    best_r,
    case,
    checkpoint_period,
    failures_of,
    simulate,
    usual_r,
)


def test_steps_without_failures_take_what_the_authors_state() -> None:
    for n, seconds in ((200, 660_000), (600, 700_000), (1000, 740_000)):
        work = case("spare", n, 3 if n > 200 else 4).setting.work
        assert work.steps * work.step == pytest.approx(seconds)


def test_every_published_row_is_asked_for_by_default() -> None:
    asked = {(kind, n, r) for n in spare.BEST_R for r in usual_r(n) for kind in KINDS}
    assert set(spare.PUBLISHED) <= asked
    assert usual_r(500) == (9, 3)


def test_replication_takes_the_nearest_number_of_groups() -> None:
    assert [case("replication", n, 3).groups for n in (200, 600, 1000)] == [201, 600, 999]
    assert case("spare", 200, 9).groups == 200


def test_a_group_fails_so_often_that_the_system_does_every_300_seconds() -> None:
    assert failures_of(600, "weibull").mtbf == 180_000
    assert failures_of(600, "exponential").shape == 1


def test_what_is_not_possible_is_said() -> None:
    with pytest.raises(PlacementError, match="at most r="):
        case("spare", 60, 20)
    with pytest.raises(HopelessCase, match="use r=2 or more"):
        case("spare", 200, 1)
    with pytest.raises(HopelessCase, match="use a larger n or r"):
        case("replication", 5, 2)


def test_the_engines_agree_on_a_small_table() -> None:
    of = case("spare", 100, 6, work_steps=300)
    fast, exact = simulate(of, "weibull", 40, 1), simulate(of, "weibull", 10, 1, "steps")
    half = fast.ttt_ratio.high - fast.ttt_ratio.value + exact.ttt_ratio.high - exact.ttt_ratio.value
    assert abs(fast.ttt_ratio.value - exact.ttt_ratio.value) <= half + 0.02 * exact.ttt_ratio.value


def test_the_same_seed_gives_the_same_row_and_no_restart_no_recovery() -> None:
    of = case("replication", 200, 8, work_steps=3)
    row = simulate(of, "weibull", 3, 5)
    assert row == simulate(of, "weibull", 3, 5)
    assert row.restarts == 0
    assert row.recovery is None
    assert isfinite(row.ttt_ratio.value)


def test_the_checkpoint_period_maximises_availability() -> None:
    save, until, restart = 60.0, 30_000.0, 3600.0

    def availability(period: float) -> float:
        """Share of time that is neither saving, restarting nor repeating work."""
        return (1 - save / period) * until / (until + restart + period / 2)

    best = checkpoint_period(save, until, restart)
    assert availability(best) > max(availability(0.95 * best), availability(1.05 * best))


@pytest.mark.parametrize(("replicas", "r"), [(200, 8), (600, 10), (1000, 10)])
def test_best_r_follows_the_published_rule(replicas: int, r: int) -> None:
    assert best_r(replicas) == r
