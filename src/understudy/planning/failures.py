"""When machines fail, and when they come back."""

from __future__ import annotations

from math import gamma
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from understudy.planning.setting import DAY

Times = NDArray[np.float64]


class Failures(msgspec.Struct, frozen=True):
    """The life of a machine: how long it works, what takes others with it, what else interrupts it."""

    mtbf: float
    """Mean time of one machine to an unplanned failure."""
    shape: float = 1.0
    """Of the Weibull distribution: 1 is the exponential one; below, most failures are early ones."""
    lives: tuple[float, ...] = ()
    """Times to failure that were observed, in place of a distribution: one of them is drawn. `mtbf` is their mean."""
    infant_factor: float = 1.0
    """How many times as likely a failure is in the first `infant_days` of a machine that has been replaced."""
    infant_days: float = 0.0
    together: float = 0.0
    """Share of failures that take the whole domain."""
    maintenance: float = 0.0
    """Mean time of one machine to planned maintenance; 0: none."""
    straggling: float = 0.0
    """Mean time of one machine until it becomes slow; 0: never."""
    slow: float = 0.2
    """By how much a slow machine is slower: it holds up everybody."""
    noticed: float = 600.0
    """Until a slow machine is found out, then it is replaced as planned."""

    def lifetimes(self, rng: np.random.Generator, count: int) -> Times:
        """How long `count` machines work from now on, new ones all."""
        if self.lives:
            return rng.choice(np.asarray(self.lives, dtype=np.float64), count)
        hazard = rng.standard_exponential(count)
        if self.infant_factor != 1.0 and self.infant_days > 0:
            hazard = self._aged(hazard)
        if self.shape == 1.0:
            return hazard * self.mtbf
        return self._scale * hazard ** (1 / self.shape)

    def _aged(self, hazard: Times) -> Times:
        """The hazard with the infants' part run through faster."""
        early = self._hazard_at(self.infant_days * DAY)
        most = early * self.infant_factor
        return np.where(hazard < most, hazard / self.infant_factor, hazard - most + early)

    def _hazard_at(self, time: float) -> float:
        return float((time / self._scale) ** self.shape)

    @property
    def _scale(self) -> float:
        return self.mtbf / gamma(1 + 1 / self.shape)


class Repair(msgspec.Struct, frozen=True):
    """How long a failed machine is away before it is back as a standby."""

    mean: float = DAY
    spread: Literal["fixed", "exponential", "lognormal"] = "exponential"

    def durations(self, rng: np.random.Generator, count: int) -> Times:
        if self.spread == "fixed":
            return np.full(count, self.mean)
        if self.spread == "exponential":
            return rng.standard_exponential(count) * self.mean
        return rng.lognormal(np.log(self.mean) - 0.5, 1.0, count)


# -- The next failure of every machine in every simulated run, and which comes first. Machines


Runs = NDArray[np.intp]
Slots = NDArray[np.intp]

BLOCK = 64
NEVER = np.inf


class FailureClock:
    """One row per run. A machine whose date is `NEVER` cannot fail until it is renewed."""

    def __init__(self, failures: Failures, runs: int, slots: int, rng: np.random.Generator) -> None:
        self.failures, self.rng, self.slots = failures, rng, slots
        blocks = -(-slots // BLOCK)
        self._dates = np.full((runs, blocks * BLOCK), NEVER)
        self._dates[:, :slots] = failures.lifetimes(rng, runs * slots).reshape(runs, slots)
        self._first = self._dates.reshape(runs, blocks, BLOCK).min(axis=2)

    def first(self) -> Times:
        """The date of every run's next failure."""
        return np.asarray(self._first.min(axis=1))

    def who(self, runs: Runs) -> Slots:
        """Which machine fails next in each of these runs."""
        block = self._first[runs].argmin(axis=1)
        within = self._block(runs, block).argmin(axis=1)
        return np.asarray(block * BLOCK + within)

    def renew(self, runs: Runs, slots: Slots, at: Times) -> None:
        """A new machine stands in the slot from the given date on."""
        self.put(runs, slots, at + self.failures.lifetimes(self.rng, len(runs)))

    def put(self, runs: Runs, slots: Slots, dates: Times) -> None:
        """Each slot's next failure is at this date."""
        self._dates[runs, slots] = dates
        block = slots // BLOCK
        self._first[runs, block] = self._block(runs, block).min(axis=1)

    def silence(self, runs: Runs, slots: Slots) -> None:
        """Nothing there can fail until it is renewed."""
        self.put(runs, slots, np.full(len(runs), NEVER))

    def revive(self, runs: Runs, at: Times) -> None:
        """In these runs, whatever could not fail is renewed."""
        row, slot = np.nonzero(np.isinf(self._dates[runs, : self.slots]))
        self._dates[runs[row], slot] = at[row] + self.failures.lifetimes(self.rng, len(row))
        self._first[runs] = self._dates[runs].reshape(len(runs), -1, BLOCK).min(axis=2)

    def _block(self, runs: Runs, block: Slots) -> Times:
        return np.asarray(self._dates.reshape(len(self._dates), -1, BLOCK)[runs, block])
