"""Closed forms against what they describe, counted or drawn."""

from __future__ import annotations

import random
from itertools import permutations
from statistics import fmean

import pytest

from understudy.masking import formulas
from understudy.masking.assignment import load_bound
from understudy.masking.placement import Placement, blocks, golomb


def endured(placement: Placement, order: list[int] | tuple[int, ...]) -> int:
    """Failures until wipe-out, the fatal one included."""
    when = {replica: number for number, replica in enumerate(order, 1)}
    return min(max(when[replica] for replica in placement.holders(s)) for s in range(placement.replicas))


@pytest.mark.parametrize(("replicas", "r"), [(4, 2), (6, 2), (6, 3), (7, 1), (5, 5)])
def test_failures_of_blocks_is_exact(replicas: int, r: int) -> None:
    placement = blocks(replicas, r)
    mean = fmean(endured(placement, order) for order in permutations(range(replicas)))
    assert formulas.failures_of_blocks(replicas, r) == pytest.approx(mean)


@pytest.mark.parametrize(("replicas", "r"), [(64, 3), (100, 5)])
def test_the_corrected_form_is_close_and_the_bound_is_below(replicas: int, r: int) -> None:
    placement, draw = golomb(replicas, r), random.Random(7)
    drawn = [endured(placement, draw.sample(range(replicas), replicas)) for _ in range(3000)]
    assert formulas.failures(replicas, r) == pytest.approx(fmean(drawn), rel=0.025)
    assert formulas.failures_at_least(replicas, r) < fmean(drawn)
    assert formulas.failures(replicas, r) < formulas.failures_of_blocks(replicas, r)


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
    waits = [1 / (replicas - vacant) for vacant in range(1, endured_ + 1)]
    over_time = sum(d * w for d, w in zip(depths, waits, strict=True)) / sum(waits)
    assert formulas.mean_depth_over_time(replicas, endured_) == pytest.approx(over_time, rel=2e-3)


def test_a_fixed_order_needs_more_depth() -> None:
    placement, draw = golomb(100, 4), random.Random(3)
    share, depths = 0.3, []
    for _ in range(400):
        gone = {replica for replica in range(100) if draw.random() < share}
        firsts = [
            next((k for k, g in enumerate(placement.holders(shard)) if g not in gone), placement.r - 1)
            for shard in range(100)
        ]
        depths.append(max(firsts) + 1)
    assert formulas.depth_of_fixed_order(100, 4, share) == pytest.approx(fmean(depths), rel=0.02)


def test_more_failures_than_replicas_is_an_error() -> None:
    with pytest.raises(ValueError, match="between none and all"):
        formulas.mean_depth_over_failures(10, 10)
