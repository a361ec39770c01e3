"""Closed forms of time to train, beside simulation with exponential failures."""

from __future__ import annotations

import numpy as np
import pytest

from understudy.planning.closed_form import cycle_of, recovery_of_all
from understudy.planning.failures import Failures
from understudy.planning.setting import Cluster, Durations, PlanningSetting, StepWork
from understudy.planning.simulation import jump
from understudy.planning.strategy import Strategy, replication, spare

WITHIN = 0.045


def of(kind: str, groups: int, r: int, period: float) -> tuple[PlanningSetting, Strategy]:
    durations = Durations(detect=1.0, save=30.0, restart=600.0)
    setting = PlanningSetting(Cluster(groups, groups), StepWork(30.0, 2.0, 4000), durations)
    return setting, (spare if kind == "spare" else replication)(setting, r, period)


@pytest.mark.parametrize(
    ("kind", "groups", "r"), [("spare", 100, 5), ("spare", 200, 7), ("replication", 99, 3), ("replication", 200, 2)]
)
def test_time_to_train_is_close_to_simulation(kind: str, groups: int, r: int) -> None:
    setting, strategy = of(kind, groups, r, 900.0)
    mtbf = groups * 300.0
    found = jump.simulate(setting, Failures(mtbf), strategy, runs=20, seed=3)
    cycle = cycle_of(setting, mtbf, strategy)
    assert cycle.inflation(setting, strategy) == pytest.approx(found.inflation.value, rel=WITHIN)
    assert cycle.seconds / (cycle.seconds + cycle.recovery) == pytest.approx(found.availability.value, rel=WITHIN)


def test_recovery_of_one_is_that_of_a_restart_that_must_not_be_interrupted() -> None:
    restart, mtbf = 600.0, 2000.0
    assert recovery_of_all(1, mtbf, restart) == pytest.approx(mtbf * (np.exp(restart / mtbf) - 1), rel=0.01)


def test_recovery_of_all_is_that_of_the_last() -> None:
    generator, restart, mtbf = np.random.default_rng(0), 3600.0, 60_000.0
    found = []
    for _ in range(400):
        ready, life = np.full(200, restart), generator.exponential(mtbf, 200)
        while (failed := life < ready).any():
            ready[failed] = life[failed] + restart
            life[failed] += generator.exponential(mtbf, int(failed.sum()))
        found.append(ready.max())
    assert recovery_of_all(200, mtbf, restart) == pytest.approx(np.mean(found), rel=0.02)
