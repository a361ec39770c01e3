"""Results of a simulation: how the time of every run was spent, with confidence intervals."""

from __future__ import annotations

from enum import IntEnum
from math import sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray


class Waste(IntEnum):
    """Kinds of time that is not progress. Every second of a run is useful or counts as one of these."""

    words: str

    SAVING = 0, "writing checkpoints"
    REPEATED = 1, "work done again"
    RESTARTING = 2, "restarting"
    WAITING = 3, "waiting for a machine"
    STALLED = 4, "stalled by failures"
    JOINING = 5, "paused for joiners"
    DEGRADED = 6, "computing for the missing"
    REDUNDANT = 7, "computing everything several times"
    PLANNED = 8, "planned replacements"
    STRAGGLING = 9, "held up by slow machines"

    def __new__(cls, number: int, words: str) -> Waste:
        waste = int.__new__(cls, number)
        waste._value_, waste.words = number, words
        return waste


class Mean(msgspec.Struct, frozen=True):
    """A mean over runs, with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def mean_of(values: NDArray[np.float64]) -> Mean:
    """The mean of `values`. The interval is a normal approximation; for a single run it is the value itself."""
    middle = float(np.mean(values))
    half = 1.96 * float(np.std(values, ddof=1)) / sqrt(len(values)) if len(values) > 1 else 0.0
    return Mean(middle, middle - half, middle + half)


class SimulationOutcome(msgspec.Struct, frozen=True, eq=False):
    """For every run: its duration, its useful time, and its wasted time by kind (`wasted[run, Waste]`)."""

    seconds: NDArray[np.float64]
    useful: NDArray[np.float64]
    wasted: NDArray[np.float64]
    failures: NDArray[np.int64]
    restarts: NDArray[np.int64]
    standby_share: float

    @property
    def inflation(self) -> Mean:
        """Time to train, in times to train without interruption. Standbys are not counted."""
        found = mean_of(self.seconds / np.maximum(self.useful, 1e-9))
        return msgspec.structs.replace(found, low=max(found.low, 1.0))  # nothing is faster than undisturbed

    @property
    def cost(self) -> Mean:
        """Machine time, standbys included, in machine times without interruption."""
        found, share = self.inflation, 1 + self.standby_share
        return Mean(found.value * share, found.low * share, found.high * share)

    @property
    def efficiency(self) -> Mean:
        """Effective training time ratio (ETTR): the useful share of all time."""
        return mean_of(self.useful / self.seconds)

    @property
    def availability(self) -> Mean:
        """Share of the time in which the job was not restarting."""
        return mean_of(1 - self.wasted[:, Waste.RESTARTING] / self.seconds)

    def share(self, waste: Waste) -> float:
        """Mean share of all time that this kind of waste takes."""
        return float(np.mean(self.wasted[:, waste] / self.seconds))

    @property
    def shares(self) -> dict[str, float]:
        """Share of all time by kind of waste, in words."""
        return {waste.words: self.share(waste) for waste in Waste if self.share(waste) > 0}
