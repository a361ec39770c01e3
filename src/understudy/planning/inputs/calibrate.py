"""Durations from a measured run, in place of assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, pstdev

import msgspec

from understudy.planning.failures import Repair
from understudy.planning.setting import Durations

ASSUMED = "assumed"
REGULAR = 0.3
"""Repairs count as equally long if their standard deviation is below this share of their mean."""


class MeasuredLoss(msgspec.Struct, frozen=True):
    """Training time that a change has cost."""

    lost: float
    """Seconds, as measured."""
    more: float = 0.0
    """Additional shards that each replica computed during the measurement. Their time is not a standstill."""


class MeasuredRun(msgspec.Struct, frozen=True):
    """Seconds measured in one run: one value per event of each kind."""

    step: float
    """An undisturbed step; 0: not known."""
    steps: int = 0
    detected: Sequence[float] = ()
    """From the first sign of a death until all survivors had answered."""
    recovered: Sequence[float] = ()
    """Lost by a death that was followed by a recovery, without the wait for a ready standby."""
    masked: Sequence[MeasuredLoss] = ()
    replaced: Sequence[float] = ()
    joined: Sequence[MeasuredLoss] = ()
    refilled: Sequence[float] = ()
    """From a death until the vacant replica was refilled; the other replicas trained meanwhile."""
    prepared: Sequence[float] = ()
    """From a machine's arrival until it was a ready standby."""
    saved: Sequence[float] = ()
    started: Sequence[float] = ()
    """From the job's first machine to its first step."""
    away: Sequence[float] = ()
    """From a machine's failure until it was a ready standby again."""


class Calibrated(msgspec.Struct, frozen=True):
    """Durations, the step and repairs, with the source of each value. `step` and `repair` are None if not measured."""

    durations: Durations
    step: float | None
    repair: Repair | None
    sources: dict[str, str]

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the values that were measured."""
        return tuple(name for name, source in self.sources.items() if source != ASSUMED)


def calibrate(measured: MeasuredRun) -> Calibrated:
    """Means of the measured values; values that were not measured are assumed."""
    m, step = measured, measured.step
    detect = fmean(m.detected) if m.detected else 0.0
    masked = [seen.lost - seen.more * step for seen in m.masked]
    joined = [seen.lost - seen.more * step for seen in m.joined]
    found = {
        "detect": _told(m.detected, 0.0, "failures"),
        "shrink": _told(masked, detect, "masked failures"),
        "hand_over": _told(m.recovered, detect + step / 2, "recoveries"),
        "planned": _told(m.replaced, 0.0, "planned replacements"),
        "join": _told(joined, 0.0, "refills"),
        "refill": _told(m.refilled, 0.0, "refills"),
        "cold": _told(m.prepared, 0.0, "new machines"),
        "save": _told(m.saved, 0.0, "checkpoints"),
        "restart": _told(m.started, 0.0, "starts of the job"),
    }
    values = {name: told[0] for name, told in found.items() if told is not None}
    sources = {name: ASSUMED if told is None else told[1] for name, told in found.items()}
    sources["outside"] = ASSUMED
    sources["step"] = f"measured in {_count(m.steps, 'steps')}, lower quartile {step:.3g} s" if step else ASSUMED
    away = _told(m.away, 0.0, "repairs")
    sources["repair"] = ASSUMED if away is None else away[1]
    return Calibrated(
        Durations(**values),
        step or None,
        None
        if away is None
        else Repair(away[0], "fixed" if pstdev(m.away) < REGULAR * fmean(m.away) else "exponential"),
        sources,
    )


def _told(values: Sequence[float], less: float, what: str) -> tuple[float, str] | None:
    """The mean minus `less`, the time counted elsewhere, and the source in words. None: nothing was measured."""
    if not values:
        return None
    counted = f", {less:.2g} s of each counted elsewhere" if less else ""
    mean, times = fmean(values), _count(len(values), what)
    return max(0.0, mean - less), f"measured in {times}, mean {mean:.2g} s, median {median(values):.2g} s{counted}"


def _count(number: int, what: str) -> str:
    """The number with its noun; `what` is given in the plural."""
    if number != 1:
        return f"{number:,} {what}"
    first, _, rest = what.partition(" ")
    one = {"recoveries": "recovery"}.get(what, what.removesuffix("s"))
    return f"1 {first.removesuffix('s')} {rest}" if rest.startswith("of ") else f"1 {one}"
