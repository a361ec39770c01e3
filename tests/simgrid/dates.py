"""The other engine on failure dates that are given instead of drawn."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pytest

from understudy.model import jump
from understudy.model.clock import Clock, Runs, Slots
from understudy.model.failures import Failures, Repair, Times
from understudy.model.outcome import Outcome
from understudy.model.setting import Setting
from understudy.model.strategy import Strategy
from understudy.simgrid.stage import Dates

LATER_THAN_ALL = 1e18


def jump_on(
    dates: Dates, setting: Setting, failures: Failures, strategy: Strategy, repair: Repair, horizon: float = 1e15
) -> Outcome:
    """One run of the jumping engine in which whoever stands in place i fails at the next of `dates[i]`."""

    def after(slot: int, at: float) -> float:
        own = dates[slot]
        place = bisect_right(own, at)
        return own[place] if place < len(own) else LATER_THAN_ALL

    class Given(Clock):
        def __init__(self, failures: Failures, runs: int, slots: int, rng: np.random.Generator) -> None:
            super().__init__(failures, runs, slots, rng)
            everyone = np.arange(slots)
            self.renew(np.zeros(slots, dtype=np.intp), everyone, np.zeros(slots))

        def renew(self, runs: Runs, slots: Slots, at: Times) -> None:
            for run, slot, date in zip(runs, slots, at, strict=True):
                self.put(np.array([run]), np.array([slot]), np.array([after(int(slot), float(date))]))

        def revive(self, runs: Runs, at: Times) -> None:
            row, slot = np.nonzero(np.isinf(self._dates[runs, : self.slots]))
            self.renew(runs[row], slot, at[row])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jump, "Clock", Given)
        return jump.simulate(setting, failures, strategy, repair, runs=1, horizon=horizon)
