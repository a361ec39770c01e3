"""The data of the plots: finite, consistent with the closed forms, and quick to have."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

import msgspec
import pytest

from tests.planning.plans import planned
from understudy.planning import strategy as ways
from understudy.planning.closed_form import estimate
from understudy.planning.failures import Repair
from understudy.planning.inputs.assume import PlanRequest
from understudy.planning.planner import WORTHLESS, Plan
from understudy.planning.report import plan_data as series
from understudy.planning.setting import HOUR, WEEK

ASKS = {
    "usual": PlanRequest(gpus=16_384),
    "large": PlanRequest(gpus=600_000),
    "for time": PlanRequest(gpus=4096, params=70e9, goal="time"),
    "one replica": PlanRequest(gpus=4096, replicas=1),
    "one replica that is everything": PlanRequest(gpus=600_000, replicas=1),
    "one machine": PlanRequest(gpus=8, replicas=1),
    "two replicas": PlanRequest(gpus=1024, replicas=2),
    "hopeless": PlanRequest(gpus=4096, mtbf=60.0, repair=Repair(60.0)),
    "bad machines": PlanRequest(gpus=16_384, mtbf=100 * HOUR),
    "free": PlanRequest(gpus=2048, price=0.0, save=0.0, restart=0.0, cold=0.0),
}


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {name: planned(ask) for name, ask in ASKS.items()}


def numbers(data: object) -> Iterator[float]:
    """Every number within."""
    if isinstance(data, dict):
        for value in data.values():
            yield from numbers(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from numbers(value)
    elif isinstance(data, float | int):
        yield data


@pytest.mark.parametrize("name", ASKS)
def test_every_number_is_finite(plans: dict[str, Plan], name: str) -> None:
    plan = plans[name]
    for make in (series.over_scale, series.bars, series.landscape, series.tornado):
        found = list(numbers(msgspec.to_builtins(make(plan))))
        assert all(map(isfinite, found)), make.__name__


def test_curves_go_through_the_plan_itself(plans: dict[str, Plan]) -> None:
    plan = plans["usual"]
    gpus = plan.assumed.setting.cluster.gpus
    here = {curve.kind: point for curve in series.over_scale(plan) for point in curve.points if point.gpus == gpus}
    assert set(here) == {option.strategy.name for option in plan.options}
    for option in plan.options:
        assert here[option.strategy.name].inflation == option.inflation
        assert here[option.strategy.name].days == pytest.approx(plan.request.days * option.inflation)


def test_a_larger_cluster_of_the_same_replicas_is_planned_as_if_asked_for(plans: dict[str, Plan]) -> None:
    """The plan for 65,536 GPUs is what the plan for 16,384 foresees there."""
    curve = next(curve for curve in series.over_scale(plans["usual"]) if curve.kind == "checkpoint")
    (point,) = [point for point in curve.points if 60_000 < point.gpus < 70_000]
    other = planned(PlanRequest(gpus=point.gpus))
    (option,) = [option for option in other.options if option.strategy.name == "checkpoint"]
    assert other.assumed.setting.cluster.gpus == point.gpus
    assert point.inflation == option.inflation


@pytest.mark.parametrize("name", ASKS)
def test_curves_are_in_order_and_get_somewhere(plans: dict[str, Plan], name: str) -> None:
    for curve in series.over_scale(plans[name]):
        scales = [point.gpus for point in curve.points]
        assert scales == sorted(set(scales))
        assert all(1 <= point.inflation <= WORTHLESS for point in curve.points)


@pytest.mark.parametrize("name", ASKS)
def test_the_parts_of_a_bar_add_up(plans: dict[str, Plan], name: str) -> None:
    bars = series.bars(plans[name])
    assert sorted(bar.gpu_hours for bar in bars) == [bar.gpu_hours for bar in bars]
    for bar in bars:
        if bar.parts:
            assert sum(part.gpu_hours for part in bar.parts) == pytest.approx(bar.gpu_hours)
            assert sum(part.share for part in bar.parts) == pytest.approx(1)
        assert 0 <= bar.share <= 1


def test_standbys_are_a_part_of_the_waste(plans: dict[str, Plan]) -> None:
    plan = plans["large"]
    (option,) = [option for option in plan.options if option.strategy.name == "trainmover"]
    (bar,) = [bar for bar in series.bars(plan) if bar.kind == "trainmover"]
    (held,) = [part.gpu_hours for part in bar.parts if part.words == series.STANDING_BY]
    assert held == pytest.approx(option.strategy.standbys * 8 * WEEK / HOUR)


@pytest.mark.parametrize("name", ["usual", "large", "for time", "bad machines", "free"])
def test_the_optimum_of_the_landscape_is_its_minimum(plans: dict[str, Plan], name: str) -> None:
    plan = plans[name]
    found = series.landscape(plan)
    assert found is not None
    assert len(found.rows) == len(found.periods)
    assert all(len(row) == len(found.holders) for row in found.rows)
    assert found.best.inflation <= min(value for row in found.rows for value in row if value is not None)
    (planned_best,) = [option.inflation for option in plan.options if option.strategy.name == "spare"]
    assert found.best.inflation <= planned_best * (1 + 1e-3)
    assert found.planned is None or found.planned < found.best.inflation


def test_the_landscape_is_what_the_closed_forms_say(plans: dict[str, Plan]) -> None:
    plan = plans["usual"]
    found, assumed = series.landscape(plan), plan.assumed
    assert found is not None
    for r, period, inflation in (
        (found.best.r, found.best.period, found.best.inflation),
        (found.holders[1], found.periods[7], found.rows[7][1]),
    ):
        spare = ways.spare(assumed.setting, r, period)
        assert estimate(assumed.setting, assumed.failures, spare, assumed.repair).inflation == inflation


@pytest.mark.parametrize("name", ["one replica", "one machine", "two replicas", "hopeless"])
def test_there_is_no_landscape_if_shards_have_one_holder_or_nothing_helps(plans: dict[str, Plan], name: str) -> None:
    assert series.landscape(plans[name]) is None


def test_changes_are_those_of_the_goal(plans: dict[str, Plan]) -> None:
    plan = plans["for time"]
    found = series.tornado(plan)
    assert found.changes
    for each, swing in zip(found.changes, plan.sensitivity, strict=True):
        assert plan.best.inflation * (1 + each.low) == pytest.approx(swing.low)
        assert plan.best.inflation * (1 + each.high) == pytest.approx(swing.high)


def test_what_breaks_a_plan_is_named(plans: dict[str, Plan]) -> None:
    """Going back to a checkpoint on so many GPUs just gets somewhere; failures twice as often end that."""
    plan = plans["large"]
    (worst,) = [option for option in plan.options if option.strategy.name == "checkpoint"]
    assert series.tornado(plan).breaks == ()
    assert series.tornado(msgspec.structs.replace(plan, best=worst)).breaks == ("MTBF of a machine halved",)
