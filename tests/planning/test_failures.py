"""When machines fail."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.planning.failures import FailureClock, Failures, Repair
from understudy.planning.setting import DAY


@pytest.mark.parametrize("shape", [0.5, 0.78, 1.0, 2.0])
def test_the_mean_is_the_mtbf(shape: float) -> None:
    lives = Failures(1000.0, shape).lifetimes(np.random.default_rng(0), 200_000)
    assert lives.mean() == pytest.approx(1000.0, rel=0.02)
    early = float((lives < 100.0).mean())
    assert early == pytest.approx(1 - np.exp(-((100.0 / Failures(1000.0, shape)._scale) ** shape)), abs=0.01)


def test_infants_die_more_often_and_then_no_more() -> None:
    mtbf, rng = 30 * DAY, np.random.default_rng(0)
    plain = Failures(mtbf).lifetimes(rng, 100_000)
    infant = Failures(mtbf, infant_factor=5.0, infant_days=2.0).lifetimes(rng, 100_000)
    assert (infant < 2 * DAY).mean() == pytest.approx(1 - np.exp(-5 * 2 / 30), abs=0.01)
    late = infant[infant > 2 * DAY] - 2 * DAY
    assert late.mean() == pytest.approx(plain.mean(), rel=0.03)


def test_observed_lives_are_drawn_as_they_are() -> None:
    lives = Failures(2.0, lives=(1.0, 3.0)).lifetimes(np.random.default_rng(0), 1000)
    assert set(lives) == {1.0, 3.0}


@pytest.mark.parametrize("spread", ["fixed", "exponential", "lognormal"])
def test_repairs_have_their_mean(spread: str) -> None:
    repair = Repair(500.0, spread)  # type: ignore[arg-type]
    assert repair.durations(np.random.default_rng(0), 200_000).mean() == pytest.approx(500.0, rel=0.02)


@given(st.integers(1, 200), st.integers(1, 5), st.integers(0, 2**32))
def test_the_clock_always_knows_who_is_first(slots: int, runs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clock = FailureClock(Failures(100.0), runs, slots, rng)
    everyone = np.arange(runs)
    for _ in range(8):
        first, who = clock.first(), clock.failing(everyone)
        dates = clock._dates[:, :slots]
        assert np.array_equal(first, dates.min(axis=1))
        assert np.array_equal(dates[everyone, who], first)
        if rng.random() < 0.3:
            clock.disable(everyone, who)
        else:
            clock.renew(everyone, who, np.where(np.isinf(first), 0.0, first))
    clock.renew_disabled(everyone, np.zeros(runs))
    assert np.isfinite(clock._dates[:, :slots]).all()
    assert np.isinf(clock._dates[:, slots:]).all()
    assert np.array_equal(clock.first(), clock._dates.min(axis=1))
