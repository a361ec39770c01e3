"""Whether a recommendation can be believed: better machines never make it worse, and the simulator agrees."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Literal

import msgspec
import pytest

from understudy.planning.closed_form import estimate
from understudy.planning.failures import Repair
from understudy.planning.inputs.assume import PlanAssumptions, PlanRequest, assume
from understudy.planning.planner import (
    MOST_EVENTS,
    FixedChoices,
    PlanOption,
    best_of_kinds,
    check,
    merit,
    standby_counts,
)
from understudy.planning.setting import DAY, HOUR
from understudy.planning.simulation.jump import simulate

LIVES = (20 * HOUR, 200 * HOUR, 1000 * HOUR, 10_000 * HOUR, 100_000 * HOUR)
CLUSTERS = ((64, 1), (64, 8), (1024, 2), (1024, 16), (8192, 16))
ROUGH = 1.002
"""The best period is searched for to a percent, which inflation hardly feels."""


def options(ask: PlanRequest, only: FixedChoices = FixedChoices()) -> dict[str, PlanOption]:  # noqa: B008
    return best_of_kinds(assume(ask), ask, lambda done: None, only)


def best(ask: PlanRequest) -> PlanOption:
    return min((each for each in options(ask).values() if each.offered), key=lambda each: merit(each, ask))


@pytest.mark.parametrize(("gpus", "replicas"), CLUSTERS)
@pytest.mark.parametrize("goal", ["cost", "time"])
def test_longer_lives_never_make_it_worse(gpus: int, replicas: int, goal: Literal["cost", "time"]) -> None:
    requests = [PlanRequest(gpus, replicas=replicas, mtbf=mtbf, goal=goal) for mtbf in LIVES]
    merits = [merit(best(request), request)[0] for request in requests]
    for worse, better in pairwise(merits):
        assert better <= worse * ROUGH


@pytest.mark.parametrize(("gpus", "replicas"), CLUSTERS)
@pytest.mark.parametrize("mtbf", LIVES[1:])
def test_the_plan_for_time_is_not_slower_and_the_plan_for_cost_not_dearer(
    gpus: int, replicas: int, mtbf: float
) -> None:
    cheap, fast = (best(PlanRequest(gpus, replicas=replicas, mtbf=mtbf, goal=goal)) for goal in ("cost", "time"))
    assert fast.inflation <= cheap.inflation * ROUGH
    assert cheap.cost <= fast.cost * ROUGH


@pytest.mark.parametrize("kind", ["trainmover", "mask-and-refill", "mask-and-refill-local", "mask-and-refill-whole"])
@pytest.mark.parametrize("mtbf", LIVES[1:])
def test_one_more_standby_never_slows_down(kind: str, mtbf: float) -> None:
    ask = PlanRequest(1024, replicas=16, mtbf=mtbf)
    assumed, found = assume(ask), options(ask)[kind].strategy
    many = [
        estimate(
            assumed.setting, assumed.failures, msgspec.structs.replace(found, standbys=n), assumed.repair
        ).inflation
        for n in range(1, 60)
    ]
    for fewer, more in pairwise(many):
        assert more <= fewer * (1 + 1e-9)


def off(assumed: PlanAssumptions, option: PlanOption) -> float:
    """By how much the closed form differs from the simulation."""
    horizon = min(60 * DAY, max(400 / assumed.rate, 8 * option.strategy.period))
    seen = simulate(
        assumed.setting, assumed.failures, option.strategy, assumed.repair, runs=16, horizon=horizon, seed=1
    ).inflation
    noise = seen.high - seen.value
    return max(0.0, abs(option.inflation - seen.value) - noise) / seen.value


@pytest.mark.parametrize(("gpus", "replicas"), CLUSTERS)
def test_closed_forms_and_simulation_agree_on_what_is_offered(gpus: int, replicas: int) -> None:
    """Clusters with a failure at most every quarter of an hour; with more failures, training makes no progress."""
    for mtbf, repair in product((200 * HOUR, 2000 * HOUR, 20_000 * HOUR), (2 * HOUR, DAY)):
        ask = PlanRequest(gpus, replicas=replicas, mtbf=mtbf, repair=Repair(repair))
        assumed = assume(ask)
        if assumed.rate > 1 / 900:
            continue
        for kind, option in options(ask).items():
            if option.offered:
                assert off(assumed, option) < 0.04, (kind, mtbf, repair)


def test_no_more_standbys_than_machines_are_thought_of() -> None:
    assert max(standby_counts(assume(PlanRequest(64, mtbf=HOUR, repair=Repair(300 * DAY))))) == 8


def test_a_single_machine_can_only_go_back() -> None:
    """With it goes all state there is."""
    assert set(options(PlanRequest(8))) == {"checkpoint"}


def test_a_check_sees_only_so_many_failures() -> None:
    assumed = assume(PlanRequest(64, mtbf=10.0))
    found = check(assumed, options(PlanRequest(64))["trainmover-cold"].strategy, 0, lambda done: None)
    assert found.days * DAY * assumed.rate <= MOST_EVENTS
    assert 1 <= found.inflation.low <= found.inflation.value
