"""A few numbers of the last steps, and whether most of them are too high: robust against what is high now and then."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import sqrt
from statistics import median

import msgspec

_SPREAD = 1.4826 * 1.2533
"""Standard error of a median, in median deviations over the square root of the count, for normal noise."""
_SURE = 5.0
"""So many standard errors must lie between the usual and what is found: several quantities of many workers are looked
at after every step, and nobody is to be suspected by chance."""


class Settings(msgspec.Struct, frozen=True):
    """What counts as slow."""

    threshold: float = 0.10
    """Seconds beyond those of its peers, as a share of theirs; 0: nobody is judged."""
    window: int = 20
    """Steps that are looked at."""
    persistence: float = 0.8
    """The share of them that must be slow."""


class Series:
    """Of one quantity: its ratio to what was expected in the same step, and the excess as a share of the whole step."""

    __slots__ = ("_limit", "above", "excess", "ratios")

    def __init__(self, settings: Settings) -> None:
        self.ratios: deque[float] = deque(maxlen=settings.window)
        self.excess: deque[float] = deque(maxlen=settings.window)
        self.above = 0
        """In how many of the steps it was high."""
        self._limit = 1 + settings.threshold / 2

    def add(self, ratio: float, excess: float) -> None:
        if self.full:
            self.above -= self.ratios[0] > self._limit
        self.above += ratio > self._limit
        self.ratios.append(ratio)
        self.excess.append(excess)

    @property
    def full(self) -> bool:
        return len(self.ratios) == self.ratios.maxlen

    @property
    def middle(self) -> float:
        return median(self.ratios) if self.ratios else 1.0

    @property
    def noise(self) -> float:
        """How far a step is from the middle, typically."""
        middle = self.middle
        return median(abs(ratio - middle) for ratio in self.ratios)

    def persists(self, settings: Settings) -> bool:
        """Whether it is high in the middle and in most steps, to an extent that matters."""
        return (
            self.full
            and self.above >= settings.persistence * len(self.ratios)
            and self.middle > 1 + settings.threshold
            and median(self.excess) >= settings.threshold / 2
        )

    def stands_out(self, noise: float) -> bool:
        """Whether noise of that size cannot be why."""
        return self.middle - 1 > _SURE * _SPREAD * noise / sqrt(len(self.ratios))


def medians_without(values: Mapping[int, float]) -> dict[int, float]:
    """For each key the median of all other values; at least two are there."""
    order = sorted(values, key=lambda key: values[key])
    ranked = [values[key] for key in order]
    low, high = (len(order) - 2) // 2, (len(order) - 1) // 2

    def other(index: int, left_out: int) -> float:
        return ranked[index if index < left_out else index + 1]

    return {key: (other(low, at) + other(high, at)) / 2 for at, key in enumerate(order)}
