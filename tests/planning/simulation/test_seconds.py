"""Every second of a run is useful or wasted on one thing, whatever happens in it."""

from __future__ import annotations

import numpy as np
import pytest

from understudy.planning.failures import Failures, Repair
from understudy.planning.outcome import Waste
from understudy.planning.setting import Cluster, Durations, PlanningSetting, StepWork
from understudy.planning.simulation.jump import simulate
from understudy.planning.strategy import Strategy, checkpoint, mask_and_refill, spare, trainmover

SETTING = PlanningSetting(Cluster(32, 16), StepWork(9.0, 1.0, 300), Durations(restart=300.0, save=5.0))
STRATEGIES = [
    checkpoint(SETTING, 200.0),
    checkpoint(SETTING, 200.0, standbys=1),
    trainmover(SETTING, 1, 200.0),
    spare(SETTING, 3, 200.0),
    spare(SETTING, 3, 200.0, restart_after=2),
    mask_and_refill(SETTING, 1, 200.0),
]


@pytest.mark.parametrize("horizon", [1e15, 2500.0])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: f"{strategy.name}-{strategy.standbys}")
def test_every_second_is_accounted_for_once(strategy: Strategy, horizon: float) -> None:
    failures = Failures(mtbf=32 * 400.0, maintenance=32 * 300.0, straggling=32 * 3000.0, noticed=60.0)
    found = simulate(SETTING, failures, strategy, Repair(1500.0, "fixed"), runs=60, horizon=horizon)
    np.testing.assert_allclose(found.useful + found.wasted.sum(axis=1), found.seconds, rtol=1e-9)
    assert found.wasted.min() > -1e-6, [waste.name for waste in Waste if found.wasted[:, waste].min() < -1e-6]
    assert (found.seconds <= horizon).all()
