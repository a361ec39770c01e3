"""Detects workers that are slower than others of their role class, for how long, and in which part of the step.

A role is compared with the median of its class in the same step, so that common noise cancels. In a class of fewer than
three, the slow role cannot be told from the fast one. Each of these roles is measured in multiples of its own past, and
these ratios can be compared over all roles of the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from math import sqrt
from statistics import median
from typing import Literal

import msgspec

from understudy.protocol.samples import PARTS, Sample
from understudy.protocol.settings import StragglerSettings

Part = Literal["data", "forward", "backward", "optimizer", "compute", "link"]
_PARTS: tuple[Part, ...] = ("data", "forward", "backward", "optimizer")
_WHOLE = "compute"
_LEAST = 0.02
"""Parts shorter than this share of the step are compared as if they had this share."""
_HEAVY = 0.1
"""Parts with at least this share of the step must all be slow for the verdict `compute`."""
_VOTERS = 3
"""Smallest class in which a role is compared with its class."""
_POOL = 32
"""Workers that the common noise is taken from."""
_OWN_PAST = 1.5
"""Factor on the noise of a role that is compared with its own past."""
_EARLY = 3
"""Windows of steps that a worker's own past is taken from."""
_SPREAD = 1.4826 * 1.2533
"""Standard error of a median, in median deviations over the square root of the count, for normal noise."""
_SURE = 5.0
"""Standard errors that a slowdown must exceed. The value is high because several quantities of many workers are tested
after every step."""


class RatioSeries:
    """Recent ratios of one quantity to its expected value, and the excess as a share of the whole step."""

    __slots__ = ("_limit", "above", "excess", "ratios")

    def __init__(self, settings: StragglerSettings) -> None:
        self.ratios: deque[float] = deque(maxlen=settings.window)
        self.excess: deque[float] = deque(maxlen=settings.window)
        self.above = 0
        """Number of these steps with a high ratio."""
        self._limit = 1 + settings.threshold / 2

    def add(self, ratio: float, excess: float) -> None:
        """Adds a step."""
        if self.full:
            self.above -= self.ratios[0] > self._limit
        self.above += ratio > self._limit
        self.ratios.append(ratio)
        self.excess.append(excess)

    @property
    def full(self) -> bool:
        """Whether the window is full."""
        return len(self.ratios) == self.ratios.maxlen

    @property
    def middle(self) -> float:
        """The median ratio; 1 without steps."""
        return median(self.ratios) if self.ratios else 1.0

    @property
    def noise(self) -> float:
        """Median deviation from the median."""
        middle = self.middle
        return median(abs(ratio - middle) for ratio in self.ratios)

    def persists(self, settings: StragglerSettings) -> bool:
        """Whether the ratio is high in the median and in most steps, and matters for the step."""
        return (
            self.full
            and self.above >= settings.persistence * len(self.ratios)
            and self.middle > 1 + settings.threshold
            and median(self.excess) >= settings.threshold / 2
        )

    def stands_out(self, noise: float) -> bool:
        """Whether noise of this size does not explain the median."""
        return self.middle - 1 > _SURE * _SPREAD * noise / sqrt(len(self.ratios))


def medians_without(values: Mapping[int, float]) -> dict[int, float]:
    """For each key, the median of all other values. Needs at least two values."""
    order = sorted(values, key=lambda key: values[key])
    ranked = [values[key] for key in order]
    low, high = (len(order) - 2) // 2, (len(order) - 1) // 2

    def other(index: int, left_out: int) -> float:
        return ranked[index if index < left_out else index + 1]

    return {key: (other(low, at) + other(high, at)) / 2 for at, key in enumerate(order)}


class Straggler(msgspec.Struct, frozen=True):
    """A slow worker or link."""

    role: int
    part: Part
    """`data`, `forward`, `backward` or `optimizer`; `compute`: several of them; or `link`."""
    ratio: float
    """Measured time divided by expected time."""
    steps: int
    """Number of slow steps."""
    reason: str
    machine: str = ""


class StragglerNews(msgspec.Struct, frozen=True):
    """A change: a worker or link has become slow, or (`over`) is not slow any more."""

    finding: Straggler
    over: bool = False


class _Track:
    """Recent steps of one worker."""

    def __init__(self, uid: str, settings: StragglerSettings) -> None:
        self.uid = uid
        self.series = {name: RatioSeries(settings) for name in (*PARTS, _WHOLE)}
        self.weights: dict[str, float] = {}
        """Recent expected share of each part in the step."""
        self.early: list[Sample] = []
        self.past: dict[str, float] | None = None
        """Usual seconds of this worker, from its first steps that count."""
        self.by_past = False
        """Whether the worker is compared with its own past."""
        self.told: Straggler | None = None
        self.fine = 0
        """Steps without slowness since the last report."""

    def learn(self, sample: Sample, window: int) -> None:
        if self.past is None:
            self.early.append(sample)
            if len(self.early) == _EARLY * window:
                names = [name for name in (*PARTS, _WHOLE) if all(name in seconds(each) for each in self.early)]
                self.past = {name: median(seconds(each)[name] for each in self.early) for name in names}
                self.early.clear()


def seconds(sample: Sample) -> dict[str, float]:
    """Seconds of each part and of the whole step. Parts that run once per micro-shard are divided by their number."""
    share = max(1, sample.micro)
    if not sample.parts:
        return {_WHOLE: sample.compute / share}
    found = dict(zip(PARTS, sample.parts, strict=True))
    for name in ("data", "forward", "backward"):
        found[name] /= share
    found[_WHOLE] = sum(found.values())
    return found


class StragglerDetector:
    """Detects slow workers from the samples of successive steps. It depends on nothing else."""

    def __init__(self, settings: StragglerSettings) -> None:
        self.settings = settings
        self._tracks: dict[int, _Track] = {}

    @property
    def told(self) -> list[Straggler]:
        """Workers that are slow at present."""
        return [track.told for track in self._tracks.values() if track.told is not None]

    def keep(self, workers: Mapping[int, str]) -> None:
        """Sets the worker of each role, and forgets all other workers."""
        for role, track in list(self._tracks.items()):
            if workers.get(role) != track.uid:
                del self._tracks[role]

    def step(
        self, samples: Iterable[Sample], classes: Mapping[int, tuple[int, ...]], machines: Mapping[int, str]
    ) -> list[StragglerNews]:
        """Adds one step of all roles; `classes` has the role class of each role. Returns what has changed."""
        good = {sample.role: sample for sample in samples if sample.counts}
        for role, sample in good.items():
            track = self._tracks.get(role)
            if track is None or track.uid != sample.uid:
                self._tracks[role] = _Track(sample.uid, self.settings)
        measured = {role: seconds(sample) for role, sample in good.items()}
        expected = self._expected(measured, classes)
        news = []
        for role in sorted(good):
            track = self._tracks[role]
            if role in expected:
                _add(track, measured[role], expected[role])
                news += self._judge(role, track, machines.get(role, ""))
            track.learn(good[role], self.settings.window)
        return news

    def _expected(
        self, measured: dict[int, dict[str, float]], classes: Mapping[int, tuple[int, ...]]
    ) -> dict[int, dict[str, float]]:
        """Expected seconds of each role in this step, as far as they are known."""
        found: dict[int, dict[str, float]] = {}
        for members in {tuple(sorted({role, *classes.get(role, ())})) for role in measured}:
            there = [role for role in members if role in measured]
            if len(there) >= _VOTERS:
                for name in (*PARTS, _WHOLE):
                    values = {role: measured[role][name] for role in there if name in measured[role]}
                    if len(values) >= _VOTERS:
                        for role, value in medians_without(values).items():
                            found.setdefault(role, {})[name] = value
        self._expect_as_ever(measured, found)
        return found

    def _expect_as_ever(self, measured: dict[int, dict[str, float]], found: dict[int, dict[str, float]]) -> None:
        """Adds roles of small classes: their own past, multiplied by the change that all roles have in common."""
        growth = {
            role: measured[role][_WHOLE] / past[_WHOLE]
            for role in measured
            if (past := self._tracks[role].past) is not None and past[_WHOLE] > 0
        }
        if len(growth) < 2:
            return
        common = medians_without(growth)
        if len(growth) == 2:  # a speed-up of the other role does not make this one slow
            common = {role: max(1.0, value) for role, value in common.items()}
        for role in growth.keys() - found.keys():
            track = self._tracks[role]
            assert track.past is not None
            track.by_past = True
            found[role] = {name: value * common[role] for name, value in track.past.items()}

    def _judge(self, role: int, track: _Track, machine: str) -> list[StragglerNews]:
        settings = self.settings
        part = self._blamed(track)
        told = track.told
        if part is None and told is None:
            return []
        if part is not None:
            track.fine = 0
            track.told = self._finding(role, track, machine, part)
            return [] if told is not None else [StragglerNews(track.told)]
        assert told is not None
        lingers = track.series[told.part].middle > 1 + settings.threshold / 2
        track.fine = 0 if lingers else track.fine + 1
        if track.fine < settings.window:
            return []
        track.told = None
        return [StragglerNews(told, over=True)]

    def _blamed(self, track: _Track) -> Part | None:
        """The part that makes a worker slow; `compute` if all parts do, or if parts are not known."""
        settings, series = self.settings, track.series
        slow = [name for name in (*PARTS, _WHOLE) if series[name].persists(settings)]
        if not slow or not self._certain(track, _WHOLE):  # a part that matters is seen in the whole
            return None
        slow = [name for name in slow if self._certain(track, name)]
        heavy = [name for name in PARTS if name != "data" and track.weights.get(name, 0.0) >= _HEAVY]
        limit = 1 + settings.threshold / 2
        whole = series[_WHOLE].middle > 1 + settings.threshold  # a part of it may have persisted a step earlier
        several = len(heavy) > 1 or (len(heavy) == 1 and "data" in slow)  # a slow computer loads slowly, too
        loading = 2 * median(series["data"].excess or (0.0,)) > median(series[_WHOLE].excess)
        if slow and whole and several and not loading and all(series[name].middle > limit for name in heavy):
            return "compute"
        parts: list[Part] = [name for name in _PARTS if name in slow]
        if parts:
            return max(parts, key=lambda name: median(series[name].excess))
        if _WHOLE not in slow:
            return None
        return "data" if loading else "compute"  # the whole may be certain a step before its part is

    def _certain(self, track: _Track, name: str) -> bool:
        """Whether noise does not explain the slowdown. The noise of a few steps is often underestimated, so that the
        common noise of several workers counts as well."""
        series = track.series[name]
        if not series.full:
            return False
        others = [each.series[name] for each in islice(self._tracks.values(), _POOL)]
        pooled = median(each.noise for each in (series, *others) if each.full)
        noise = max(series.noise, pooled)
        return series.stands_out(noise * _OWN_PAST if track.by_past else noise)

    def _finding(self, role: int, track: _Track, machine: str, part: Part) -> Straggler:
        series = track.series[part]
        whom = "its own past, beyond the change of all roles," if track.by_past else "its class"
        steps = series.above
        if track.told is not None:
            steps = track.told.steps + 1
        reason = f"{machine} role {role}: {part} {series.middle:.2f}x {whom} for {steps} steps"
        return Straggler(role, part, series.middle, steps, reason, machine)


def _add(track: _Track, mine: dict[str, float], expected: dict[str, float]) -> None:
    whole = expected[_WHOLE]
    if whole <= 0:
        return
    for name, usual in expected.items():
        if name in mine:
            track.weights[name] = usual / whole
            track.series[name].add(mine[name] / max(usual, _LEAST * whole), (mine[name] - usual) / whole)
