"""Simulated step times of workers on a noisy computer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from understudy.protocol.samples import PARTS, Sample
from understudy.protocol.settings import StragglerSettings
from understudy.steward.stragglers import StragglerDetector, StragglerNews

USUAL = (0.004, 0.030, 0.056, 0.010)
"""Seconds of each part."""


@dataclass(frozen=True)
class Noise:
    spread: float = 0.04
    """Of a worker's step, and again of each part: the standard deviation of its logarithm."""
    spikes: float = 0.05
    """How often a worker takes twice as long or much longer."""
    common: float = 0.3
    """How much longer some steps take for all."""
    drift: float = 0.5
    """By how much steps have become longer for all in the end."""
    checkpoints: int = 50
    """Steps between two checkpoints, each of which slows one worker down."""


@dataclass(frozen=True)
class Slow:
    role: int
    factor: float
    parts: tuple[str, ...] = PARTS
    since: int = 150
    until: int = 1 << 30

    def factor_of(self, role: int, step: int, part: str) -> float:
        return self.factor if role == self.role and self.since <= step < self.until and part in self.parts else 1.0


@dataclass
class SimulatedWorkers:
    """Workers with generated step times, and the detector that judges them."""

    roles: int = 4
    noise: Noise = field(default_factory=Noise)
    slow: tuple[Slow, ...] = ()
    classes: dict[int, tuple[int, ...]] | None = None
    whole: bool = False
    """Whether their parts are not known."""

    def steps(self, seed: int, count: int) -> Iterator[list[Sample]]:
        dice, noise = Random(seed), self.noise
        for step in range(count):
            shared = 1 + noise.drift * step / count
            if dice.random() < 0.3:
                shared *= 1 + noise.common * dice.expovariate(1)
            odd = step % noise.checkpoints == 0
            yield [self._sample(dice, role, step, shared, odd) for role in range(self.roles)]

    def _sample(self, dice: Random, role: int, step: int, shared: float, odd: bool) -> Sample:
        own = shared * dice.lognormvariate(0, self.noise.spread)
        if dice.random() < self.noise.spikes:
            own *= 1 + dice.paretovariate(1.5)
        if odd and dice.random() < 0.5:
            own *= 3
        parts = []
        for name, usual in zip(PARTS, USUAL, strict=True):
            seconds = usual * own * dice.lognormvariate(0, self.noise.spread)
            for slow in self.slow:
                seconds *= slow.factor_of(role, step, name)
            parts.append(seconds)
        known = () if self.whole else tuple(parts)
        return Sample(f"w{role}", role, step, sum(parts), known, 0.0, odd="checkpoint" if odd else "")

    def watched(
        self, seed: int, count: int, settings: StragglerSettings | None = None
    ) -> list[tuple[int, StragglerNews]]:
        """(step, what was told)."""
        detector = StragglerDetector(settings or StragglerSettings())
        classes = self.classes or {role: tuple(range(self.roles)) for role in range(self.roles)}
        machines = {role: f"m{role}" for role in range(self.roles)}
        return [
            (samples[0].step, news)
            for samples in self.steps(seed, count)
            for news in detector.step(samples, classes, machines)
        ]


def alarms(told: list[tuple[int, StragglerNews]]) -> list[tuple[int, StragglerNews]]:
    return [(step, news) for step, news in told if not news.over]
