"""Who is slower than those who do the same work, for how long, and in which part of the step.

A role is compared with the median of its class in the same step, so that noise which all share cancels. A class of
fewer than three cannot tell who of them is slow: there each role is measured in multiples of its own past, in which all
roles of the job can be compared.
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

Part = Literal["data", "forward", "backward", "optimizer", "compute", "link"]
_PARTS: tuple[Part, ...] = ("data", "forward", "backward", "optimizer")
_WHOLE = "compute"
_LEAST = 0.02
"""Parts shorter than this share of the step are compared as if they were as long."""
_HEAVY = 0.1
"""The share of the step that a part has which must be slow, too, where a worker is slow in all of them."""
_VOTERS = 3
"""Members of a class that can outvote one."""
_POOL = 32
"""Workers whose noise is looked at."""
_OWN_PAST = 1.5
"""How much more noise there is where the past is not known exactly."""
_EARLY = 3
"""Windows of steps from which a worker's own past is known."""


class Straggler(msgspec.Struct, frozen=True):
    """A finding."""

    role: int
    part: Part
    """`data`, `forward`, `backward` or `optimizer`; `compute` where it is no single one of them; or `link`."""
    ratio: float
    """Its seconds to those that were expected."""
    steps: int
    """For how many of the last steps."""
    reason: str
    machine: str = ""


class StragglerNews(msgspec.Struct, frozen=True):
    """What has changed: somebody is slow, or is not any more."""

    finding: Straggler
    over: bool = False


class _Track:
    """One worker's last steps."""

    def __init__(self, uid: str, settings: StragglerSettings) -> None:
        self.uid = uid
        self.series = {name: RatioSeries(settings) for name in (*PARTS, _WHOLE)}
        self.weights: dict[str, float] = {}
        """The share of the step that each part was expected to have, lately."""
        self.early: list[Sample] = []
        self.past: dict[str, float] | None = None
        """Its own usual seconds, from its first steps that count."""
        self.by_past = False
        """Whether it is compared with these."""
        self.told: Straggler | None = None
        self.fine = 0
        """Steps since it was told of in which it was not slow."""

    def learn(self, sample: Sample, window: int) -> None:
        if self.past is None:
            self.early.append(sample)
            if len(self.early) == _EARLY * window:
                names = [name for name in (*PARTS, _WHOLE) if all(name in seconds(each) for each in self.early)]
                self.past = {name: median(seconds(each)[name] for each in self.early) for name in names}
                self.early.clear()


def seconds(sample: Sample) -> dict[str, float]:
    """Of each part, and of all; what is done for each micro-shard is per micro-shard."""
    share = max(1, sample.micro)
    if not sample.parts:
        return {_WHOLE: sample.compute / share}
    found = dict(zip(PARTS, sample.parts, strict=True))
    for name in ("data", "forward", "backward"):
        found[name] /= share
    found[_WHOLE] = sum(found.values())
    return found


class StragglerDetector:
    """Takes the samples of one step after another. Nothing in it depends on anything else."""

    def __init__(self, settings: StragglerSettings) -> None:
        self.settings = settings
        self._tracks: dict[int, _Track] = {}

    @property
    def told(self) -> list[Straggler]:
        """Who is slow."""
        return [track.told for track in self._tracks.values() if track.told is not None]

    def keep(self, players: Mapping[int, str]) -> None:
        """These workers play these roles now; what is known of others is forgotten."""
        for role, track in list(self._tracks.items()):
            if players.get(role) != track.uid:
                del self._tracks[role]

    def step(
        self, samples: Iterable[Sample], classes: Mapping[int, tuple[int, ...]], machines: Mapping[int, str]
    ) -> list[StragglerNews]:
        """One step of all roles; `classes` has those that do the same work as a role. Returns what is new."""
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
        """The seconds that each role should have taken in this step, as far as that is known."""
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
        """Where no class can say: as in the past, but for what has changed for all."""
        growth = {
            role: measured[role][_WHOLE] / past[_WHOLE]
            for role in measured
            if (past := self._tracks[role].past) is not None and past[_WHOLE] > 0
        }
        if len(growth) < 2:
            return
        common = medians_without(growth)
        if len(growth) == 2:  # that the other one has become faster is nobody's fault
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
        """The part that makes a worker slow; `compute` where all do, or where parts are not known."""
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
        """Whether neither its own noise nor that of the others can be why. The noise of few steps is often thought too
        small; that of several workers is not."""
        series = track.series[name]
        if not series.full:
            return False
        others = [each.series[name] for each in islice(self._tracks.values(), _POOL)]
        pooled = median(each.noise for each in (series, *others) if each.full)
        noise = max(series.noise, pooled)
        return series.stands_out(noise * _OWN_PAST if track.by_past else noise)

    def _finding(self, role: int, track: _Track, machine: str, part: Part) -> Straggler:
        series = track.series[part]
        whom = "its own past, beyond what has changed for all," if track.by_past else "its class"
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


# -- A few numbers of the last steps, and whether most of them are too high: robust against wha


_SPREAD = 1.4826 * 1.2533
"""Standard error of a median, in median deviations over the square root of the count, for normal noise."""
_SURE = 5.0
"""So many standard errors must lie between the usual and what is found: several quantities of many workers are looked
at after every step, and nobody is to be suspected by chance."""


class StragglerSettings(msgspec.Struct, frozen=True):
    """What counts as slow."""

    threshold: float = 0.10
    """Seconds beyond those of its peers, as a share of theirs; 0: nobody is judged."""
    window: int = 20
    """Steps that are looked at."""
    persistence: float = 0.8
    """The share of them that must be slow."""


class RatioSeries:
    """Of one quantity: its ratio to what was expected in the same step, and the excess as a share of the whole step."""

    __slots__ = ("_limit", "above", "excess", "ratios")

    def __init__(self, settings: StragglerSettings) -> None:
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

    def persists(self, settings: StragglerSettings) -> bool:
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
