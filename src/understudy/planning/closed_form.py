"""Time to train in closed form, for exponential failures: the simulators' results within microseconds.

Each formula is exact or nearly exact under its assumptions; `tests/planning/test_closed_form.py` compares it with the
simulation. In the order of `estimate`:

- *restart*: the time from one checkpoint to the next is M·e^(R/M)·(e^((τ+C)/M) - 1), with M the job's mean time between
  failures, R the restart, τ the period and C the save. A failure during a restart begins the restart again.
- *replace*: the job stands still if a failure came within the last D seconds, with probability 1 - e^(-D/M), and while
  more machines are in repair than there are standbys.
- *mask and refill*: as *replace*, with the short stall. The number of missing replicas has a Poisson distribution with
  mean W/M, W being the time until a refill, and each number of missing replicas has its own step time.
- *mask without refill* (SPARe, replication): a cycle runs from one restart to the next. The state with f of N members
  missing lasts 1/(λ(N-f)) seconds and is reached with probability (1 - (f/N)^r)^B, B being the number of groups of r
  holders of which one must stay alive. The result is within a few percent of the simulation.

The number of machines in repair has a Poisson distribution as well, whatever the distribution of repairs is: failures
come at random, and repairs do not wait for each other.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, exp, expm1, inf, lgamma, log, sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from understudy.planning.failures import Failures, Repair
from understudy.planning.outcome import Waste
from understudy.planning.setting import PlanningSetting
from understudy.planning.strategy import Strategy, placed

MOST_MISSING = 60
NEGLIGIBLE = 1e-7
LONGEST_PERIOD = 6 * 3600.0
"""The planner never recommends a longer checkpoint period."""


class Estimate(msgspec.Struct, frozen=True):
    """The expected result of a strategy. Shares are shares of all time."""

    efficiency: float
    """Useful share of the time, standbys not counted. Also called ETTR."""
    availability: float
    """Share of the time in which the job is not restarting."""
    shares: dict[Waste, float]

    @property
    def inflation(self) -> float:
        """Time to train, in times to train without interruption."""
        return 1 / self.efficiency if self.efficiency > 0 else inf


def estimate(setting: PlanningSetting, failures: Failures, strategy: Strategy, repair: Repair) -> Estimate:
    """The expected result of `strategy` in this setting."""
    rate = setting.cluster.machines / failures.mtbf
    if strategy.answer == "restart":
        found = _restarting(setting, strategy, rate)
    elif strategy.answer == "replace":
        found = _replacing(setting, strategy, rate, repair)
    elif strategy.refills:
        found = _refilling(setting, strategy, rate, repair)
    else:
        found = _enduring(setting, strategy, rate)
    return _interrupted(found, setting, failures, strategy)


def best_period(setting: PlanningSetting, failures: Failures, strategy: Strategy, repair: Repair) -> float:
    """The checkpoint period with the smallest inflation, to about one percent of the period."""

    def inflation(period: float) -> float:
        return estimate(setting, failures, msgspec.structs.replace(strategy, period=period), repair).inflation

    step, save = setting.work.step, setting.durations.save
    low, high = max(step, save / 50), max(LONGEST_PERIOD, 2 * step)
    most = high
    while high / low > 1.02:
        third = (high / low) ** (1 / 3)
        if inflation(low * third) < inflation(high / third):
            high /= third
        else:
            low *= third
    return most if high == most else sqrt(low * high)


def _shared(found: dict[Waste, float]) -> Estimate:
    useful, available = max(1 - sum(found.values()), 0.0), 1 - found.get(Waste.RESTARTING, 0.0)
    return Estimate(useful, available, {kind: share for kind, share in found.items() if share > 0})


def _restarting(setting: PlanningSetting, strategy: Strategy, rate: float) -> Estimate:
    save, period, mean = setting.durations.save, strategy.period, 1 / rate
    stretch = (period + save) / mean
    if stretch + strategy.stall / mean > 600:
        return Estimate(0.0, 0.0, {Waste.RESTARTING: 1.0})
    failed = expm1(stretch)
    restarting = mean * expm1(strategy.stall / mean) * failed
    total = mean * failed + restarting
    return _shared(
        {
            Waste.SAVING: save / total,
            Waste.RESTARTING: restarting / total,
            Waste.REPEATED: (mean * failed - period - save) / total,
        }
    )


def _replacing(setting: PlanningSetting, strategy: Strategy, rate: float, repair: Repair) -> Estimate:
    if strategy.standbys:
        waiting = shortage(rate * repair.mean, strategy.standbys)
        stalled = (1 - waiting) * (1 - exp(-rate * strategy.stall))
    else:
        still = 1 - exp(-rate * (strategy.stall + setting.durations.cold))
        waiting = still * setting.durations.cold / (strategy.stall + setting.durations.cold)
        stalled = still - waiting
    running = 1 - waiting - stalled
    return _shared({**_saving(setting, strategy, running), Waste.WAITING: waiting, Waste.STALLED: stalled})


def _refilling(setting: PlanningSetting, strategy: Strategy, rate: float, repair: Repair) -> Estimate:
    if strategy.may_recover and strategy.standbys and not strategy.masks(setting, 1, ready=True):
        return _replacing(setting, msgspec.structs.replace(strategy, stall=strategy.recover), rate, repair)
    if strategy.standbys:
        vacant = mean_vacant(rate * repair.mean, strategy.standbys)
    else:
        vacant = rate * setting.durations.cold
    stall = strategy.stall + strategy.patch(setting)
    away = rate * max(strategy.refill - stall, 0.0) + vacant
    window = strategy.refill + vacant / rate
    still = 1 - exp(-rate * stall)
    joining = min(rate * strategy.join, 1.0)
    running = (1 - still) * (1 - joining)
    slow = _slowed(setting, strategy, away)
    trained = _saving(setting, strategy, running)
    degraded = (running - sum(trained.values())) * slow
    shares = {**trained, Waste.STALLED: still, Waste.JOINING: (1 - still) * joining, Waste.DEGRADED: degraded}
    wiped = _wipe_outs(setting, strategy, rate, window)
    found = _shared(shares)
    if not wiped:
        return found
    lost = wiped * (setting.durations.restart + strategy.period / 2)
    restarting = min(wiped * setting.durations.restart, 1.0)
    scaled = {kind: share * (1 - min(lost, 1.0)) for kind, share in found.shares.items()}
    again = min(wiped * strategy.period / 2, 1.0)
    return _shared({**scaled, Waste.RESTARTING: restarting, Waste.REPEATED: again})


def _slowed(setting: PlanningSetting, strategy: Strategy, away: float) -> float:
    """Share of training time lost to longer steps, if `away` members are missing on average."""
    members = strategy.members(setting)
    if away > MOST_MISSING / 2:
        return 1 - 1 / strategy.stretch(setting, min(round(away), members))
    slow, chance = 0.0, exp(-away)
    for missing in range(1, min(members, MOST_MISSING) + 1):
        chance *= away / missing
        if chance < NEGLIGIBLE and missing > away:
            break
        slow += chance * (1 - 1 / strategy.stretch(setting, missing))
    return slow


def _wipe_outs(setting: PlanningSetting, strategy: Strategy, rate: float, window: float) -> float:
    """Wipe-outs per second: all holders of a shard fail within one `window`."""
    members = strategy.members(setting)
    placement = placed(strategy.placement, members)
    each = rate / members
    gone = min(each * window, 1.0)
    if placement.everywhere:
        return 0.0 if members > MOST_MISSING else float(members * each * gone ** (members - 1))
    return float(members * placement.r * each * gone ** (placement.r - 1))


def _enduring(setting: PlanningSetting, strategy: Strategy, rate: float) -> Estimate:
    found = cycle_of(setting, strategy.members(setting) / rate, strategy)
    save, share = setting.durations.save, strategy.period / (strategy.period + setting.durations.save)
    running = found.seconds - found.stalled
    total = found.seconds + found.recovery + found.planned * save
    repeated = strategy.period / 2 * found.at_end
    if found.inflation(setting, strategy) == inf:
        return Estimate(0.0, 1 - found.recovery / total, {Waste.REPEATED: 1.0})
    lost = {
        Waste.SAVING: running * (1 - share) + found.planned * save,
        Waste.REDUNDANT: running * share * (1 - found.normal),
        Waste.DEGRADED: share * (running * found.normal - found.trained),
        Waste.STALLED: found.stalled,
        Waste.RESTARTING: found.recovery,
        Waste.REPEATED: repeated,
    }
    return _shared({kind: each / total for kind, each in lost.items()})


def _saving(setting: PlanningSetting, strategy: Strategy, running: float) -> dict[Waste, float]:
    save = setting.durations.save
    return {Waste.SAVING: running * save / (strategy.period + save)}


def _interrupted(found: Estimate, setting: PlanningSetting, failures: Failures, strategy: Strategy) -> Estimate:
    """The estimate, with planned maintenance and slow machines added."""
    machines = setting.cluster.machines
    planned = machines / failures.maintenance * strategy.planned if failures.maintenance else 0.0
    slow = machines / failures.straggling * (failures.slowness + strategy.planned) if failures.straggling else 0.0
    left = exp(-planned) / (1 + slow)
    if left == 1.0:
        return found
    shares = {kind: share * left for kind, share in found.shares.items()}
    shares[Waste.PLANNED] = (1 - left) * planned / (planned + slow)
    shares[Waste.STRAGGLING] = (1 - left) * slow / (planned + slow)
    return Estimate(found.efficiency * left, 1 - (1 - found.availability) * left, shares)


# -- standbys ----------------------------------------------------------------------------------------------------------


def enough_standbys(rate: float, repair: float) -> int:
    """Standbys with which a failure almost never waits for a machine: the mean in repair plus three deviations."""
    away = rate * repair
    return max(1, ceil(away + 3 * sqrt(away)))


@lru_cache(1024)
def shortage(away: float, standbys: int) -> float:
    """Share of time with more machines in repair than standbys; `away` is the mean number of machines in repair."""
    return 1.0 if _always_short(away, standbys) else sum(_chances(away, standbys))


@lru_cache(1024)
def mean_vacant(away: float, standbys: int) -> float:
    """Mean number of vacant machines' places; `away` is the mean number of machines in repair."""
    if _always_short(away, standbys):
        return away - standbys
    return sum(place * chance for place, chance in enumerate(_chances(away, standbys), 1))


def _always_short(away: float, standbys: int) -> bool:
    """Whether a shortage has probability 1 within floating-point precision."""
    return away - standbys > 40 * sqrt(away) + 40


def _chances(away: float, standbys: int) -> list[float]:
    """Probabilities that 1, 2, … more machines are in repair than there are standbys."""
    if away <= 0:
        return []
    most = max(standbys + 1, int(away)) + int(12 * sqrt(away)) + 20
    return [exp(number * log(away) - away - lgamma(number + 1)) for number in range(standbys + 1, most)]


# -- masking until a wipe-out, without refill --------------------------------------------------------------------------

GRID = 200
LONGEST_RECOVERY = 40
"""Restart durations that the integral over a recovery covers."""
HARDLY_REACHED = 1e-9
"""States that are reached with a smaller probability are left out."""


class WipeOutCycle(msgspec.Struct, frozen=True):
    """Means of a cycle from restart to restart, independent of the checkpoint period.

    Speeds are shares of the speed at full strength without redundancy.
    """

    seconds: float
    """Seconds until a wipe-out or a planned restart, with stalls and without checkpoints."""
    stalled: float
    """Seconds of the cycle spent on noticing failures and on recomputing lost shards."""
    trained: float
    """Work of the cycle, in seconds at a speed of 1."""
    normal: float
    """Speed with no member missing."""
    at_end: float
    """Speed at the wipe-out, weighted by the probability that the cycle ends in one."""
    planned: float
    """Probability that the cycle ends in a planned restart."""
    recovery: float
    """Seconds of the restart until all members are back."""

    def inflation(self, setting: PlanningSetting, strategy: Strategy) -> float:
        """Time to train, in times to train without interruption. Infinite if cycles end before a checkpoint."""
        period = strategy.period
        useful = self.trained * period / (period + setting.durations.save) - period / 2 * self.at_end
        return (self.seconds + self.recovery) / useful if useful > 0 else inf


def cycle_of(setting: PlanningSetting, mtbf: float, strategy: Strategy) -> WipeOutCycle:
    """The cycle of a strategy that masks and does not refill; `mtbf` is the MTBF of one member."""
    return _cycle(setting, mtbf, msgspec.structs.replace(strategy, period=0.0))


@lru_cache(1024)
def _cycle(setting: PlanningSetting, mtbf: float, strategy: Strategy) -> WipeOutCycle:
    """The cycle; cached, because a search for the best period asks for it many times."""
    members = strategy.members(setting)
    own = setting.durations.restart + setting.durations.outside
    if strategy.restart_anew:
        recovery = (exp(min(members / mtbf * own, 600)) - 1) * mtbf / members
    else:
        recovery = recovery_of_all(members, mtbf, own)
    r = placed(strategy.placement, members).r
    groups = members / r if strategy.redundancy > 1 else members
    last = min(strategy.restart_after or members, members)
    gone = round(members * (1 - exp(-(recovery - own) / mtbf)))  # members that fail while they wait for the others
    missing = np.arange(min(gone, last - 1), last + 1)
    reached = (1 - (missing / members) ** r) ** groups
    likely = max(1, int(np.count_nonzero(reached[:-1] > HARDLY_REACHED)))
    missing, reached = missing[: likely + 1], reached[: likely + 1]
    survived, ended = reached[:-1], -np.diff(reached, prepend=1.0)
    here = survived * mtbf / (members - missing[:-1])
    speed, stalled = _speeds(setting, mtbf, strategy, missing[:-1])
    return WipeOutCycle(
        seconds=float(here.sum()),
        stalled=float(here @ stalled),
        trained=float(here @ (speed * (1 - stalled))),
        normal=1 / strategy.stretch(setting, 0),
        at_end=float(ended[0] * speed[0] + ended[1:] @ speed),
        planned=float(reached[-1]) if strategy.restart_after and missing[-1] == last else 0.0,
        recovery=recovery,
    )


def _speeds(
    setting: PlanningSetting, mtbf: float, strategy: Strategy, missing: NDArray[np.int_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Speeds and stalled shares of time for each number in `missing`. Failures within one step are noticed together."""
    stretch = np.array([strategy.stretch(setting, int(gone)) for gone in missing])
    patched = np.array([strategy.patched(setting, int(gone)) for gone in missing])
    step = setting.work.step * stretch
    failures = (strategy.members(setting) - missing) / mtbf * step
    lost = strategy.stall * (1 - np.exp(-failures)) + strategy.patch(setting) * (1 - np.exp(-failures * patched))
    return 1 / stretch, lost / (step + lost)


@lru_cache(1024)
def recovery_of_all(members: int, mtbf: float, restart: float) -> float:
    """Mean time until all members are back, if each needs `restart` seconds and begins again when it fails."""
    step = restart / GRID
    hazard = np.exp(-np.arange(GRID) * step / mtbf) * (1 - exp(-step / mtbf))
    late = np.ones(LONGEST_RECOVERY * GRID)
    for at in range(GRID, len(late)):
        late[at] = hazard @ late[at - GRID : at][::-1]
    return restart + step * float(np.sum(1 - (1 - late[GRID:]) ** members))
