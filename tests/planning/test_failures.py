"""When machines fail."""

from __future__ import annotations

from math import gamma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.planning.failures import FailureClock, Failures, Repair


@pytest.mark.parametrize("shape", [0.5, 0.78, 1.0, 2.0])
def test_the_mean_is_the_mtbf(shape: float) -> None:
    lives = Failures(1000.0, shape).lifetimes(np.random.default_rng(0), 200_000)
    assert lives.mean() == pytest.approx(1000.0, rel=0.02)
    early = float((lives < 100.0).mean())
    scale = 1000.0 / gamma(1 + 1 / shape)
    assert early == pytest.approx(1 - np.exp(-((100.0 / scale) ** shape)), abs=0.01)


@pytest.mark.parametrize("spread", ["fixed", "exponential", "lognormal"])
def test_repairs_have_their_mean(spread: str) -> None:
    repair = Repair(500.0, spread)  # type: ignore[arg-type]
    assert repair.durations(np.random.default_rng(0), 200_000).mean() == pytest.approx(500.0, rel=0.02)


@given(st.integers(1, 200), st.integers(1, 5), st.integers(0, 2**32))
def test_the_clock_always_knows_the_first_failure(slots: int, runs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clock = FailureClock(Failures(100.0), runs, slots, rng)
    every = np.arange(runs)
    for _ in range(8):
        first, slot = clock.first(), clock.failing(every)
        dates = clock._dates[:, :slots]
        assert np.array_equal(first, dates.min(axis=1))
        assert np.array_equal(dates[every, slot], first)
        if rng.random() < 0.3:
            clock.disable(every, slot)
        else:
            clock.renew(every, slot, np.where(np.isinf(first), 0.0, first))
    clock.renew_disabled(every, np.zeros(runs))
    assert np.isfinite(clock._dates[:, :slots]).all()
    assert np.isinf(clock._dates[:, slots:]).all()
    assert np.array_equal(clock.first(), clock._dates.min(axis=1))
