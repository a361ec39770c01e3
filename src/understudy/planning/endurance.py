"""Time to train if failures are masked until a wipe-out and no replica is refilled, in closed form.

Failures are exponential. A cycle runs from one restart to the next. The state with f of N members missing lasts
1/(λ(N-f)) seconds and is reached with probability (1 - (f/N)^r)^B, B being the number of groups of r holders of which
one must stay alive. The result is within a few percent of the simulation.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf

import msgspec
import numpy as np
from numpy.typing import NDArray

from understudy.planning.setting import PlanningSetting
from understudy.planning.strategy import Strategy, placed

GRID = 200
LONGEST = 40
"""Restart durations that the integral over a recovery covers."""
NEGLIGIBLE = 1e-9
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
    likely = max(1, int(np.count_nonzero(reached[:-1] > NEGLIGIBLE)))
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
    late = np.ones(LONGEST * GRID)
    for at in range(GRID, len(late)):
        late[at] = hazard @ late[at - GRID : at][::-1]
    return restart + step * float(np.sum(1 - (1 - late[GRID:]) ** members))
