"""Data of the plots in a plan's report, by the closed forms. Every number is finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

import msgspec

from understudy.planning import strategy as ways
from understudy.planning.closed_form import LONGEST_PERIOD, best_period
from understudy.planning.inputs.assume import PlanAssumptions, PlanRequest
from understudy.planning.outcome import Mean, Waste
from understudy.planning.planner import (
    HOLDERS,
    InputSwing,
    Plan,
    PlanOption,
    best_of_kinds,
    changed,
    expected,
    kinds,
    makes_progress,
)
from understudy.planning.setting import HOUR, WEEK
from understudy.planning.strategy import fits

SCALES = (1024, 4096, 16_384, 65_536, 131_072, 262_144, 600_000)
ALIKE = 6
"""Numbers of replicas are multiples of this, so that replication in pairs and in threes fits at every scale."""
MOST_REPLICAS = 10_000
"""With more replicas, the closed forms without refill take seconds."""
MOST_SPREAD = 64
"""With more replicas, the load of micro-shards with few holders takes seconds to draw."""
MOST_AWAY = 3000
"""With more machines in repair, the number of vacant places takes seconds to compute."""
NEAR = 0.1
"""Scales within this relative distance of the plan's own are left out."""
PERIODS = 24
"""Number of checkpoint periods in the landscape."""
STANDING_BY = "standbys held ready"


class ScalePoint(msgspec.Struct, frozen=True):
    """One point of a curve over scale."""

    gpus: int
    inflation: float
    days: float
    """Time to train."""


class ScaleCurve(msgspec.Struct, frozen=True):
    """The best option of one kind at every scale at which it makes progress."""

    kind: str
    offered: bool
    points: tuple[ScalePoint, ...]


class WastePart(msgspec.Struct, frozen=True):
    """One category of waste in a bar."""

    words: str
    gpu_hours: float
    share: float
    """Share of the bar."""


class WasteBar(msgspec.Struct, frozen=True):
    """Waste of a strategy in a week."""

    kind: str
    offered: bool
    gpu_hours: float
    money: float
    share: float
    """Share of the paid GPU-hours, standbys included."""
    stuck: bool
    """Whether training makes no progress."""
    parts: tuple[WastePart, ...]
    """Their shares add up to 1, unless nothing is wasted."""


class LandscapeCell(msgspec.Struct, frozen=True):
    """One cell of the landscape: holders, checkpoint period and inflation."""

    r: int
    period: float
    inflation: float


class Landscape(msgspec.Struct, frozen=True):
    """Inflation of SPARe over holders and checkpoint periods."""

    holders: tuple[int, ...]
    periods: tuple[float, ...]
    rows: tuple[tuple[float | None, ...], ...]
    """Inflation: one row per period, one column per number of holders. None: no progress."""
    best: LandscapeCell
    """The cell with the smallest inflation."""
    planned: float | None
    """Inflation of the best planned restarts, if it is smaller than that of the best cell."""


class Simulated(msgspec.Struct, frozen=True):
    """Simulated inflation of a strategy, beside the closed form."""

    kind: str
    inflation: Mean
    closed: float | None
    """Inflation by the closed form. None: there is no closed form, or no progress."""


def over_scale(plan: Plan) -> tuple[ScaleCurve, ...]:
    """Time to train of every kind from 1,024 to 600,000 GPUs, at the scales that replicas of this size can form.

    Sorted by largest scale, then by inflation at that scale.
    """
    here = plan.assumed.setting.cluster.gpus
    found: dict[str, ScaleCurve] = {}
    scaled = {assumed.setting.cluster.gpus: assumed for assumed in _scales(plan.assumed)}
    for gpus in sorted({*scaled, here}):
        options = plan.options if gpus == here else _options(scaled[gpus], plan.request)
        for option in options:
            if option.progresses:
                kind = option.strategy.name
                curve = found.get(kind, ScaleCurve(kind, option.offered, ()))
                point = ScalePoint(gpus, option.inflation, plan.request.days * option.inflation)
                found[kind] = msgspec.structs.replace(curve, points=(*curve.points, point))
    return tuple(sorted(found.values(), key=lambda curve: (-curve.points[-1].gpus, curve.points[-1].inflation)))


def _scales(assumed: PlanAssumptions) -> Iterator[PlanAssumptions]:
    """The assumptions for other numbers of the same replicas."""
    replace, cluster = msgspec.structs.replace, assumed.setting.cluster
    per_replica = cluster.machines_per_replica * cluster.gpus_per_machine
    for gpus in SCALES:
        replicas = round(gpus / per_replica)
        if replicas > 2 * ALIKE:
            replicas -= replicas % ALIKE
        beside = abs(replicas / cluster.replicas - 1) < NEAR
        if 1 <= replicas <= MOST_REPLICAS and not beside:
            changed = replace(cluster, machines=replicas * cluster.machines_per_replica, replicas=replicas)
            scaled = replace(assumed, setting=replace(assumed.setting, cluster=changed))
            if scaled.rate * scaled.repair.mean <= MOST_AWAY:
                yield scaled


def _options(assumed: PlanAssumptions, request: PlanRequest) -> Iterable[PlanOption]:
    """The best option of every kind."""
    large = assumed.setting.cluster.replicas > MOST_SPREAD
    names = {kind for kind, _, _ in kinds(assumed, request) if not (large and kind == "mask-and-refill-local")}
    return best_of_kinds(assumed, request, lambda done: None, names=names).values()


def bars(plan: Plan) -> tuple[WasteBar, ...]:
    """Waste of every strategy of the plan, the smallest first."""
    return tuple(sorted((_bar(plan, option) for option in plan.options), key=lambda bar: bar.gpu_hours))


def _bar(plan: Plan, option: PlanOption) -> WasteBar:
    wasted, strategy = plan.wasted_gpu_hours(option), option.strategy
    of_a_machine = plan.request.gpus_per_machine * WEEK / HOUR
    held = strategy.standbys * of_a_machine
    paid = plan.assumed.setting.cluster.machines * of_a_machine + held
    shares, training = option.estimate.shares, wasted - held
    total = sum(shares.values())
    hours = {waste.words: training * shares[waste] / total for waste in Waste if training and shares.get(waste)}
    if held:
        hours[STANDING_BY] = held
    return WasteBar(
        strategy.name,
        option.offered,
        wasted,
        plan.money(option),
        share=wasted / paid,
        stuck=not option.progresses,
        parts=tuple(WastePart(words, part, part / wasted) for words, part in hours.items()),
    )


def landscape(plan: Plan) -> Landscape | None:
    """The landscape of SPARe. None: shards cannot be placed on several replicas, or SPARe makes no progress."""
    assumed, setting = plan.assumed, plan.assumed.setting
    holders = tuple(r for r in HOLDERS if fits(f"spare:r={r}", setting.cluster.replicas))

    def inflation(r: int, period: float) -> float:
        return expected(assumed, ways.spare(setting, r, period)).inflation

    low = max(setting.work.step, setting.durations.save / 50)
    high = max(LONGEST_PERIOD, 2 * setting.work.step)
    periods = tuple(low * (high / low) ** (number / (PERIODS - 1)) for number in range(PERIODS))
    rows = [[inflation(r, period) for r in holders] for period in periods]
    cells = [
        LandscapeCell(r, period, value)
        for period, row in zip(periods, rows, strict=True)
        for r, value in zip(holders, row, strict=True)
    ]
    best = min(cells, key=lambda cell: cell.inflation, default=None)
    if best is None or not makes_progress(best.inflation):
        return None
    tuned = best_period(setting, assumed.failures, ways.spare(setting, best.r, HOUR), assumed.repair)
    best = min(best, LandscapeCell(best.r, tuned, inflation(best.r, tuned)), key=lambda cell: cell.inflation)
    kept = tuple(tuple(value if makes_progress(value) else None for value in row) for row in rows)
    restarts = (option.inflation for option in plan.options if option.strategy.name == "spare-planned")
    planned = min(restarts, default=inf)
    return Landscape(holders, periods, kept, best, planned if planned < best.inflation else None)


class Tornado(msgspec.Struct, frozen=True):
    """Influence of each input on the goal."""

    changes: tuple[InputSwing, ...]
    """Relative changes, 0.1 being ten percent more. The largest first."""
    breaks: tuple[str, ...]
    """Changes of an input with which the plan makes no progress; they have no bar."""


def tornado(plan: Plan) -> Tornado:
    """The influence of each input on the plan's goal."""
    goal = plan.best.by(plan.request.goal)
    changes = tuple(
        InputSwing(swing.name, swing.low / goal - 1, swing.high / goal - 1)
        for swing in plan.sensitivity
        if makes_progress(swing.low) and makes_progress(swing.high)
    )
    return Tornado(changes if makes_progress(goal) else (), tuple(_breaks(plan)))


def _breaks(plan: Plan) -> Iterator[str]:
    if not plan.best.progresses:
        return
    for words, name, factor in (
        ("MTBF of a machine halved", "MTBF of a machine", 0.5),
        ("repair twice as long", "repair", 2.0),
        ("half as many standbys", "standbys", 0.5),
    ):
        if not expected(*changed(plan.assumed, plan.best.strategy, name, factor)).progresses:
            yield words


def side_by_side(found: Sequence[Simulated]) -> tuple[Simulated, ...]:
    """The simulated strategies that make progress, the best first."""
    kept = []
    for each in found:
        mean = each.inflation
        if all(map(makes_progress, (mean.value, mean.low, mean.high))):
            closed = each.closed if each.closed is not None and makes_progress(each.closed) else None
            kept.append(msgspec.structs.replace(each, closed=closed))
    return tuple(sorted(kept, key=lambda each: each.inflation.value))
