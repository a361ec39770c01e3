"""Means of what was measured, less what is counted elsewhere; what was not measured stays as assumed, and says so."""

from __future__ import annotations

import pytest

from understudy.planning.failures import Repair
from understudy.planning.inputs.calibrate import ASSUMED, MeasuredLoss, MeasuredRun, calibrate
from understudy.planning.setting import Durations


def test_nothing_measured_is_all_assumed() -> None:
    found = calibrate(MeasuredRun(0.0))
    assert found.durations == Durations()
    assert (found.step, found.repair, found.measured) == (None, None, ())
    assert set(found.sources) == {*Durations.__struct_fields__, "step", "repair"}
    assert set(found.sources.values()) == {ASSUMED}


def test_what_a_recovery_costs_comes_apart_and_adds_up() -> None:
    """In the model a failure costs detect + hand-over + half a step."""
    found = calibrate(MeasuredRun(0.2, 50, detected=[0.02, 0.04], recovered=[0.4, 0.6, 0.5]))
    d = found.durations
    assert d.detect == pytest.approx(0.03)
    assert d.detect + d.hand_over + 0.1 == pytest.approx(0.5)
    assert found.sources["hand_over"].startswith("measured in 3 recoveries, mean 0.5 s, median 0.5 s, 0.13 s of each")
    assert found.sources["step"] == "measured in 50 steps, lower quartile 0.2 s"
    assert found.sources["planned"] == ASSUMED
    assert found.measured == ("detect", "hand_over", "step")


def test_computing_for_others_is_no_standstill() -> None:
    found = calibrate(
        MeasuredRun(0.3, 9, detected=[0.05], masked=[MeasuredLoss(0.25, 1 / 3)], joined=[MeasuredLoss(0.14, 1 / 3)])
    )
    assert found.durations.shrink == pytest.approx(0.10)
    assert found.durations.join == pytest.approx(0.04)
    assert found.sources["shrink"].startswith("measured in 1 masked failure,")


def test_nothing_is_below_zero() -> None:
    found = calibrate(MeasuredRun(1.0, 9, detected=[0.5], recovered=[0.2], joined=[MeasuredLoss(0.0, 1.0)]))
    assert (found.durations.hand_over, found.durations.join) == (0.0, 0.0)


@pytest.mark.parametrize(("away", "spread"), [([3.0, 3.2, 2.9], "fixed"), ([1.0, 9.0, 2.0], "exponential")])
def test_repairs(away: list[float], spread: str) -> None:
    found = calibrate(MeasuredRun(1.0, 9, away=away))
    assert found.repair is not None
    assert found.repair.spread == spread
    assert found.repair.mean == pytest.approx(sum(away) / 3)
    assert isinstance(found.repair, Repair)
