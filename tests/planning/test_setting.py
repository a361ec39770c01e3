from __future__ import annotations

import numpy as np
import pytest

from understudy.planning.setting import StepWork, mean_largest


@pytest.mark.parametrize("count", [1, 2, 10, 200])
def test_the_mean_of_the_largest_is_close(count: int) -> None:
    drawn = np.random.default_rng(0).standard_normal((20_000, count)).max(axis=1)
    assert mean_largest(count) == pytest.approx(float(drawn.mean()), abs=0.03)


def test_a_step_waits_for_the_slowest_of_all() -> None:
    steady, uneven = StepWork(64.0, 6.0), StepWork(64.0, 6.0, jitter=0.05)
    assert steady.stretched(2.0, 600) == pytest.approx(134 / 70)
    assert uneven.stretched(1.0, 1) == 1.0
    assert 1 < uneven.stretched(1.0, 10) < uneven.stretched(1.0, 600) < 1.2
    assert uneven.stretched(4.0, 600) < 4 * uneven.stretched(1.0, 600)
