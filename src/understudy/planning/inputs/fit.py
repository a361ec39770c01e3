"""Fits failure and repair distributions to an incident log, with a reason and a confidence interval for each value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import exp, lgamma, log, sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from understudy.planning.failures import Failures, Repair, Spread, Times
from understudy.planning.inputs.incidents import MAINTENANCE, STRAGGLER, IncidentError, Incidents
from understudy.protocol.durations import readable

TOGETHER = 60.0
"""Failures in one domain within this many seconds of each other count as one."""
ENOUGH = 20
"""Lifetimes, from a repair to the next failure, that a fit of their distribution needs."""
CHANCE = 1e-3
"""A stretch without incidents is reported if its probability is below this."""
Z = 1.96


class FittedValue(msgspec.Struct, frozen=True):
    """A value with its 95 % confidence interval and its reason."""

    value: float
    low: float
    high: float
    reason: str


class Fitted(msgspec.Struct, frozen=True):
    """Failures and repairs for the simulator and the planner, with the values that they come from."""

    failures: Failures
    repair: Repair
    domain: int
    """Mean number of machines in a failure of several machines."""
    window: float
    """Seconds that the log covers."""
    mtbf: FittedValue
    shape: FittedValue
    together: FittedValue
    maintenance: FittedValue
    straggling: FittedValue
    away: FittedValue
    warnings: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reason of each fitted value."""
        estimates = (self.mtbf, self.shape, self.together, self.maintenance, self.straggling, self.away)
        return tuple(estimate.reason for estimate in estimates)


def fit(incidents: Incidents, machines: int, *, window: float | None = None) -> Fitted:
    """Fits a log of `machines` machines, including those that never failed, over `window` seconds.

    The default window is the time from the first to the last incident plus one mean gap. Raises IncidentError if the
    log does not allow a fit.
    """
    if machines < len(incidents.machines):
        named = len(incidents.machines)
        raise IncidentError(
            f"the log names {named:,} machines, but {machines:,} are given; set --observed to all observed machines"
        )
    start, end = _window(incidents, window)
    slow, planned = incidents.of_kind(STRAGGLER), incidents.of_kind(MAINTENANCE)
    failed = ~slow & ~planned
    up = _uptime(incidents, ~slow, machines, start, end)
    groups, several = _groups(incidents, failed)
    count = int(failed.sum()) - int(several.sum()) + groups
    if not count:
        raise IncidentError(
            "the log has no unplanned failure, so there is no failure rate: the MTBF of a machine is above "
            f"{readable(up / 3.0)}; give --mtbf"
        )
    mtbf = _mtbf(count, groups, up, machines, end - start, several)
    shape = _shape(incidents, failed, several, end)
    together = _together(groups, count, bool(len(incidents.domains)))
    maintenance = _every(int(planned.sum()), up, "maintenance", "planned maintenance")
    straggling = _every(int(slow.sum()), up, "straggler", "a slow machine")
    away, spread = _away(incidents.repair[failed])
    noticed = incidents.repair[slow & (incidents.repair > 0)]
    failures = Failures(
        mtbf.value,
        shape.value,
        together=together.value,
        maintenance=maintenance.value,
        straggling=straggling.value,
        noticed=float(noticed.mean()) if len(noticed) else Failures(mtbf.value).noticed,
    )
    warnings = [*incidents.warnings, *_silences(incidents, end - start)]
    if count < 10:
        few = "1 failure is" if count == 1 else f"{count} failures are"
        range_of_mtbf = f"{readable(mtbf.low)} to {readable(mtbf.high)}"
        warnings.append(f"{few} too few for a precise fit: the MTBF may be {range_of_mtbf}")
    repair, domain = Repair(away.value, spread), round(int(several.sum()) / groups) if groups else 1
    values = (mtbf, shape, together, maintenance, straggling, away)
    return Fitted(failures, repair, domain, end - start, *values, warnings=tuple(warnings))


def _window(log: Incidents, window: float | None) -> tuple[float, float]:
    first, last = float(log.at[0]), float(log.at[-1])
    seen = last - first
    if window is None:
        if not seen:
            raise IncidentError("all incidents have the same date; give the length of the observation as --watched")
        window = seen * (len(log) + 1) / (len(log) - 1)
    if not seen <= window < np.inf or not window:
        raise IncidentError(f"the log covers {readable(seen)}, so --watched {readable(window)} cannot be right")
    rest = (window - seen) / 2
    return first - rest, last + rest


def _ends(log: Incidents, chosen: NDArray[np.bool_], end: float) -> tuple[NDArray[np.intp], Times, NDArray[np.bool_]]:
    """Rows by machine and time, the end of each repair, and whether the machine has a later row."""
    rows = np.flatnonzero(chosen)
    order = rows[np.lexsort((log.at[rows], log.machine[rows]))]
    limit = np.full(len(order), end)
    again = np.zeros(len(order), dtype=bool)
    again[:-1] = log.machine[order[1:]] == log.machine[order[:-1]]
    limit[:-1][again[:-1]] = log.at[order[1:]][again[:-1]]
    return order, np.minimum(log.at[order] + np.maximum(log.repair[order], 0.0), limit), again


def _uptime(log: Incidents, stops: NDArray[np.bool_], machines: int, start: float, end: float) -> float:
    """Machine-seconds in which a machine was up and could have failed."""
    order, ends, _ = _ends(log, stops, end)
    up = machines * (end - start) - float((ends - log.at[order]).sum())
    if up <= 0:
        raise IncidentError("all machines were under repair all the time; are the repairs in the right unit?")
    return up


def _groups(log: Incidents, failed: NDArray[np.bool_]) -> tuple[int, NDArray[np.bool_]]:
    """The number of times that machines of a domain failed together, and the rows that belong to these failures."""
    several = np.zeros(len(log), dtype=bool)
    rows = np.flatnonzero(failed & (log.domain >= 0))
    if not len(rows):
        return 0, several
    rows = rows[np.lexsort((log.at[rows], log.domain[rows]))]
    apart = (np.diff(log.domain[rows]) != 0) | (np.diff(log.at[rows]) > TOGETHER)
    group = np.concatenate([[0], np.cumsum(apart)])
    pairs = np.unique(group * len(log.machines) + log.machine[rows])
    machines = np.bincount(pairs // len(log.machines), minlength=int(group[-1]) + 1)
    several[rows] = machines[group] > 1
    return int((machines > 1).sum()), several


def _mtbf(count: int, groups: int, up: float, machines: int, window: float, several: NDArray[np.bool_]) -> FittedValue:
    low, high = rates(count)
    value = up / count
    once = f" ({groups} of them affected {int(several.sum())} machines, each counted once)" if groups else ""
    reason = (
        f"{count:,} unplanned {'failure' if count == 1 else 'failures'}{once} of {machines:,} machines in "
        f"{readable(window)}, repairs excluded: a machine fails every {readable(value)} (95 %: {readable(up / high)} "
        f"to {readable(up / low)}), any machine every {readable(value / machines)}"
    )
    return FittedValue(value, up / high, up / low, reason)


def rates(count: int) -> tuple[float, float]:
    """The 95 % interval of the expected number of events if `count` were observed (Poisson; exact for small counts)."""
    if count > 100:
        return (_wilson_hilferty(count, -Z), _wilson_hilferty(count + 1, Z))
    low = 0.0 if not count else _solve(lambda mean: _at_most(count - 1, mean) - 0.975, 0.0, count)
    return low, _solve(lambda mean: _at_most(count, mean) - 0.025, count, 4.0 * count + 20)


def _wilson_hilferty(count: int, z: float) -> float:
    """Half the quantile of the chi-square distribution with 2 · `count` degrees of freedom."""
    return count * (1 - 1 / (9 * count) + z / (3 * sqrt(count))) ** 3


def _at_most(count: int, mean: float) -> float:
    if mean <= 0:
        return 1.0
    return sum(exp(number * log(mean) - mean - lgamma(number + 1)) for number in range(count + 1))


def _solve(falling: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a falling function between `low` and `high`."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def _shape(log: Incidents, failed: NDArray[np.bool_], several: NDArray[np.bool_], end: float) -> FittedValue:
    """The Weibull shape of lifetimes. A lifetime begins with a repair; unfinished lifetimes count as censored."""
    order, ends, again = _ends(log, failed, end)
    until = np.full(len(order), end)
    until[:-1][again[:-1]] = log.at[order[1:]][again[:-1]]
    whole = again.copy()
    whole[:-1] &= ~several[order[1:]]  # failures of a whole domain do not depend on the age of a machine
    lived = until > ends  # else the machine was interrupted during its repair
    lives, whole = (until - ends)[lived], whole[lived]
    count = int(whole.sum())
    if count < ENOUGH:
        few = f"{count} {'lifetime' if count == 1 else 'lifetimes'} from a repair to the next failure"
        return FittedValue(1.0, 1.0, 1.0, f"failures are assumed not to depend on age: the log has only {few}")
    shape, error = weibull(lives, whole)
    low, high = shape * exp(-Z * error / shape), shape * exp(Z * error / shape)
    found = f"{count:,} lifetimes and {len(lives) - count:,} unfinished ones give a Weibull shape of {shape:.2f}"
    between = f"(95 %: {low:.2f} to {high:.2f})"
    if low <= 1 <= high:
        reason = f"failures do not depend on age: {found} {between}, which does not differ significantly from 1"
        return FittedValue(1.0, low, high, reason)
    when = "most failures are early" if shape < 1 else "machines wear out"
    return FittedValue(shape, low, high, f"{when}: {found} {between}")


def weibull(lives: Times, whole: NDArray[np.bool_]) -> tuple[float, float]:
    """The maximum-likelihood shape and its standard error; lifetimes that are not `whole` are censored."""
    scaled = lives / lives.mean()
    logs, count = np.log(scaled), int(whole.sum())
    known = float(logs[whole].sum())

    def moments(shape: float) -> tuple[float, float]:
        """First and second moment of the logarithms, weighted by hazard."""
        weights = np.exp(shape * (logs - logs.max()))
        total = weights.sum()
        return float((weights * logs).sum() / total), float((weights * logs * logs).sum() / total)

    shape = _solve(lambda shape: count / shape + known - count * moments(shape)[0], 0.1, 10.0)
    mean, square = moments(shape)
    return shape, 1 / sqrt(count / shape**2 + count * max(square - mean**2, 0.0))


def _together(groups: int, count: int, known: bool) -> FittedValue:
    share = groups / count
    middle, half = (share + Z**2 / (2 * count)), Z * sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    low, high = max(0.0, (middle - half) / (1 + Z**2 / count)), (middle + half) / (1 + Z**2 / count)
    if not known:
        reason = "each failure is assumed to affect one machine: the log has no domains"
        return FittedValue(0.0, 0.0, high if groups else 0.0, reason)
    if not groups:
        return FittedValue(0.0, 0.0, high, f"no two machines of a domain failed within {TOGETHER:g} s of each other")
    reason = f"{groups} of {count:,} failures affected several machines of a domain within {TOGETHER:g} s: {share:.1%}"
    return FittedValue(share, low, high, reason)


def _every(count: int, up: float, kind: str, words: str) -> FittedValue:
    """Mean time of a machine to an interruption of this kind; 0 if there is none."""
    if not count:
        return FittedValue(0.0, 0.0, 0.0, f"no row of kind {kind}: {words} is left out")
    low, high = rates(count)
    reason = f"{count:,} rows of kind {kind}: {words} every {readable(up / count)} of a machine"
    return FittedValue(up / count, up / high, up / low if low else up, reason)


def _away(repairs: Times) -> tuple[FittedValue, Spread]:
    """The mean repair time and the distribution that fits best."""
    known = repairs[repairs >= 0]
    if not len(known):
        mean = Repair().mean
        reason = f"the log has no repairs; {readable(mean)} is assumed"
        return FittedValue(mean, mean, mean, reason), "exponential"
    mean, deviation = float(known.mean()), float(known.std())
    half = Z * deviation / sqrt(len(known))
    spread: Spread = "fixed"
    if deviation > 0.05 * mean:
        scaled = np.maximum(known / mean, 1e-6)
        exponential = float(scaled.sum())
        lognormal = float(((np.log(scaled) + 0.5) ** 2 / 2 + np.log(scaled)).sum()) + len(known) * log(sqrt(2 * np.pi))
        spread = "lognormal" if lognormal < exponential else "exponential"
    unknown = len(repairs) - len(known)
    also = f" ({unknown:,} more have no duration)" if unknown else ""
    reason = f"{len(known):,} repairs{also} took {readable(mean)} on average; {_SPREADS[spread]}"
    return FittedValue(mean, max(mean - half, 0.0), mean + half, reason), spread


_SPREADS = {
    "fixed": "all about equally long",
    "exponential": "exponentially distributed",
    "lognormal": "lognormally distributed, with a few very long ones",
}


def _silences(log: Incidents, window: float) -> Iterator[str]:
    """Warns of a stretch without incidents that is improbable: the log may have a gap."""
    starts = np.concatenate([[0], 1 + np.flatnonzero(np.diff(log.at) > TOGETHER)])
    at = log.at[starts]
    gaps = np.diff(at)
    if len(gaps) < 10:
        return
    place = int(gaps.argmax())
    longest, usual = float(gaps[place]), (window - float(gaps[place])) / len(gaps)
    if len(gaps) * exp(-longest / max(usual, 1e-9)) < CHANCE:
        date = datetime.fromtimestamp(float(at[place]), UTC).isoformat(" ", "minutes").removesuffix("+00:00")
        yield (
            f"the log has no incident for {readable(longest)} from {date} on (line {log.line[starts[place]]}), but one "
            f"every {readable(usual)} otherwise; if incidents were not recorded in that time, split the log there"
        )
