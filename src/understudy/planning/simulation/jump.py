"""Simulation that jumps from event to event, with many runs side by side.

Nothing changes between two events, so progress, checkpoints and waste follow in closed form. Each run has its own time;
in every round, each run handles its own next event. The same seed gives the same runs.

The functions of the runtime decide which replicas compute what, how much they compute, and whether to mask or to wait
for a standby.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from understudy.planning.failures import NEVER, FailureClock, Failures, Repair, Runs, Slots, Times
from understudy.planning.outcome import SimulationOutcome, Waste
from understudy.planning.setting import PlanningSetting
from understudy.planning.strategy import Strategy, placed
from understudy.protocol.durations import readable

AT_ONCE = 8_000_000
"""Machines, over all runs, that are simulated side by side. More runs are simulated batch by batch."""

FOREVER = 1e15
USUAL = Repair()

STANDSTILLS = (
    Waste.STRAGGLING,
    Waste.PLANNED,
    Waste.JOINING,
    Waste.RESTARTING,
    Waste.STALLED,
    Waste.WAITING,
    Waste.SAVING,
)
"""Causes of a standstill, in reverse order of their succession."""

Progress = Callable[[float], None]
EventLog = list[tuple[float, str]]
"""Events of a run: date, and what happens in words."""


def must_end(setting: PlanningSetting, horizon: float) -> None:
    """Raises ValueError if a simulation would never end."""
    if horizon >= FOREVER and not setting.work.steps:
        raise ValueError("give a horizon or a number of steps")


def silent(done: float) -> None:
    """Shows no progress."""


def seeds(seed: int, runs: int, progress: Progress) -> Iterator[np.random.SeedSequence]:
    """The seed of each run, one after the other. `progress` hears of a run when the next one is asked for."""
    for number, own in enumerate(np.random.SeedSequence(seed).spawn(runs), 1):
        yield own
        progress(number / runs)


def simulate(
    setting: PlanningSetting,
    failures: Failures,
    strategy: Strategy,
    repair: Repair = USUAL,
    *,
    runs: int = 100,
    horizon: float = FOREVER,
    seed: int = 0,
    progress: Progress = silent,
    log: EventLog | None = None,
) -> SimulationOutcome:
    """Simulates `runs` runs until all steps are done, or until `horizon`. The events of a single run go to `log`."""
    must_end(setting, horizon)
    size = max(1, min(runs, AT_ONCE // setting.cluster.machines))
    found = []
    for number, own in enumerate(np.random.SeedSequence(seed).spawn(-(-runs // size))):
        begun, count = number * size, min(size, runs - number * size)
        batch = _Batch(setting, failures, strategy, repair, horizon, log, runs=count, rng=np.random.default_rng(own))
        batch.run(lambda done, begun=begun, count=count: progress((begun + done * count) / runs))  # type: ignore[misc]
        found.append(batch)
    return SimulationOutcome(
        np.concatenate([one.now for one in found]),
        np.concatenate([one.work for one in found]),
        np.concatenate([one.wasted for one in found]),
        np.concatenate([one.failed for one in found]),
        np.concatenate([one.restarts for one in found]),
        strategy.standbys / setting.cluster.machines,
    )


class _Batch:
    """Runs side by side; each array has one row per run."""

    def __init__(
        self,
        setting: PlanningSetting,
        failures: Failures,
        strategy: Strategy,
        repair: Repair,
        horizon: float,
        log: EventLog | None,
        *,
        runs: int,
        rng: np.random.Generator,
    ) -> None:
        self.setting, self.failures, self.strategy, self.repair, self.rng = setting, failures, strategy, repair, rng
        machines, self.members = setting.cluster.machines, strategy.members(setting)
        self.per_member = machines // self.members
        self.horizon, self.log = horizon, log
        self.goal = setting.work.steps * setting.work.step if setting.work.steps else FOREVER
        self.period = min(strategy.period, FOREVER)
        self.cycle = self.period + setting.durations.save
        self.restart = setting.durations.restart + setting.durations.outside
        self.clock = FailureClock(failures, runs, machines, rng)

        self.now = np.zeros(runs)
        self.resume = np.zeros(runs)
        self.cause = np.full(runs, Waste.STALLED, dtype=np.intp)
        self.work = np.zeros(runs)
        self.saved = np.zeros(runs)
        self.phase = np.zeros(runs)
        self.wasted = np.zeros((runs, len(Waste)))
        self.due = np.zeros((runs, len(Waste)))
        self.failed = np.zeros(runs, dtype=np.int64)
        self.restarts = np.zeros(runs, dtype=np.int64)

        self.gone = np.zeros((runs, self.members), dtype=np.int16)
        self.missing = np.zeros(runs, dtype=np.intp)
        self.stretch = np.array([strategy.stretch(setting, missing) for missing in range(2)])
        self.share = np.array([strategy.patched(setting, 0)])
        self.pace = setting.work.stretched(1.0, self.members)
        self.struck = np.full((runs, 2), -1.0)
        self.patched = np.zeros(runs, dtype=bool)
        self.back = np.full((runs, 4), NEVER)
        self.joined = np.zeros((runs, 4), dtype=np.intp)
        self.free = np.zeros((runs, strategy.standbys))
        self.burst = np.zeros(runs, dtype=np.int64)
        self.maintained = self._rate(failures.maintenance, runs)
        self.slowed = self._rate(failures.straggling, runs)
        self.ready = np.zeros((runs, self.members)) if not strategy.restart_anew else None
        self.holders: NDArray[np.int_] | None = None
        """Holders of each shard that a member holds, by member. None: every member holds every shard."""
        if strategy.answer == "mask" and not (placement := placed(strategy.placement, self.members)).everywhere:
            stacks = [placement.stack(member) for member in range(self.members)]
            self.holders = np.array(placement.hosts)[np.array(stacks)]
        self._acts = cache(partial(strategy.masks, setting))

    def _rate(self, every: float, count: int) -> Times:
        if not every:
            return np.full(count, NEVER)
        return self.rng.standard_exponential(count) * (every / self.setting.cluster.machines)

    # -- the rounds ----------------------------------------------------------------------------------------------------

    def run(self, progress: Progress) -> None:
        active = np.arange(len(self.now))
        rounds = 0
        while len(active):
            fails, backs = self.clock.first()[active], self.back[active].min(axis=1)
            planned, slowed, done = self.maintained[active], self.slowed[active], self._finish(active)
            at = np.minimum.reduce([fails, backs, planned, slowed, done])
            self._advance(active, at)
            over = at == done
            go = ~over
            joins = go & (at == backs)
            dies = go & ~joins & (at == fails)
            maintained = go & ~joins & ~dies & (at == planned)
            slow = go & ~joins & ~dies & ~maintained
            for concerned, handle in (
                (joins, self._join),
                (dies, self._fail),
                (maintained, self._maintain),
                (slow, self._straggle),
                (over, self._release),
            ):
                if concerned.any():
                    handle(active[concerned])
            active = active[go]
            rounds += 1
            if rounds % 64 == 0:
                progress(min(1.0, float(max(self.now.mean() / self.horizon, self.work.mean() / self.goal))))
        progress(1.0)

    def _stretch(self, runs: Runs) -> Times:
        missing = self.missing[runs]
        while len(self.stretch) <= missing.max(initial=0):
            self.stretch = np.append(self.stretch, self.strategy.stretch(self.setting, len(self.stretch)))
        return np.asarray(self.stretch[missing])

    def _trained(self, phase: Times) -> Times:
        """Seconds of training in `phase` seconds of alternating training and saving."""
        whole = np.floor(phase / self.cycle)
        return np.asarray(whole * self.period + np.minimum(phase - whole * self.cycle, self.period))

    def _finish(self, runs: Runs) -> Times:
        """When each run ends if no further event comes."""
        if self.goal >= FOREVER:
            return np.full(len(runs), self.horizon)
        needed = self._trained(self.phase[runs]) + (self.goal - self.work[runs]) * self._stretch(runs)
        whole = np.floor(needed / self.period)
        until = whole * self.cycle + (needed - whole * self.period)
        start = np.maximum(self.now[runs], self.resume[runs])
        return np.asarray(np.minimum(start + np.maximum(until - self.phase[runs], 0.0), self.horizon))

    def _advance(self, runs: Runs, to: Times) -> None:
        phase = self.phase[runs]
        after = phase + np.maximum(to - np.maximum(self.now[runs], self.resume[runs]), 0.0)
        trained = self._trained(after) - self._trained(phase)
        stretch, normal = self._stretch(runs), self.stretch[0]
        self.wasted[runs, Waste.SAVING] += after - phase - trained
        self.wasted[runs, Waste.STRAGGLING] += trained * (1 - 1 / self.pace)
        self.wasted[runs, Waste.REDUNDANT] += trained * (1 / self.pace - 1 / normal)
        self.wasted[runs, Waste.DEGRADED] += trained * (1 / normal - 1 / stretch)
        work = self.work[runs] + trained / stretch
        whole = np.floor(after / self.cycle)
        rest = after - whole * self.cycle
        self.saved[runs] = np.where(
            whole > np.floor(phase / self.cycle), work - np.minimum(rest, self.period) / stretch, self.saved[runs]
        )
        self.work[runs], self.phase[runs], self.now[runs] = work, rest, to

    def _hold(self, runs: Runs, until: Times, cause: Waste) -> None:
        """Training stands still until this date; the time added to the standstill counts as `cause`."""
        now, resume = self.now[runs], self.resume[runs]
        self.due[runs[resume <= now]] = 0.0
        begin = np.maximum(resume, now)
        end = np.maximum(begin, until)
        self.wasted[runs, cause] += end - begin
        self.due[runs, cause] += end - begin
        self.resume[runs] = end
        self.cause[runs[end > begin]] = cause

    def _release(self, runs: Runs) -> None:
        """Ends the standstill: its remaining time is not wasted."""
        rest = np.maximum(self.resume[runs] - self.now[runs], 0.0)
        self.resume[runs] -= rest
        for cause in STANDSTILLS:
            spared = np.minimum(rest, self.due[runs, cause])
            self.wasted[runs, cause] -= spared
            self.due[runs, cause] -= spared
            rest = rest - spared

    def _note(self, what: str) -> None:
        if self.log is not None:
            self.log.append((float(self.now[0]), what))

    def _note_state(self) -> None:
        if self.log is not None:
            missing = int(self.missing[0])
            slower = float(self.stretch[missing] / self.stretch[0]) if missing < len(self.stretch) else 0.0
            pace = f", steps take {slower:.3g} times as long" if slower > 1 else ""
            self._note(f"  {missing} of {self.members:,} missing{pace}" if missing else "  at full strength")

    # -- events --------------------------------------------------------------------------------------------------------

    def _fail(self, runs: Runs) -> None:
        at, slots = self.now[runs], self.clock.failing(runs)
        self.failed[runs] += 1
        self._note(f"machine {slots[0]:,} of replica {slots[0] // self.setting.cluster.machines_per_replica:,} fails")
        self._spread(runs, slots)
        restarting = (self.cause[runs] == Waste.RESTARTING) & (self.resume[runs] > at)
        if restarting.any():
            self._fail_while_restarting(runs[restarting], slots[restarting])
            runs, slots, at = runs[~restarting], slots[~restarting], at[~restarting]
        if not len(runs):
            return
        if self.strategy.answer == "restart":
            served = self._fetch(runs, at, 0.0)
            self.clock.renew(runs, slots, served)
            self._go_back(runs, self.strategy.stall, served)
        elif self.strategy.answer == "replace":
            self._replace(runs, slots, self.strategy.stall)
        else:
            self._lose(runs, slots)

    def _spread(self, runs: Runs, slots: Slots) -> None:
        """Lets the neighbours of a machine fail at the same instant, for a share of the failures."""
        domain = self.setting.cluster.domain
        first = self.burst[runs] == 0
        self.burst[runs] -= ~first
        if domain < 2 or not self.failures.together:
            return
        hit = first & (self.rng.random(len(runs)) < self.failures.together)
        for run, slot in zip(runs[hit], slots[hit], strict=True):
            start = slot - slot % domain
            others = np.array([s for s in range(start, min(start + domain, self.clock.slots)) if s != slot])
            self.clock.put(np.full(len(others), run), others, np.full(len(others), self.now[run]))
            self.burst[run] = len(others)

    def _fail_while_restarting(self, runs: Runs, slots: Slots) -> None:
        """Begins the restart again: all of it, or the failed member's own while the others wait.

        A failure of a member that has restarted and waits counts only when training goes on.
        """
        at = self.now[runs]
        if self.ready is None:
            self.clock.renew(runs, slots, at)
            self._hold(runs, at + self.restart, Waste.RESTARTING)
            return
        members = slots // self.per_member
        starting = self.ready[runs, members] > at
        ill, its = runs[starting], slots[starting]
        self.ready[ill, members[starting]] = at[starting] + self.restart
        self._hold(ill, at[starting] + self.restart, Waste.RESTARTING)
        self.clock.renew(ill, its, at[starting])
        idle = runs[~starting]
        self.clock.put(idle, slots[~starting], self.resume[idle])
        self.failed[idle] -= 1  # counted when training goes on

    def _fetch(self, runs: Runs, at: Times, cold: float) -> Times:
        """When a machine is available for the vacant place. The failed machine becomes a standby after its repair."""
        if not self.strategy.standbys:
            return at + cold
        which = self.free[runs].argmin(axis=1)
        served = np.maximum(at, self.free[runs, which])
        self.free[runs, which] = at + self.repair.durations(self.rng, len(runs))
        return np.asarray(served)

    def _replace(self, runs: Runs, slots: Slots, stall: float) -> None:
        at = self.now[runs]
        served = self._fetch(runs, at, self.setting.durations.cold)
        self.clock.renew(runs, slots, served)
        self._hold(runs, served, Waste.WAITING)
        self._hold(runs, served + stall, Waste.STALLED)
        waits = readable(float(self.resume[runs[0]] - at[0]))
        self._note(f"  training waits for {waits} until the machine is replaced")

    def _lose(self, runs: Runs, slots: Slots) -> None:
        """Masks a replica, or replaces it while training waits if that costs less."""
        strategy = self.strategy
        members = slots // self.per_member
        fresh = self.gone[runs, members] == 0
        if not strategy.refills:
            self.clock.disable(runs, slots)
            runs, members, slots = runs[fresh], members[fresh], slots[fresh]
            fresh = np.ones(len(runs), dtype=bool)
        elif strategy.may_recover:
            masked = ~fresh | self._masks(runs)
            if not masked.all():
                self._replace(runs[~masked], slots[~masked], strategy.recover)
            runs, members, slots, fresh = runs[masked], members[masked], slots[masked], fresh[masked]
        if not len(runs):
            return
        self.gone[runs, members] += 1
        at = self.now[runs]
        if strategy.refills:
            served = self._fetch(runs, at, self.setting.durations.cold)
            joins = served + strategy.refill
            self._expect(runs, members, joins)
            self.clock.renew(runs, slots, joins)
        newly = runs[fresh]
        self._hold(newly, at[fresh] + self._masking(newly), Waste.STALLED)
        self.missing[newly] += 1
        if len(newly):
            self._stretch(newly)
            self._note_state()
        wiped = self._wiped(newly, members[fresh])
        if wiped.any():
            self._go_back(newly[wiped], self.restart, self.now[newly[wiped]])
        if strategy.restart_after:
            full = newly[~wiped]
            full = full[self.missing[full] >= strategy.restart_after]
            self.saved[full] = self.work[full]
            self._go_back(full, self.restart, self.now[full] + self.setting.durations.save, Waste.SAVING)

    def _masking(self, runs: Runs) -> Times:
        """Seconds to continue without one more member. Failures within one step are noticed and patched together."""
        now, step = self.now[runs], np.floor(self.work[runs] / self.setting.work.step)
        noticed = (now >= self.resume[runs]) | (now == self.struck[runs, 1])
        same = (step == self.struck[runs, 0]) & noticed & (not self.strategy.redo)
        paid = same & self.patched[runs]
        missing = self.missing[runs]
        for number in range(len(self.share), int(missing.max(initial=0)) + 1):
            self.share = np.append(self.share, self.strategy.patched(self.setting, number))
        drawn = self.rng.random(len(runs)) < self.share[missing]
        self.struck[runs], self.patched[runs] = np.stack([step, now], axis=1), drawn | paid
        patch = np.where(drawn & ~paid, self.strategy.patch(self.setting), 0.0)
        return np.where(same, 0.0, self.strategy.stall) + patch

    def _masks(self, runs: Runs) -> NDArray[np.bool_]:
        """Whether the runtime's policy masks one more missing replica."""
        ready = self.free[runs].min(axis=1, initial=NEVER) <= self.now[runs]
        return np.array([*map(self._acts, (self.missing[runs] + 1).tolist(), ready.tolist())])

    def _expect(self, runs: Runs, members: Slots, at: Times) -> None:
        """Schedules a machine to join each member at the date `at`."""
        empty = self.back[runs] == NEVER
        if not empty.any(axis=1).all():
            self.back = np.concatenate([self.back, np.full_like(self.back, NEVER)], axis=1)
            self.joined = np.concatenate([self.joined, np.zeros_like(self.joined)], axis=1)
            empty = self.back[runs] == NEVER
        place = empty.argmax(axis=1)
        self.back[runs, place] = at
        self.joined[runs, place] = members

    def _wiped(self, runs: Runs, members: Slots) -> NDArray[np.bool_]:
        """Whether a shard of the lost members has no live holder."""
        if self.holders is None:
            return np.asarray(self.missing[runs] >= self.members)
        held = (self.gone[runs[:, None, None], self.holders[members]] == 0).any(axis=2).all(axis=1)
        return np.asarray(~held)

    def _go_back(self, runs: Runs, cost: float, begin: Times, before: Waste = Waste.WAITING) -> None:
        """Restarts the job from the last checkpoint; missing members are back."""
        if not len(runs):
            return
        self.restarts[runs] += 1
        lost = self.work[runs] - self.saved[runs]
        self._note(f"  back to the last checkpoint: {readable(float(lost[0]))} of work lost")
        self.wasted[runs, Waste.REPEATED] += lost
        self.work[runs] = self.saved[runs]
        self.phase[runs] = 0.0
        self.struck[runs] = -1.0
        self.missing[runs] = 0
        self.gone[runs] = 0
        self.back[runs] = NEVER
        self._release(runs)
        self._hold(runs, begin, before)
        self._hold(runs, begin + cost, Waste.RESTARTING)
        if self.ready is not None:
            self.ready[runs] = (begin + cost)[:, None]
        if not self.strategy.refills and self.strategy.answer == "mask":
            self.clock.renew_disabled(runs, begin)

    def _join(self, runs: Runs) -> None:
        place = self.back[runs].argmin(axis=1)
        members = self.joined[runs, place]
        self.back[runs, place] = NEVER
        self.gone[runs, members] -= 1
        whole = self.gone[runs, members] == 0
        entered = runs[whole]
        self.missing[entered] -= 1
        self._hold(entered, np.maximum(self.now[entered], self.resume[entered]) + self.strategy.join, Waste.JOINING)
        if len(entered):
            is_back = "machine {:,} is replaced" if self.strategy.by_machine else "replica {:,} is refilled"
            self._note(is_back.format(members[0]))
            self._note_state()

    def _maintain(self, runs: Runs) -> None:
        self.maintained[runs] = self.now[runs] + self._rate(self.failures.maintenance, len(runs))
        self._hold(runs, self.now[runs] + self.strategy.planned, Waste.PLANNED)
        self._note(f"planned maintenance of a machine: training stands still for {readable(self.strategy.planned)}")

    def _straggle(self, runs: Runs) -> None:
        """A slow machine slows the whole job until it is detected. The lost time is modelled as a standstill."""
        self.slowed[runs] = self.now[runs] + self._rate(self.failures.straggling, len(runs))
        lost = self.failures.slowness + self.strategy.planned
        self._hold(runs, np.maximum(self.resume[runs], self.now[runs]) + lost, Waste.STRAGGLING)
        self._note(f"a machine becomes slow, is detected and replaced: {readable(lost)} lost")
