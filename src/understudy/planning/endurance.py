"""Time to train when failures are masked until a wipe-out, in closed form. Exponential failures.

A cycle runs from one restart to the next. With f of N missing it lasts 1/(λ(N-f)) seconds if it gets so far, which it
does with probability (1 - (f/N)^r)^B, B the number of groups of r holders that must not die as a whole. Within a few
percent of simulation.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from understudy.planning.setting import Setting
from understudy.planning.strategy import Strategy, placed

GRID = 200
LONGEST = 40
"""Restarts that a recovery may take in the integral over it."""
NEGLIGIBLE = 1e-9
"""Where a cycle gets with a smaller chance than this, it does not get."""


class WipeOutCycle(msgspec.Struct, frozen=True):
    """From restart to restart, in means, whatever the checkpoint period is. Speeds are shares of that at full strength
    without redundancy."""

    seconds: float
    """Of training, stalls included and checkpoints left out of account, until a wipe-out or a planned restart."""
    stalled: float
    """Seconds of it in which a failure is noticed or lost shards are computed in addition."""
    trained: float
    """What it amounts to at a speed of 1."""
    normal: float
    """The speed when nobody is missing."""
    at_end: float
    """The speed when it ends in a wipe-out; 0 where it does not."""
    planned: float
    """How likely it ends in a planned restart."""
    recovery: float
    """Seconds until everybody is back."""


class Endurance(msgspec.Struct, frozen=True):
    """What follows of a cycle for the time to train."""

    mtti: float
    """Seconds of training and saving until a wipe-out."""
    recovery: float
    """Seconds until everybody is back."""
    inflation: float
    availability: float
    best_period: float
    """Seconds of training between two checkpoints at which `inflation` is smallest."""


def endured(setting: Setting, mtbf: float, strategy: Strategy) -> Endurance:
    """For a strategy that masks and does not refill; `mtbf` is that of what can be missing on its own."""
    found = cycle_of(setting, mtbf, strategy)
    useful, save = useful_of(found, setting, strategy), setting.durations.save
    total = found.seconds + found.recovery
    best = sqrt(2 * save * found.trained / found.at_end) if found.at_end > 0 else inf
    inflation = total / useful if useful > 0 else inf
    return Endurance(found.seconds, found.recovery, inflation, found.seconds / total, best)


def useful_of(cycle: WipeOutCycle, setting: Setting, strategy: Strategy) -> float:
    """Seconds of work at a speed of 1 that a cycle adds for good. Not positive: a checkpoint is hardly ever reached."""
    period = strategy.period
    return cycle.trained * period / (period + setting.durations.save) - period / 2 * cycle.at_end


def cycle_of(setting: Setting, mtbf: float, strategy: Strategy) -> WipeOutCycle:
    return _cycle(setting, mtbf, msgspec.structs.replace(strategy, period=0.0))


@lru_cache(1024)
def _cycle(setting: Setting, mtbf: float, strategy: Strategy) -> WipeOutCycle:
    """Kept, since the best period is searched for."""
    members = strategy.members(setting)
    own = setting.durations.restart + setting.durations.outside
    recovery = _recovery(members, mtbf, own, anew=strategy.restart_anew)
    r = placed(strategy.placement, members).r
    groups = members / r if strategy.redundancy > 1 else members
    last = min(strategy.restart_after or members, members)
    gone = round(members * (1 - exp(-(recovery - own) / mtbf)))  # while they waited for the others
    missing = np.arange(min(gone, last - 1), last + 1)
    reached = (1 - (missing / members) ** r) ** groups
    likely = max(1, int(np.count_nonzero(reached[:-1] > NEGLIGIBLE)))
    missing, reached = missing[: likely + 1], reached[: likely + 1]
    survived, ended = reached[:-1], -np.diff(reached, prepend=1.0)
    here = survived * mtbf / (members - missing[:-1])
    speed, stalled = _speeds(setting, mtbf, strategy, missing[:-1])
    return WipeOutCycle(
        float(here.sum()),
        float(here @ stalled),
        float(here @ (speed * (1 - stalled))),
        1 / strategy.stretch(setting, 0),
        float(ended[0] * speed[0] + ended[1:] @ speed),
        float(reached[-1]) if strategy.restart_after and missing[-1] == last else 0.0,
        recovery,
    )


def _speeds(
    setting: Setting, mtbf: float, strategy: Strategy, missing: NDArray[np.int_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(speed, share of time that is stalled) with so many missing. Failures within one step are noticed together."""
    stretch = np.array([strategy.stretch(setting, int(gone)) for gone in missing])
    patched = np.array([strategy.patched(setting, int(gone)) for gone in missing])
    step = setting.work.step * stretch
    failures = (strategy.members(setting) - missing) / mtbf * step
    lost = strategy.stall * (1 - np.exp(-failures)) + strategy.patch(setting) * (1 - np.exp(-failures * patched))
    return 1 / stretch, lost / (step + lost)


@lru_cache(1024)
def _recovery(members: int, mtbf: float, own: float, *, anew: bool) -> float:
    """Until everybody is there again: whoever fails on the way starts its own restart again, or all do."""
    return (exp(min(members / mtbf * own, 600)) - 1) * mtbf / members if anew else recovery_of_all(members, mtbf, own)


def recovery_of_all(members: int, mtbf: float, restart: float) -> float:
    """Mean time until all are back, when each needs `restart` and begins anew when it fails before it is."""
    step = restart / GRID
    hazard = np.exp(-np.arange(GRID) * step / mtbf) * (1 - exp(-step / mtbf))
    late = np.ones(LONGEST * GRID)
    for at in range(GRID, len(late)):
        late[at] = hazard @ late[at - GRID : at][::-1]
    return restart + step * float(np.sum(1 - (1 - late[GRID:]) ** members))
