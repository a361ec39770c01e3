"""The next failure of every machine in every simulated run, and which comes first.

Machines stand in blocks. Only the blocks in which something has changed are searched again, so an event costs as much
as there are blocks, not as there are machines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from understudy.planning.failures import Failures, Times

Runs = NDArray[np.intp]
Slots = NDArray[np.intp]

BLOCK = 64
NEVER = np.inf


class Clock:
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
