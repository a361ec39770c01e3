"""Simulation step by step, to check `jump`: slower, and exact if `jump` uses means.

Runs are simulated one after the other. A step computes, then sums gradients; a checkpoint follows at its period. A heap
holds every machine's next failure. A failure takes what the lost replica had computed from its step. The runtime's own
functions say what replaces it (`step_masking`). All failures within a step are handled together at the end of the step;
a repeated step loses the work done so far.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from math import sqrt
from statistics import NormalDist

import numpy as np

from understudy.masking.coverage import wiped
from understudy.planning.failures import NEVER, Failures, Repair
from understudy.planning.outcome import SimulationOutcome, Waste
from understudy.planning.setting import PlanningSetting
from understudy.planning.simulation.jump import FOREVER, USUAL, Progress, must_end, seeds, silent
from understudy.planning.simulation.step_masking import step_masking
from understudy.planning.strategy import Strategy, placed


def simulate(
    setting: PlanningSetting,
    failures: Failures,
    strategy: Strategy,
    repair: Repair = USUAL,
    *,
    runs: int = 10,
    horizon: float = FOREVER,
    seed: int = 0,
    progress: Progress = silent,
) -> SimulationOutcome:
    """Simulates `runs` runs, with the arguments of `jump.simulate`. The same seed gives other runs than in `jump`."""
    must_end(setting, horizon)
    done = [
        _Run(setting, failures, strategy, repair, horizon, np.random.default_rng(own)).run()
        for own in seeds(seed, runs, progress)
    ]
    return SimulationOutcome(
        np.array([run.now for run in done]),
        np.array([run.work for run in done]),
        np.array([run.wasted for run in done]),
        np.array([run.failed for run in done], dtype=np.int64),
        np.array([run.restarts for run in done], dtype=np.int64),
        strategy.standbys / setting.cluster.machines,
    )


class _Run:
    def __init__(
        self,
        setting: PlanningSetting,
        failures: Failures,
        strategy: Strategy,
        repair: Repair,
        horizon: float,
        rng: np.random.Generator,
    ) -> None:
        self.setting, self.failures, self.strategy, self.repair, self.rng = setting, failures, strategy, repair, rng
        self.horizon = horizon
        self.goal = (setting.work.steps - 0.5) * setting.work.step if setting.work.steps else NEVER
        self.restart = setting.durations.restart + setting.durations.outside
        self.members = strategy.members(setting)
        self.per_member = setting.cluster.machines // self.members

        self.now = self.work = self.saved = self.since = 0.0
        """`since`: seconds of training since the last checkpoint."""
        self.saving = 0.0
        """Remaining seconds of the checkpoint that is being written."""
        self.standing: deque[tuple[float, Waste]] = deque()
        """Successive standstills: end and cause."""
        self.wasted = [0.0] * len(Waste)
        self.failed = self.restarts = 0

        self.open = False
        self.left = self.spent = self.slow = 0.0
        self.load = 1.0
        """The current step: remaining seconds, seconds spent, seconds of jitter among them, and shards per member."""
        self.pending: set[int] = set()
        """Members that are lost and not masked yet."""

        spread = strategy.answer != "mask" or strategy.evenly
        self.placement = None if spread else placed(strategy.placement, self.members)
        self.masking = step_masking(strategy, self.members, self.placement)
        self.gone = [0] * self.members
        self.alive = bytearray(b"\1" * self.members)
        self.ready = [0.0] * self.members
        self.dates: list[float] = failures.lifetimes(rng, setting.cluster.machines).tolist()
        self.heap = [(date, slot) for slot, date in enumerate(self.dates)]
        heapify(self.heap)
        self.joins: list[tuple[float, int]] = []
        self.free = [0.0] * strategy.standbys
        self.burst = 0
        self.maintained, self.straggles = self._rate(failures.maintenance), self._rate(failures.straggling)

    def _rate(self, every: float) -> float:
        if not every:
            return NEVER
        return self.now + float(self.rng.standard_exponential()) * every / self.setting.cluster.machines

    def run(self) -> _Run:
        while self.work < self.goal and self.now < self.horizon:
            event = self._next()
            if self.standing:
                until, cause = self.standing[0]
                to = min(until, event, self.horizon)
                self.wasted[cause] += to - self.now
                self.now = to
                if to == until:
                    self.standing.popleft()
            elif self.saving:
                to = min(self.now + self.saving, event, self.horizon)
                self.wasted[Waste.SAVING] += to - self.now
                self.saving = self.now + self.saving - to
                if not self.saving:
                    self.saved, self.since = self.work, 0.0
                self.now = to
            elif not self.open:
                self._begin()
                continue
            else:
                end = self.now + self.left
                to = min(end, event, self.horizon)
                self.spent += to - self.now
                self.left = end - to
                self.now = to
                if to == end and event > end:
                    self._end()
            if event <= self.now < self.horizon:
                self._happen(event)
        if self.open:
            self._count(self.spent / (self.spent + self.left) if self.spent else 0.0)
        return self

    def _begin(self) -> None:
        """Begins a step. Members that were lost before the step are missing from its start and need no patch."""
        if self.pending:
            self._make_up(in_step=False)
        work = self.setting.work
        self.load = self.masking.load
        shards = self.load * self.strategy.redundancy
        self.slow = work.compute * self._jitter(shards, sum(self.alive))
        self.left = work.compute * shards + work.sync + self.slow
        self.spent, self.open = 0.0, True

    def _jitter(self, shards: float, count: int) -> float:
        """Delay of the slowest of `count` members beyond the mean, in shards."""
        jitter = self.setting.work.jitter
        if not jitter * shards:
            return 0.0
        share = min(max(float(self.rng.random()) ** (1 / count), 1e-12), 1 - 1e-12)
        return jitter * sqrt(shards) * NormalDist().inv_cdf(share)

    def _end(self) -> None:
        """Completes the step, or patches what was lost during the step first."""
        if self.pending:
            self._make_up(in_step=True)
            return
        self._count(1.0)
        if 0 < self.strategy.restart_after <= self.members - sum(self.alive):
            self.saved = self.work
            self._go_back(self.restart, self.now + self.setting.durations.save, Waste.SAVING)
        elif self.since + self.spent / 2 >= self.strategy.period and self.work < self.goal:
            self.saving = self.setting.durations.save

    def _make_up(self, *, in_step: bool) -> None:
        """Masks the lost members; a step under way is patched with what they had computed."""
        shards, by = self.masking.lose(self.pending)
        self.pending.clear()
        patch = shards + self._jitter(shards, by) if in_step else 0.0
        self._hold(self.now + self.strategy.stall + self.setting.work.compute * patch, Waste.STALLED)

    def _count(self, share: float) -> None:
        """Counts this share of the step as work, and the rest of its time as waste by kind."""
        work, redundancy = self.setting.work, self.strategy.redundancy
        self.work += work.step * share
        self.since += self.spent
        self.wasted[Waste.STRAGGLING] += self.slow * share
        self.wasted[Waste.REDUNDANT] += work.compute * (redundancy - 1) * share
        self.wasted[Waste.DEGRADED] += work.compute * redundancy * (self.load - 1) * share
        self.open = False

    def _abandon(self, cause: Waste) -> None:
        if self.open:
            self.wasted[cause] += self.spent
            self.open = False

    def _hold(self, until: float, cause: Waste) -> None:
        """Training stands still until this date; the time added to the standstill counts as `cause`."""
        if until > self._resume:
            self.standing.append((until, cause))

    @property
    def _resume(self) -> float:
        return self.standing[-1][0] if self.standing else self.now

    def _next(self) -> float:
        while self.heap and self.dates[self.heap[0][1]] != self.heap[0][0]:
            heappop(self.heap)
        fails = self.heap[0][0] if self.heap else NEVER
        joins = self.joins[0][0] if self.joins else NEVER
        return min(fails, joins, self.maintained, self.straggles)

    def _happen(self, at: float) -> None:
        if self.joins and self.joins[0][0] == at:
            self._join(heappop(self.joins)[1])
        elif self.heap and self.heap[0][0] == at:
            self._fail(heappop(self.heap)[1])
        elif self.maintained == at:
            self.maintained = self._rate(self.failures.maintenance)
            self._hold(self.now + self.strategy.planned, Waste.PLANNED)
        else:
            self.straggles = self._rate(self.failures.straggling)
            self._hold(self._resume + self.failures.slowness + self.strategy.planned, Waste.STRAGGLING)

    def _put(self, slot: int, date: float) -> None:
        self.dates[slot] = date
        heappush(self.heap, (date, slot))

    def _renew(self, slot: int, at: float) -> None:
        self._put(slot, at + float(self.failures.lifetimes(self.rng, 1)[0]))

    def _fail(self, slot: int) -> None:
        self.failed += 1
        self.dates[slot] = NEVER
        self._spread(slot)
        if any(cause is Waste.RESTARTING for _, cause in self.standing):
            self._fail_while_restarting(slot)
        elif self.strategy.answer == "restart":
            served = self._fetch(0.0)
            self._renew(slot, served)
            self._go_back(self.strategy.stall, served, Waste.WAITING)
        elif self.strategy.answer == "replace":
            self._replace(slot, self.strategy.stall)
        else:
            self._lose(slot)

    def _spread(self, slot: int) -> None:
        domain = self.setting.cluster.domain
        if self.burst:
            self.burst -= 1
        elif domain > 1 and self.failures.together and self.rng.random() < self.failures.together:
            start = slot - slot % domain
            others = [s for s in range(start, min(start + domain, len(self.dates))) if s != slot]
            for other in others:
                self._put(other, self.now)
            self.burst = len(others)

    def _fail_while_restarting(self, slot: int) -> None:
        member = slot // self.per_member
        if self.strategy.restart_anew or self.ready[member] > self.now:
            self.ready[member] = self.now + self.restart
            self._renew(slot, self.now)
            self._hold(self.now + self.restart, Waste.RESTARTING)
        else:
            self._put(slot, self._resume)
            self.failed -= 1  # counted when training goes on

    def _fetch(self, cold: float) -> float:
        if not self.free:
            return self.now + cold
        which = min(range(len(self.free)), key=self.free.__getitem__)
        served = max(self.now, self.free[which])
        self.free[which] = self.now + float(self.repair.durations(self.rng, 1)[0])
        return served

    def _replace(self, slot: int, stall: float) -> None:
        """Replaces a machine while training waits. The step is repeated: its time replaces the half step in `stall`."""
        served = self._fetch(self.setting.durations.cold)
        self._renew(slot, served)
        self._abandon(Waste.STALLED)
        self._hold(served, Waste.WAITING)
        self._hold(served + stall - self.setting.work.step / 2, Waste.STALLED)

    def _lose(self, slot: int) -> None:
        """Masks a replica, or replaces it while training waits if that costs less."""
        strategy, member = self.strategy, slot // self.per_member
        fresh = not self.gone[member]
        if not fresh and not strategy.refills:
            return
        if fresh and strategy.may_recover:
            ready = bool(self.free) and min(self.free) <= self.now
            if not strategy.masks(self.setting, self.members - sum(self.alive) + 1, ready):
                self._replace(slot, strategy.recover)
                return
        self.gone[member] += 1
        if strategy.refills:
            joins = self._fetch(self.setting.durations.cold) + strategy.refill
            heappush(self.joins, (joins, member))
            self._renew(slot, joins)
        if not fresh:
            return
        self.alive[member] = 0
        if self._wiped(member):
            self._go_back(self.restart, self.now, Waste.WAITING)
        elif strategy.redo:
            self.masking.lose([member])
            self._abandon(Waste.STALLED)
            self._hold(self.now + strategy.stall - self.setting.work.step / 2, Waste.STALLED)
        else:
            self.pending.add(member)

    def _wiped(self, member: int) -> bool:
        """Whether the live members cannot compute a shard of the member that was just lost."""
        if self.placement is None:
            return not any(self.alive)
        return bool(wiped(self.placement, bytes(self.alive), self.placement.stack(member)))

    def _join(self, member: int) -> None:
        self.gone[member] -= 1
        if self.gone[member]:
            return
        if self.pending:
            self._make_up(in_step=self.open)
        self.alive[member] = 1
        self.masking.join([member])
        self._hold(self._resume + self.strategy.join, Waste.JOINING)

    def _go_back(self, cost: float, begin: float, cause: Waste) -> None:
        """Restarts the job from the last checkpoint; missing members are back."""
        self.restarts += 1
        self._abandon(Waste.REPEATED)
        self.wasted[Waste.REPEATED] += self.work - self.saved
        self.work, self.since, self.saving = self.saved, 0.0, 0.0
        self.standing.clear()
        self._hold(begin, cause)
        self._hold(begin + cost, Waste.RESTARTING)
        self.ready = [begin + cost] * self.members
        self.masking = step_masking(self.strategy, self.members, self.placement)
        self.pending.clear()
        self.joins.clear()
        self.gone = [0] * self.members
        self.alive = bytearray(b"\1" * self.members)
        if not self.strategy.refills and self.strategy.answer == "mask":
            for slot, date in enumerate(self.dates):
                if date == NEVER:
                    self._renew(slot, begin)
