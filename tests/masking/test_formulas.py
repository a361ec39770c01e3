"""Closed forms against what they describe, counted or drawn."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from understudy.masking import formulas
from understudy.masking.assignment import load_bound
from understudy.masking.placement import Placement, golomb


def endured(placement: Placement, order: list[int] | tuple[int, ...]) -> int:
    """Failures until wipe-out, the fatal one included."""
    when = {replica: number for number, replica in enumerate(order, 1)}
    return min(max(when[replica] for replica in placement.holders(s)) for s in range(placement.replicas))


@pytest.mark.parametrize(("replicas", "r"), [(64, 3), (100, 5)])
def test_the_corrected_form_is_close_and_the_bound_is_below(replicas: int, r: int) -> None:
    placement, draw = golomb(replicas, r), random.Random(7)
    drawn = [endured(placement, draw.sample(range(replicas), replicas)) for _ in range(3000)]
    assert formulas.failures(replicas, r) == pytest.approx(fmean(drawn), rel=0.025)
    assert formulas.failures_at_least(replicas, r) < fmean(drawn)


def test_for_many_replicas_the_forms_agree() -> None:
    assert formulas.failures_for_large(10**6, 4) == pytest.approx(formulas.failures_at_least(10**6, 4), rel=1e-4)


def test_depth_is_the_load_of_whole_shards() -> None:
    for vacant in range(30):
        assert formulas.depth_bound(31, vacant) == load_bound(31, 1, vacant)
    assert [formulas.depth_bound(100, vacant) for vacant in (0, 1, 50, 51, 66, 67)] == [1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize("endured_", [100, 900, 1500, 1700])
def test_mean_depth_is_the_mean_of_depths(endured_: int) -> None:
    replicas = 2000
    depths = [formulas.depth_bound(replicas, vacant) for vacant in range(1, endured_ + 1)]
    assert formulas.mean_depth_over_failures(replicas, endured_) == pytest.approx(fmean(depths), rel=2e-3)


def test_more_failures_than_replicas_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be between 0 and 10"):
        formulas.mean_depth_over_failures(10, 10)
