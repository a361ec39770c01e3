"""The planner: chooses the strategy, the number of standbys, the redundancy and the checkpoint period."""

from __future__ import annotations

from collections.abc import Container, Iterator
from math import inf, isfinite

import msgspec

from understudy.masking.placement import holders_of
from understudy.planning import strategy as ways
from understudy.planning.closed_form import Estimate, best_period, enough_standbys, estimate
from understudy.planning.inputs.assume import PlanAssumptions, PlanRequest, assume
from understudy.planning.outcome import Mean
from understudy.planning.setting import DAY, HOUR, WEEK, PlanningSetting
from understudy.planning.simulation.jump import Progress, silent, simulate
from understudy.planning.strategy import Strategy, fits

HOLDERS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12)
RUNS = 16
FAILURES_LOOKED_AT = 600
"""Failures per run when a recommendation is checked by simulation: enough for a mean, and done within a second."""
MOST_EVENTS = 5_000
"""Limit of interruptions of any kind per run when a recommendation is checked by simulation."""
WORTHLESS = 1000.0
"""Inflation beyond which a strategy counts as making no progress."""


class PlanOption(msgspec.Struct, frozen=True):
    """A strategy with its parameters and its expected result."""

    strategy: Strategy
    estimate: Estimate
    cost: float
    """Machine time, standbys included, in machine times without interruption."""
    offered: bool
    """Whether Understudy implements this strategy; the others are listed for comparison."""

    @property
    def inflation(self) -> float:
        return self.estimate.inflation

    @property
    def progresses(self) -> bool:
        """Whether training makes progress with this option."""
        return makes_progress(self.inflation)

    def by(self, goal: str) -> float:
        """The quantity that the goal minimises: cost, or time to train."""
        return self.cost if goal == "cost" else self.inflation


def makes_progress(inflation: float) -> bool:
    """Whether the inflation is finite and below the limit for a worthless strategy."""
    return isfinite(inflation) and inflation <= WORTHLESS


class InputSwing(msgspec.Struct, frozen=True):
    """The value of the goal when one input is halved (`low`) and doubled (`high`)."""

    name: str
    low: float
    high: float


class SimulationCheck(msgspec.Struct, frozen=True):
    """A simulation of the recommended option."""

    inflation: Mean
    runs: int
    days: float


class Plan(msgspec.Struct, frozen=True):
    """A recommendation with its evidence."""

    request: PlanRequest
    assumed: PlanAssumptions
    best: PlanOption
    runner_up: PlanOption | None
    options: tuple[PlanOption, ...]
    """The best option of every kind, sorted by the goal."""
    simulated: SimulationCheck
    sensitivity: tuple[InputSwing, ...]

    def seconds(self, option: PlanOption) -> float:
        """Time to train with this option."""
        return self.request.days * DAY * option.inflation

    def wasted_gpu_hours(self, option: PlanOption) -> float:
        """GPU-hours wasted per week, standbys included."""
        gpus = self.assumed.setting.cluster.gpus
        standbys = option.strategy.standbys * self.request.gpus_per_machine
        return (gpus * (1 - option.estimate.efficiency) + standbys) * WEEK / HOUR

    def money(self, option: PlanOption) -> float:
        """Money wasted per week."""
        return self.wasted_gpu_hours(option) * self.request.price


def plan(request: PlanRequest, seed: int = 0, progress: Progress = silent) -> Plan:
    """Recommends the cheapest or the fastest option that Understudy implements, and lists all others."""
    assumed = assume(request)
    found = best_of_kinds(assumed, request, lambda done: progress(done / 2)).values()
    options = tuple(sorted(found, key=lambda option: merit(option, request)))
    best, *others = [option for option in options if option.offered]
    swings = sensitivity(assumed, best.strategy, request)
    progress(0.6)
    checked = check(assumed, best.strategy, seed, lambda done: progress(0.6 + 0.4 * done))
    return Plan(request, assumed, best, others[0] if others else None, options, simulated=checked, sensitivity=swings)


class FixedChoices(msgspec.Struct, frozen=True):
    """Parameters that the user has fixed; None: the planner chooses."""

    standbys: int | None = None
    r: int | None = None
    period: float | None = None

    def allows(self, strategy: Strategy) -> bool:
        """Whether the strategy agrees with the fixed parameters that it uses."""
        if self.standbys is not None and strategy.answer != "restart" and strategy.standbys != self.standbys:
            return not (strategy.refills or strategy.answer == "replace")
        return self.r is None or holders_of(strategy.placement) in (None, self.r)


ANY = FixedChoices()


def best_of_kinds(
    assumed: PlanAssumptions,
    request: PlanRequest,
    progress: Progress,
    only: FixedChoices = ANY,
    names: Container[str] | None = None,
) -> dict[str, PlanOption]:
    """The best option of every kind, or of the kinds in `names`."""
    found: dict[str, PlanOption] = {}
    ways_to_go = [way for way in kinds(assumed, request, only) if names is None or way[0] in names]
    for number, (kind, offered, candidates) in enumerate(ways_to_go):
        options = [priced(assumed, each, offered, only.period) for each in candidates if only.allows(each)]
        if options:
            found[kind] = min(options, key=lambda option: merit(option, request))
        progress((number + 1) / len(ways_to_go))
    return found


def merit(option: PlanOption, request: PlanRequest) -> tuple[float, float]:
    """Sort key of an option: the goal first, then the other of cost and time. Smaller is better."""
    pair = (option.cost, option.inflation)
    first, second = pair if request.goal == "cost" else pair[::-1]
    return (round(first, 6) if isfinite(first) else inf, second)


def priced(assumed: PlanAssumptions, candidate: Strategy, offered: bool, period: float | None) -> PlanOption:
    """The candidate with its best checkpoint period, or with `period`."""
    if period is None:
        period = best_period(assumed.setting, assumed.failures, candidate, assumed.repair)
    return expected(assumed, msgspec.structs.replace(candidate, period=period), offered)


def expected(assumed: PlanAssumptions, chosen: Strategy, offered: bool = True) -> PlanOption:
    """The strategy with its expected result."""
    found = estimate(assumed.setting, assumed.failures, chosen, assumed.repair)
    return PlanOption(
        chosen, found, found.inflation * (1 + chosen.standbys / assumed.setting.cluster.machines), offered
    )


def kinds(
    assumed: PlanAssumptions, request: PlanRequest, only: FixedChoices = ANY
) -> Iterator[tuple[str, bool, list[Strategy]]]:
    """All kinds of strategies: name, whether Understudy implements it, candidates."""
    s, replicas = assumed.setting, assumed.setting.cluster.replicas
    pools = standby_counts(assumed) if only.standbys is None else [only.standbys]
    holders = HOLDERS if only.r is None else (only.r,)
    yield "checkpoint", True, [ways.checkpoint(s, HOUR)]
    if s.cluster.machines > 1:  # with a single machine, no survivor has the state
        yield "trainmover", True, [ways.trainmover(s, count, HOUR) for count in pools]
        yield "trainmover-cold", True, [ways.trainmover(s, 0, HOUR)]
    if replicas > 1:
        local = [f"spare:r={r}" for r in holders[:5] if fits(f"spare:r={r}", replicas)]
        if request.shared_data:
            yield "mask-and-refill", True, _masked(s, [0, *pools], ["anywhere"], request.q)
        yield "mask-and-refill-local", True, _masked(s, [0, *pools], local, request.q)
        yield "mask-and-refill-whole", True, _masked(s, [0, *pools], local, 0)
        endured = [r for r in holders if fits(f"spare:r={r}", replicas)]
        yield "spare", False, [ways.spare(s, r, HOUR) for r in endured]
        yield "spare-planned", False, _planned_restarts(s, endured, replicas)
        copies = [r for r in ((2, 3) if only.r is None else holders) if fits(f"blocks:r={r}", replicas)]
        yield "replication", False, [ways.replication(s, r, HOUR) for r in copies]
        yield "torchft-like", False, [ways.torchft(s, HOUR, pools[-1])]
    for downtimes in (ways.OOBLECK, ways.PARCAE) if s.cluster.machines > 1 else ():
        yield downtimes.name, False, [ways.reconfigure(s, downtimes, HOUR, pools[-1])]


def _masked(s: PlanningSetting, pools: list[int], placements: list[str], q: int) -> list[Strategy]:
    """Candidates: every number of standbys with the second placement, and the largest number with every placement."""
    some = [ways.mask_and_refill(s, count, HOUR, placement, q) for count in pools for placement in placements[:2][-1:]]
    return some + [ways.mask_and_refill(s, pools[-1], HOUR, placement, q) for placement in placements]


def _planned_restarts(s: PlanningSetting, holders: list[int], replicas: int) -> list[Strategy]:
    losses = ((r, int(share * replicas ** (1 - 1 / r))) for r in holders for share in (0.5, 0.7, 0.9))
    return [ways.spare(s, r, HOUR, restart_after=after) for r, after in losses if 1 <= after < replicas]


def standby_counts(assumed: PlanAssumptions) -> list[int]:
    """Numbers of standbys to try: from half the mean in repair to enough, at most as many as the job has machines."""
    most = min(enough_standbys(assumed.rate, assumed.repair.mean), assumed.setting.cluster.machines)
    least = min(max(1, int(assumed.rate * assumed.repair.mean / 2)), most)
    return sorted({round(least + (most - least) * share / 10) for share in range(11)})


def check(assumed: PlanAssumptions, chosen: Strategy, seed: int, progress: Progress) -> SimulationCheck:
    """Simulates the recommended strategy for some hundred failures."""
    wanted = max(FAILURES_LOOKED_AT / assumed.rate, 4 * chosen.period)
    horizon = min(30 * DAY, wanted, MOST_EVENTS / assumed.interruptions)
    found = simulate(
        assumed.setting,
        assumed.failures,
        chosen,
        assumed.repair,
        runs=RUNS,
        horizon=horizon,
        seed=seed,
        progress=progress,
    )
    return SimulationCheck(found.inflation, RUNS, horizon / DAY)


def sensitivity(assumed: PlanAssumptions, chosen: Strategy, request: PlanRequest) -> tuple[InputSwing, ...]:
    """The goal with each input halved and doubled, the rest as planned; the most influential input first."""
    found = []
    for name in ("MTBF of a machine", "repair", "step", "standbys", *_DURATIONS):
        low, high = (expected(*changed(assumed, chosen, name, factor)).by(request.goal) for factor in (0.5, 2.0))
        if isfinite(low) and isfinite(high) and low != high:
            found.append(InputSwing(name, low, high))
    return tuple(sorted(found, key=lambda swing: -abs(swing.high - swing.low)))


_DURATIONS = {
    "detect": "detect",
    "hand-over": "hand_over",
    "join": "join",
    "refill": "refill",
    "a machine that is no standby": "cold",
    "save": "save",
    "restart": "restart",
}


def changed(assumed: PlanAssumptions, chosen: Strategy, name: str, factor: float) -> tuple[PlanAssumptions, Strategy]:
    """The assumptions and the strategy with one input multiplied by `factor`."""
    replace = msgspec.structs.replace
    if name == "MTBF of a machine":
        return replace(assumed, failures=replace(assumed.failures, mtbf=factor * assumed.failures.mtbf)), chosen
    if name == "repair":
        return replace(assumed, repair=replace(assumed.repair, mean=factor * assumed.repair.mean)), chosen
    if name == "standbys":
        return assumed, replace(chosen, standbys=round(factor * chosen.standbys))
    setting = assumed.setting
    if name == "step":
        work = replace(setting.work, compute=factor * setting.work.compute, sync=factor * setting.work.sync)
        setting = replace(setting, work=work)
    else:
        field = _DURATIONS[name]
        durations = replace(setting.durations, **{field: factor * getattr(setting.durations, field)})
        setting = replace(setting, durations=durations)
    return replace(assumed, setting=setting), remade(chosen, setting)


def remade(chosen: Strategy, setting: PlanningSetting) -> Strategy:
    """The same strategy for another setting: durations are taken from that setting."""
    if chosen.name == "checkpoint":
        return ways.checkpoint(setting, chosen.period, chosen.standbys)
    if chosen.answer == "replace":
        return ways.trainmover(setting, chosen.standbys, chosen.period)
    return ways.mask_and_refill(setting, chosen.standbys, chosen.period, chosen.placement, chosen.q)
