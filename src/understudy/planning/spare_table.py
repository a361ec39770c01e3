"""SPARe's table of times to train, simulated with its authors' parameters and recovery.

Every group is one unit that fails on its own. What the simulation takes from the authors: failures are noticed at the
all-reduce of their step, which costs half of one more; dead groups stop failing and come back only with a global
restart; in a restart each group needs its own hour, begins it anew when it fails meanwhile, and all wait for the last;
availability counts that recovery only.

What they leave open, and how it is read here:

- *jitter* is drawn for every shard's computation on every group, and a step waits for the slowest group;
- a restart gives new lives to the dead groups only, the others keep their age (with new lives for all, Weibull failures
  would make cycles a quarter to a half shorter than published);
- a group that fails while it is ready and waits is missed when training goes on, not while it waits;
- where r does not divide N, replication has the nearest number of groups that it divides.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from understudy.masking.formulas import failures_for_large
from understudy.planning import jump, papers, steps
from understudy.planning.endure import best_r, checkpoint_period, endured
from understudy.planning.failures import Failures
from understudy.planning.jump import Progress
from understudy.planning.outcome import Mean, Waste, mean_of
from understudy.planning.setting import Cluster, Durations, Setting, Work
from understudy.planning.strategy import Strategy, placed, replication, spare

Kind = Literal["spare", "replication"]
Distribution = Literal["weibull", "exponential"]
Engine = Literal["jump", "steps"]

KINDS: tuple[Kind, ...] = ("spare", "replication")
LONGEST = 25.0
"""Times T0: what takes longer, by its closed form, is not simulated."""


class Hopeless(ValueError):
    """So many wipe-outs that training would hardly move; the message says where and what to do."""


class Case(msgspec.Struct, frozen=True):
    kind: Kind
    n: int
    r: int
    groups: int
    setting: Setting
    strategy: Strategy
    closed_form: float
    """Time to train in T0, for exponential failures."""

    @property
    def published(self) -> papers.Published | None:
        return papers.SPARE_TABLE.get((self.kind, self.n, self.r))


class Row(msgspec.Struct, frozen=True):
    ttt_ratio: Mean
    availability: Mean
    restarts: float
    recovery: float | None
    """Mean seconds of a restart until everybody is back."""


def usual_r(n: int) -> tuple[int, ...]:
    """The published best r, else SPARe's rule for it; and 3, the r of replication in the table."""
    return tuple(dict.fromkeys((papers.SPARE_BEST_R.get(n) or best_r(n), 3)))


def case(kind: Kind, n: int, r: int, work_steps: int = papers.SPARE_STEPS) -> Case:
    """Raises PlacementError where r holders do not fit, `Hopeless` where there is no point."""
    if r < 2:
        raise Hopeless(f"r={r}: every failure would be a wipe-out; take r=2 or more")
    groups = n if kind == "spare" else max(1, round(n / r)) * r
    sync = papers.SPARE_SYNC_PER_GROUP * n
    setting = Setting(
        Cluster(groups, groups),
        Work(papers.SPARE_COMPUTE, sync, work_steps, papers.SPARE_JITTER),
        Durations(detect=sync / 2, shrink=papers.SPARE_SHRINK, save=papers.SPARE_SAVE, restart=papers.SPARE_RESTART),
    )
    more = 1.0 if kind == "spare" else r ** (1 / r)
    until = more * failures_for_large(n, r) * papers.SPARE_SYSTEM_MTBF
    period = checkpoint_period(papers.SPARE_SAVE, until, papers.SPARE_RESTART) - papers.SPARE_SAVE
    strategy = spare(setting, r, period) if kind == "spare" else replication(setting, r, period)
    placed(strategy.placement, groups)
    expected = endured(setting, papers.SPARE_SYSTEM_MTBF * n, strategy)
    if expected.inflation > LONGEST:
        raise Hopeless(
            f"{kind} with n={n}, r={r} would hardly move: a restart takes {expected.recovery:,.0f} s until all are "
            f"back, and a wipe-out follows after {expected.mtti:,.0f} s of training on average; take a larger n or r"
        )
    return Case(kind, n, r, groups, setting, strategy, expected.inflation)


def failures_of(n: int, distribution: Distribution) -> Failures:
    return Failures(papers.SPARE_SYSTEM_MTBF * n, papers.SPARE_SHAPE if distribution == "weibull" else 1.0)


def simulate(
    of: Case,
    distribution: Distribution,
    runs: int,
    seed: int,
    engine: Engine = "jump",
    progress: Progress | None = None,
) -> Row:
    simulated = (jump if engine == "jump" else steps).simulate(
        of.setting, failures_of(of.n, distribution), of.strategy, runs=runs, seed=seed, progress=progress
    )
    without = of.setting.work.steps * of.setting.work.step
    restarts = int(simulated.restarts.sum())
    recovering = float(simulated.wasted[:, Waste.RESTARTING].sum())
    return Row(
        mean_of(simulated.seconds / without),
        simulated.availability,
        restarts / runs,
        recovering / restarts if restarts else None,
    )
