"""Standbys: how many are enough, and how often roles are vacant if there are fewer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.planning.closed_form import enough_standbys, mean_vacant, shortage
from understudy.planning.setting import DAY, HOUR


def test_with_three_sigmas_a_job_hardly_ever_waits() -> None:
    rate, repair = 1 / HOUR, DAY
    assert enough_standbys(rate, repair) == 39
    assert shortage(24.0, 39) < 0.005
    assert shortage(24.0, 24) > 0.4


@given(st.floats(0.0, 300.0), st.integers(0, 400))
def test_shortages_are_probabilities_and_vacancies_are_means(away: float, standbys: int) -> None:
    assert -1e-9 <= shortage(away, standbys) <= 1 + 1e-9
    assert mean_vacant(away, 0) == pytest.approx(away, rel=1e-6, abs=1e-6)
    assert mean_vacant(away, standbys) >= away - standbys - 1e-6


@given(st.floats(0.01, 300.0))
def test_more_standbys_are_never_worse(away: float) -> None:
    counts = range(0, int(2 * away) + 3, 1 + int(away / 10))
    found = [(shortage(away, count), mean_vacant(away, count)) for count in counts]
    assert all(a[0] >= b[0] - 1e-9 and a[1] >= b[1] - 1e-9 for a, b in pairwise(found))


def test_extreme_loads_have_an_answer() -> None:
    assert shortage(1e9, 10) == 1.0
    assert mean_vacant(1e9, 10) == 1e9 - 10


@pytest.mark.parametrize("fixed", [True, False])
def test_against_a_queue(fixed: bool) -> None:
    """Places are filled in the order of failures, each broken machine is back when its repair is over."""
    rng, gap, repair, standbys, count = np.random.default_rng(1), 100.0, 400.0, 6, 100_000
    at = np.cumsum(rng.exponential(gap, count))
    away = np.full(count, repair) if fixed else rng.exponential(repair, count)
    free, waited = np.zeros(standbys), 0.0
    for now, long in zip(at, away, strict=True):
        first = int(free.argmin())
        waited += max(free[first] - now, 0.0)
        free[first] = now + long
    assert waited / at[-1] == pytest.approx(mean_vacant(repair / gap, standbys), rel=0.1)
