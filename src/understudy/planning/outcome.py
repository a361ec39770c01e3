"""What a simulation has found: where the time of every run went, and how sure the means are."""

from __future__ import annotations

from enum import IntEnum
from math import sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray


class Waste(IntEnum):
    """Where time goes that brings training no further. Every second of a run is useful or one of these."""

    SAVING = 0
    REPEATED = 1
    RESTARTING = 2
    WAITING = 3
    STALLED = 4
    JOINING = 5
    DEGRADED = 6
    REDUNDANT = 7
    PLANNED = 8
    STRAGGLING = 9

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Waste.SAVING: "writing checkpoints",
    Waste.REPEATED: "work done again",
    Waste.RESTARTING: "restarting",
    Waste.WAITING: "waiting for a machine",
    Waste.STALLED: "stalled by failures",
    Waste.JOINING: "paused for joiners",
    Waste.DEGRADED: "computing for the missing",
    Waste.REDUNDANT: "computing everything several times",
    Waste.PLANNED: "planned replacements",
    Waste.STRAGGLING: "held up by slow machines",
}


class Mean(msgspec.Struct, frozen=True):
    """A mean over runs with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def mean_of(values: NDArray[np.float64]) -> Mean:
    """Normal approximation; of a single run the interval is the value itself."""
    middle = float(np.mean(values))
    half = 1.96 * float(np.std(values, ddof=1)) / sqrt(len(values)) if len(values) > 1 else 0.0
    return Mean(middle, middle - half, middle + half)


class SimulationOutcome:
    """Of every run: how long it took, how much of that was useful, and what became of the rest."""

    def __init__(
        self,
        seconds: NDArray[np.float64],
        useful: NDArray[np.float64],
        wasted: NDArray[np.float64],
        failures: NDArray[np.int64],
        restarts: NDArray[np.int64],
        standby_share: float,
    ) -> None:
        self.seconds, self.useful, self.wasted = seconds, useful, wasted
        self.failures, self.restarts, self.standby_share = failures, restarts, standby_share

    @property
    def runs(self) -> int:
        return len(self.seconds)

    @property
    def inflation(self) -> Mean:
        """Time to train, in times to train without any interruption. Standbys not counted."""
        found = mean_of(self.seconds / np.maximum(self.useful, 1e-9))
        return msgspec.structs.replace(found, low=max(found.low, 1.0))  # nothing is faster than undisturbed

    @property
    def cost(self) -> Mean:
        """The same in machine time, with the standbys that are held."""
        found, share = self.inflation, 1 + self.standby_share
        return Mean(found.value * share, found.low * share, found.high * share)

    @property
    def efficiency(self) -> Mean:
        """Effective training time: the useful share of all time."""
        return mean_of(self.useful / self.seconds)

    @property
    def availability(self) -> Mean:
        """Share of the time in which the job was not restarting."""
        return mean_of(1 - self.wasted[:, Waste.RESTARTING] / self.seconds)

    def share(self, waste: Waste) -> float:
        """Of all time, the mean share that this took."""
        return float(np.mean(self.wasted[:, waste] / self.seconds))

    @property
    def shares(self) -> dict[str, float]:
        return {waste.words: self.share(waste) for waste in Waste if self.share(waste) > 0}
