"""Both engines agree, for every strategy there is, and every second of a run is accounted for."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest

from understudy.planning import strategy as strategies
from understudy.planning.failures import Failures, Repair
from understudy.planning.outcome import SimulationOutcome, Waste
from understudy.planning.setting import HOUR, Cluster, Durations, PlanningSetting, StepWork
from understudy.planning.simulation import jump, steps
from understudy.planning.strategy import Strategy

WITHIN = 0.02
"""Of the time to train, beside the confidence intervals: what `jump` neglects of a step."""

DURATIONS = Durations(save=20.0, restart=300.0, refill=60.0, cold=221.0, join=2.0)
GROUPS = PlanningSetting(Cluster(24, 24), StepWork(8.0, 1.0, 3000), DURATIONS)
REPLICAS = PlanningSetting(Cluster(24, 12), StepWork(8.0, 1.0, 3000), DURATIONS)
PERIOD = 400.0

CASES: dict[str, tuple[PlanningSetting, Callable[[PlanningSetting], Strategy]]] = {
    "checkpoint": (GROUPS, lambda s: strategies.checkpoint(s, PERIOD)),
    "checkpoint, standbys": (GROUPS, lambda s: strategies.checkpoint(s, PERIOD, 2)),
    "replication": (GROUPS, lambda s: strategies.replication(s, 3, PERIOD)),
    "spare": (GROUPS, lambda s: strategies.spare(s, 4, PERIOD)),
    "spare, planned restarts": (GROUPS, lambda s: strategies.spare(s, 4, PERIOD, 6)),
    "trainmover": (REPLICAS, lambda s: strategies.trainmover(s, 2, PERIOD)),
    "trainmover, no standby": (REPLICAS, lambda s: strategies.trainmover(s, 0, PERIOD)),
    "mask and refill, anywhere": (REPLICAS, lambda s: strategies.mask_and_refill(s, 3, PERIOD, q=8)),
    "mask and refill, anywhere, whole": (REPLICAS, lambda s: strategies.mask_and_refill(s, 3, PERIOD)),
    "mask and refill, few holders": (REPLICAS, lambda s: strategies.mask_and_refill(s, 3, PERIOD, "spare:r=3", 8)),
    "mask and refill, stacks": (REPLICAS, lambda s: strategies.mask_and_refill(s, 3, PERIOD, "spare:r=3")),
    "mask and refill, no standby": (REPLICAS, lambda s: strategies.mask_and_refill(s, 0, PERIOD, q=8)),
    "torchft": (REPLICAS, lambda s: strategies.torchft(s, PERIOD)),
    "oobleck": (REPLICAS, lambda s: strategies.reconfigure(s, strategies.OOBLECK, PERIOD)),
    "parcae": (REPLICAS, lambda s: strategies.reconfigure(s, strategies.PARCAE, PERIOD, 1)),
}


def half(outcome: SimulationOutcome) -> float:
    return outcome.inflation.high - outcome.inflation.value


@pytest.mark.parametrize("shape", [1.0, 0.78], ids=["exponential", "weibull"])
@pytest.mark.parametrize("name", CASES)
def test_the_engines_agree(name: str, shape: float) -> None:
    setting, make = CASES[name]
    failures, repair, strategy = Failures(24 * 600.0, shape), Repair(HOUR / 4), make(setting)
    exact = steps.simulate(setting, failures, strategy, repair, runs=12, seed=1)
    fast = jump.simulate(setting, failures, strategy, repair, runs=60, seed=1)
    off = fast.inflation.value - exact.inflation.value
    assert abs(off) <= sqrt(half(exact) ** 2 + half(fast) ** 2) + WITHIN * exact.inflation.value
    for outcome in (exact, fast):
        np.testing.assert_allclose(outcome.seconds, outcome.useful + outcome.wasted.sum(axis=1), rtol=1e-9)
        assert outcome.wasted.min() > -1e-6
    for waste in Waste:
        assert fast.share(waste) == pytest.approx(exact.share(waste), abs=0.03), waste.words
