"""SPARe's table of times to train, simulated with its authors' parameters and recovery.

SPARe calls a replica a group; each group fails on its own. As in the paper: a failure is noticed at the all-reduce of
its step, which costs half an all-reduce more; dead groups come back only with a global restart; in a restart each group
needs its own hour, begins again if it fails, and all groups wait for the last one; availability counts that recovery.

The paper leaves open, and the simulation assumes:

- *jitter* is drawn for every shard's computation on every group, and a step waits for the slowest group;
- a restart gives new lifetimes to dead groups only, and the others keep their age (with new lifetimes for all, Weibull
  failures would make cycles a quarter to a half shorter than published);
- a group that fails while it has restarted and waits is missed when training goes on;
- if r does not divide N, replication uses the nearest number of groups that r divides.
"""

from __future__ import annotations

from math import floor, log2, sqrt
from typing import Literal

import msgspec

from understudy.masking.formulas import failures_for_large
from understudy.planning.closed_form import cycle_of
from understudy.planning.failures import Failures
from understudy.planning.outcome import Mean, Waste, mean_of
from understudy.planning.setting import Cluster, Durations, PlanningSetting, StepWork
from understudy.planning.simulation import jump, steps
from understudy.planning.simulation.jump import Progress, silent
from understudy.planning.strategy import Strategy, placed, replication, spare


class Published(msgspec.Struct, frozen=True):
    """A published row of SPARe's table."""

    ttt_ratio: float
    """Time to train, in times to train without failures."""
    availability: float


SOURCE = "SPARe, ICML 2026, arXiv 2603.00357"

# Simulation parameters of the authors; times in seconds.
STEPS = 10_000
COMPUTE = 64.0  # one shard
JITTER = 0.05  # standard deviation of a shard's computing time, as a share of its mean
SYNC_PER_GROUP = 0.01  # all-reduce, per group: 2, 6 and 10 s for 200, 600 and 1,000
SAVE = 59.0  # 60 in the text
RESTART = 3600.0
SHRINK = 0.1  # to continue without a group
SHAPE = 0.78  # Weibull shape of a group's lifetime
SYSTEM_MTBF = 300.0  # mean time between failures of any group; a group's mean lifetime is N times that

BEST_R = {200: 9, 600: 8, 1000: 9}
"""SPARe's results: the best r for each N."""

PUBLISHED: dict[tuple[str, int, int], Published] = {
    ("spare", 200, 9): Published(2.92, 0.870),
    ("spare", 600, 8): Published(2.49, 0.939),
    ("spare", 1000, 9): Published(2.34, 0.965),
    ("replication", 200, 3): Published(6.07, 0.617),
    ("replication", 600, 3): Published(4.27, 0.799),
    ("replication", 1000, 3): Published(3.88, 0.844),
}
"""SPARe's results, Weibull failures: by strategy, N and r."""

Kind = Literal["spare", "replication"]
Distribution = Literal["weibull", "exponential"]
Engine = Literal["jump", "steps"]

KINDS: tuple[Kind, ...] = ("spare", "replication")
LONGEST = 25.0
"""A case is not simulated if its closed form exceeds this multiple of T0."""


class HopelessCase(ValueError):
    """Wipe-outs come so often that training makes hardly any progress; the message says what to change."""


class SpareCase(msgspec.Struct, frozen=True):
    """A row of the table to simulate: strategy, number of groups N and holders r."""

    kind: Kind
    n: int
    r: int
    groups: int
    setting: PlanningSetting
    strategy: Strategy
    closed_form: float
    """Time to train in T0, for exponential failures."""

    @property
    def published(self) -> Published | None:
        return PUBLISHED.get((self.kind, self.n, self.r))


class SpareRow(msgspec.Struct, frozen=True):
    """A simulated row of the table."""

    ttt_ratio: Mean
    availability: Mean
    restarts: float
    recovery: float | None
    """Mean seconds of a restart until all groups are back; None: there was no restart."""


def checkpoint_period(save: float, time_to_wipe_out: float, restart: float) -> float:
    """Seconds from the start of one checkpoint to the start of the next, with the highest availability."""
    return save + sqrt(save**2 + 2 * save * (time_to_wipe_out + restart))


def best_r(replicas: int) -> int:
    """SPARe's rule for the best number of holders."""
    return floor(log2(replicas) + 0.833)


def usual_r(n: int) -> tuple[int, ...]:
    """The best r, published or by SPARe's rule, and 3, the r of replication in the table."""
    return tuple(dict.fromkeys((BEST_R.get(n) or best_r(n), 3)))


def case(kind: Kind, n: int, r: int, work_steps: int = STEPS) -> SpareCase:
    """A case of the table. Raises PlacementError if r holders do not fit, HopelessCase if training cannot progress."""
    if r < 2:
        raise HopelessCase(f"r={r}: every failure would be a wipe-out; use r=2 or more")
    groups = n if kind == "spare" else max(1, round(n / r)) * r
    sync = SYNC_PER_GROUP * n
    setting = PlanningSetting(
        Cluster(groups, groups),
        StepWork(COMPUTE, sync, work_steps, JITTER),
        Durations(detect=sync / 2, shrink=SHRINK, save=SAVE, restart=RESTART),
    )
    more = 1.0 if kind == "spare" else r ** (1 / r)
    until = more * failures_for_large(n, r) * SYSTEM_MTBF
    period = checkpoint_period(SAVE, until, RESTART) - SAVE
    strategy = spare(setting, r, period) if kind == "spare" else replication(setting, r, period)
    placed(strategy.placement, groups)
    cycle = cycle_of(setting, SYSTEM_MTBF * n, strategy)
    inflation = cycle.inflation(setting, strategy)
    if inflation > LONGEST:
        raise HopelessCase(
            f"{kind} with n={n}, r={r} would hardly progress: a restart takes {cycle.recovery:,.0f} s, and a "
            f"wipe-out follows after {cycle.seconds:,.0f} s of training on average; use a larger n or r"
        )
    return SpareCase(kind, n, r, groups, setting, strategy, closed_form=inflation)


def failures_of(n: int, distribution: Distribution) -> Failures:
    """Failures of N groups with these lifetimes."""
    return Failures(SYSTEM_MTBF * n, SHAPE if distribution == "weibull" else 1.0)


def simulate(
    of: SpareCase,
    distribution: Distribution,
    runs: int,
    seed: int,
    engine: Engine = "jump",
    progress: Progress = silent,
) -> SpareRow:
    """Simulates one row of the table."""
    simulated = (jump if engine == "jump" else steps).simulate(
        of.setting, failures_of(of.n, distribution), of.strategy, runs=runs, seed=seed, progress=progress
    )
    without = of.setting.work.steps * of.setting.work.step
    restarts = int(simulated.restarts.sum())
    recovering = float(simulated.wasted[:, Waste.RESTARTING].sum())
    return SpareRow(
        mean_of(simulated.seconds / without),
        simulated.availability,
        restarts / runs,
        recovering / restarts if restarts else None,
    )
