"""Time to train when failures are masked until a wipe-out, in closed form. Exponential failures.

Replicas are dead with probability u = 1 - exp(-t / mtbf) at time t of a cycle; everything is an integral over t of the
probability that no shard is lost by then, with the speed of training at that u. Within a few percent of simulation.
"""

from __future__ import annotations

from math import exp, floor, inf, log2, sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from understudy.model.setting import Setting
from understudy.model.strategy import Strategy, placed
from understudy.spare.formulas import depth_bound, failures_for_large

POINTS = 4000
GRID = 200
LONGEST = 40
"""Restarts that a recovery may take in the integral over it."""


class Endured(msgspec.Struct, frozen=True):
    """One cycle from restart to restart, in means, and what follows of it."""

    mtti: float
    """Seconds of training and saving until a wipe-out."""
    recovery: float
    """Seconds until everybody is back."""
    steps: float
    """Steps that a cycle adds for good. Not positive: a checkpoint is hardly ever reached."""
    inflation: float
    availability: float
    best_period: float
    """Seconds of training between two checkpoints at which `inflation` is smallest."""


def endured(setting: Setting, mtbf: float, strategy: Strategy) -> Endured:
    """For a strategy that masks and does not refill; `mtbf` is that of what can be missing on its own."""
    units, work, save = strategy.units(setting), setting.work, setting.durations.save
    r = placed(strategy.placement, units).r
    own = setting.durations.restart + setting.durations.outside
    recovery = own if strategy.restart_anew else recovery_of_all(units, mtbf, own)
    start = (recovery - own) / mtbf
    x = start + np.linspace(0.0, _longest(units, r), POINTS)
    u = 1 - np.exp(-x)
    alive = (1 - u**r) ** (units / r if strategy.redundancy > 1 else units)
    speed = _speed(setting, mtbf, strategy, u)
    mtti = mtbf * float(np.trapezoid(alive, x))
    progress = mtbf * float(np.trapezoid(alive * speed, x))
    v_end = float(-np.trapezoid(speed, alive)) + float(speed[0] * (1 - alive[0]))
    period = strategy.period
    steps = progress * period / (period + save) - period / 2 * v_end
    inflation = (mtti + recovery) / steps / work.step if steps > 0 else inf
    best = sqrt(2 * save * progress / v_end)
    return Endured(mtti, recovery, steps, inflation, mtti / (mtti + recovery), best)


def recovery_of_all(units: int, mtbf: float, restart: float) -> float:
    """Mean time until all are back, when each needs `restart` and begins anew when it fails before it is."""
    step = restart / GRID
    hazard = np.exp(-np.arange(GRID) * step / mtbf) * (1 - exp(-step / mtbf))
    late = np.ones(LONGEST * GRID)
    for at in range(GRID, len(late)):
        late[at] = hazard @ late[at - GRID : at][::-1]
    return restart + step * float(np.sum(1 - (1 - late[GRID:]) ** units))


def _speed(setting: Setting, mtbf: float, strategy: Strategy, u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Steps per second. Failures within one step are noticed together."""
    units, work = strategy.units(setting), setting.work
    missing = np.minimum(np.rint(u * units).astype(int), units - 1)
    most = int(missing.max()) + 1
    step = work.step * np.array([strategy.stretch(setting, gone) for gone in range(most)])[missing]
    patched = np.array([strategy.patched(setting, gone) for gone in range(most)])[missing]
    failures = (units - missing) / mtbf * step
    stall = strategy.stall * (1 - np.exp(-failures))
    patch = strategy.patch(setting) * (1 - np.exp(-failures * patched))
    return np.asarray(1 / (step + stall + patch))


def _longest(units: int, r: int) -> float:
    """Beyond this a shard is as good as surely lost: units · u^r = 40, or all but surely everybody dead."""
    u = min((40 / units) ** (1 / r), 1 - 1e-4)
    return float(-np.log(1 - u))


# -- as SPARe has it ---------------------------------------------------------------------------------------------------


def checkpoint_period(save: float, time_to_wipe_out: float, restart: float) -> float:
    """From the beginning of one checkpoint to that of the next, for the highest `availability_bound`."""
    return save + sqrt(save**2 + 2 * save * (time_to_wipe_out + restart))


def availability_bound(save: float, time_to_wipe_out: float, restart: float, period: float) -> float:
    """Share of time that is neither saving, restarting nor doing work again."""
    return (1 - save / period) * time_to_wipe_out / (time_to_wipe_out + restart + period / 2)


def mean_depth(replicas: int, r: int) -> float:
    """Mean depth over the failures endured."""
    failures = max(1, floor(failures_for_large(replicas, r)))
    return sum(depth_bound(replicas, dead) for dead in range(failures)) / failures


def objective(replicas: int, r: int, system_mtbf: float, save: float, restart: float) -> float:
    """SPARe's J(r), patches left out: computation per step for each share of time that is not lost."""
    until = failures_for_large(replicas, r) * system_mtbf
    period = checkpoint_period(save, until, restart)
    return mean_depth(replicas, r) / availability_bound(save, until, restart, period)


def best_r(replicas: int) -> int:
    """SPARe's rule for the smallest J."""
    return floor(log2(replicas) + 0.833)
