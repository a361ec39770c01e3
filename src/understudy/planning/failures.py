"""When machines fail and when they come back: distributions, and the next failure of every machine in a simulation."""

from __future__ import annotations

from math import gamma
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from understudy.planning.setting import DAY

Times = NDArray[np.float64]
Spread = Literal["fixed", "exponential", "lognormal"]


class Failures(msgspec.Struct, frozen=True):
    """How often machines fail, how many fail together, and what else interrupts them."""

    mtbf: float
    """Mean time of one machine to an unplanned failure."""
    shape: float = 1.0
    """Shape of the Weibull distribution. 1: exponential; below 1: most failures are early."""
    together: float = 0.0
    """Share of failures that affect the whole domain."""
    maintenance: float = 0.0
    """Mean time of one machine to planned maintenance; 0: none."""
    straggling: float = 0.0
    """Mean time of one machine until it becomes slow; 0: never."""
    slow: float = 0.2
    """Slowdown of a slow machine, as a share of the step time. The whole job becomes as slow."""
    noticed: float = 600.0
    """Seconds until a slow machine is detected. It is then replaced by a planned replacement."""

    @property
    def slowness(self) -> float:
        """Seconds that the job loses to a slow machine until it is detected."""
        return self.noticed * self.slow / (1 + self.slow)

    def lifetimes(self, rng: np.random.Generator, count: int) -> Times:
        """Draws the lifetimes of `count` new machines."""
        hazard = rng.standard_exponential(count)
        if self.shape == 1.0:
            return hazard * self.mtbf
        return self.mtbf / gamma(1 + 1 / self.shape) * hazard ** (1 / self.shape)


class Repair(msgspec.Struct, frozen=True):
    """How long a failed machine is away before it returns as a standby."""

    mean: float = DAY
    spread: Spread = "exponential"

    def durations(self, rng: np.random.Generator, count: int) -> Times:
        """Draws the durations of `count` repairs."""
        if self.spread == "fixed":
            return np.full(count, self.mean)
        if self.spread == "exponential":
            return rng.standard_exponential(count) * self.mean
        return rng.lognormal(np.log(self.mean) - 0.5, 1.0, count)


Runs = NDArray[np.intp]
Slots = NDArray[np.intp]

BLOCK = 64
NEVER = np.inf


class FailureClock:
    """The next failure of every machine in every simulated run: one row per run, one slot per machine.

    Machines are kept in blocks, and only changed blocks are searched again: an event costs time in proportion to the
    number of blocks. A slot with the date `NEVER` cannot fail until it is renewed.
    """

    def __init__(self, failures: Failures, runs: int, slots: int, rng: np.random.Generator) -> None:
        self.failures, self.rng, self.slots = failures, rng, slots
        blocks = -(-slots // BLOCK)
        self._dates = np.full((runs, blocks * BLOCK), NEVER)
        self._dates[:, :slots] = failures.lifetimes(rng, runs * slots).reshape(runs, slots)
        self._first = self._dates.reshape(runs, blocks, BLOCK).min(axis=2)

    def first(self) -> Times:
        """The date of the next failure, for every run."""
        return np.asarray(self._first.min(axis=1))

    def failing(self, runs: Runs) -> Slots:
        """The slot that fails next, for each of `runs`."""
        block = self._first[runs].argmin(axis=1)
        within = self._block(runs, block).argmin(axis=1)
        return np.asarray(block * BLOCK + within)

    def renew(self, runs: Runs, slots: Slots, at: Times) -> None:
        """Puts a new machine into each slot at the date `at`."""
        self.put(runs, slots, at + self.failures.lifetimes(self.rng, len(runs)))

    def put(self, runs: Runs, slots: Slots, dates: Times) -> None:
        """Sets the next failure of each slot."""
        self._dates[runs, slots] = dates
        block = slots // BLOCK
        self._first[runs, block] = self._block(runs, block).min(axis=1)

    def disable(self, runs: Runs, slots: Slots) -> None:
        """Keeps these slots from failing until they are renewed."""
        self.put(runs, slots, np.full(len(runs), NEVER))

    def renew_disabled(self, runs: Runs, at: Times) -> None:
        """Renews every disabled slot of these runs."""
        row, slot = np.nonzero(np.isinf(self._dates[runs, : self.slots]))
        self._dates[runs[row], slot] = at[row] + self.failures.lifetimes(self.rng, len(row))
        self._first[runs] = self._dates[runs].reshape(len(runs), -1, BLOCK).min(axis=2)

    def _block(self, runs: Runs, block: Slots) -> Times:
        return np.asarray(self._dates.reshape(len(self._dates), -1, BLOCK)[runs, block])
