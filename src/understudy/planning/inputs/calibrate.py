"""What interruptions cost in a run that was measured, in place of assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, pstdev

import msgspec

from understudy.planning.failures import Repair
from understudy.planning.setting import Durations

ASSUMED = "assumed"
USUAL = Durations()
REGULAR = 0.3
"""Repairs whose deviation is below this share of their mean count as equally long."""


class MeasuredLoss(msgspec.Struct, frozen=True):
    """What training has lost by a change, and how much more each replica computed, in shards, while that was measured:
    that is no standstill."""

    lost: float
    more: float = 0.0


class MeasuredRun(msgspec.Struct, frozen=True):
    """Seconds from one run, one for each time that something has happened."""

    step: float
    """An undisturbed one; 0: not known."""
    steps: int = 0
    detected: Sequence[float] = ()
    """From the first sign of a death until everybody had answered."""
    recovered: Sequence[float] = ()
    """Lost by a death whose place a standby took, without the time for which there was none that was ready."""
    masked: Sequence[MeasuredLoss] = ()
    replaced: Sequence[float] = ()
    joined: Sequence[MeasuredLoss] = ()
    refilled: Sequence[float] = ()
    """From a death until its place was played again, where the others went on."""
    prepared: Sequence[float] = ()
    """From a machine's coming until it was a standby that is ready."""
    saved: Sequence[float] = ()
    started: Sequence[float] = ()
    """From a job's first machine to its first step."""
    away: Sequence[float] = ()
    """From a machine's failure until it was ready again as a standby."""


class Calibrated(msgspec.Struct, frozen=True):
    """Durations with, for each, where it comes from; so for `step` and `repair`, where they were measured."""

    durations: Durations
    step: float | None
    repair: Repair | None
    sources: dict[str, str]

    @property
    def measured(self) -> tuple[str, ...]:
        return tuple(name for name, source in self.sources.items() if source != ASSUMED)


def calibrate(measured: MeasuredRun, assumed: Durations = USUAL) -> Calibrated:
    """What was not measured is as assumed. Means, since what is lost adds up."""
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
        msgspec.structs.replace(assumed, **values),
        step or None,
        None if away is None else Repair(away[0], "fixed" if regular(m.away) else "exponential"),
        sources,
    )


def regular(values: Sequence[float]) -> bool:
    return pstdev(values) < REGULAR * fmean(values)


def _told(values: Sequence[float], less: float, what: str) -> tuple[float, str] | None:
    """The mean, less what is counted elsewhere, and where it comes from; None: nothing was measured."""
    if not values:
        return None
    counted = f", {less:.2g} s of each counted elsewhere" if less else ""
    mean = max(0.0, fmean(values) - less)
    said = (
        f"measured in {_count(len(values), what)}, mean {fmean(values):.2g} s, median {median(values):.2g} s{counted}"
    )
    return mean, said


def _count(number: int, what: str) -> str:
    """`what` is in the plural."""
    if number != 1:
        return f"{number:,} {what}"
    first, _, rest = what.partition(" ")
    one = {"recoveries": "recovery"}.get(what, what.removesuffix("s"))
    return f"1 {first.removesuffix('s')} {rest}" if rest.startswith("of ") else f"1 {one}"
