"""Plans as `plan` makes them, without the parts that take long at a large scale."""

from __future__ import annotations

from understudy.planning.inputs.assume import PlanRequest, assume
from understudy.planning.outcome import Mean
from understudy.planning.planner import Plan, SimulationCheck, best_of_kinds, kinds, merit, sensitivity


def planned(ask: PlanRequest) -> Plan:
    """Not simulated, and without micro-shards that only some replicas can read."""
    assumed = assume(ask)
    names = {kind for kind, _, _ in kinds(assumed, ask)} - {"mask-and-refill-local"}
    found = best_of_kinds(assumed, ask, lambda done: None, names=names).values()
    options = tuple(sorted(found, key=lambda option: merit(option, ask)))
    best, *others = [option for option in options if option.offered]
    checked = SimulationCheck(Mean(best.inflation, best.inflation, best.inflation), 1, 1.0)
    swings = sensitivity(assumed, best.strategy, ask)
    return Plan(ask, assumed, best, others[0] if others else None, options, checked, swings)
