"""The other engine on failure dates and draws that are given."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
import pytest

from understudy.planning.failures import FailureClock, Failures, Repair, Runs, Slots, Times
from understudy.planning.outcome import SimulationOutcome
from understudy.planning.setting import PlanningSetting
from understudy.planning.simgrid.prepare import PreparedRun
from understudy.planning.simulation import jump
from understudy.planning.strategy import Strategy

LATER_THAN_ALL = 1e18


def jump_on(
    run: PreparedRun,
    setting: PlanningSetting,
    failures: Failures,
    strategy: Strategy,
    repair: Repair,
    horizon: float = 1e15,
) -> SimulationOutcome:
    """One run of `jump` in which the machine in place i fails at the next of `dates[i]`, and in which the first lost
    member needs a patch if the first of `draws` is low, and so on."""

    def after(slot: int, at: float) -> float:
        own = run.dates[slot]
        place = bisect_right(own, at)
        return own[place] if place < len(own) else LATER_THAN_ALL

    class Given(FailureClock):
        def __init__(self, failures: Failures, runs: int, slots: int, rng: np.random.Generator) -> None:
            super().__init__(failures, runs, slots, rng)
            every = np.arange(slots)
            self.renew(np.zeros(slots, dtype=np.intp), every, np.zeros(slots))

        def renew(self, runs: Runs, slots: Slots, at: Times) -> None:
            for run, slot, date in zip(runs, slots, at, strict=True):
                self.put(np.array([run]), np.array([slot]), np.array([after(int(slot), float(date))]))

        def renew_disabled(self, runs: Runs, at: Times) -> None:
            row, slot = np.nonzero(np.isinf(self._dates[runs, : self.slots]))
            self.renew(runs[row], slot, at[row])

    class Drawn(np.random.Generator):
        def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
            return np.array([next(draws) for _ in range(size)])

    draws = iter(run.draws)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jump, "FailureClock", Given)
        patch.setattr(np.random, "default_rng", lambda seed: Drawn(np.random.PCG64(seed)))
        return jump.simulate(setting, failures, strategy, repair, runs=1, horizon=horizon)
