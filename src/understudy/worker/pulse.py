"""How long steps take, and what is lost where one takes longer."""

from __future__ import annotations

from collections import deque

from .transfer.handover import Tempo


class Pulse:
    def __init__(self) -> None:
        self._durations: deque[float] = deque(maxlen=200)
        self._ended = self._before = 0.0

    def usual(self) -> float:
        """Seconds of an undisturbed step: the lower quartile, since many of the last steps may have been slowed by the
        rehearsal of a newcomer on the same computer, and that must not hide what is lost."""
        return sorted(self._durations)[len(self._durations) // 4] if self._durations else 0.0

    def tempo(self) -> Tempo:
        return Tempo(self._ended, self._before, self.usual())

    def take_over(self, tempo: Tempo) -> None:
        """Go on from what whoever gave its state knew."""
        self._ended, self._before = tempo.ended, tempo.before
        self._durations.clear()
        self._durations.append(tempo.usual)

    def forget(self) -> None:
        self._durations.clear()
        self._ended = self._before = 0.0

    def ends(self, now: float, *, settles: bool) -> tuple[float, float | None]:
        """A step has ended. Its seconds and, where it settles a new generation, those that training has lost by that;
        None where it is not known what is usual."""
        seconds = now - self._ended if self._ended else 0.0
        lost = None
        if settles and self._before and self._durations:
            lost = max(0.0, now - self._before - 2 * self.usual())
        elif not settles and self._ended:
            self._durations.append(seconds)
        self._before, self._ended = self._ended, now
        return seconds, lost
