from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from understudy.masking.assignment import Assignment, assign
from understudy.masking.formulas import patched_share
from understudy.masking.placement import Placement, golomb
from understudy.masking.stacks import after_failure, stacked
from understudy.planning.setting import Cluster, PlanningSetting, StepWork
from understudy.planning.strategy import FINEST, mask_and_refill, mean_load, replication, spare

GROUPS = PlanningSetting(Cluster(60, 60), StepWork(10.0, 1.0))


def test_replication_computes_no_more_for_the_missing() -> None:
    strategy = replication(GROUPS, 3, 100.0)
    assert strategy.stretch(GROUPS, 0) == strategy.stretch(GROUPS, 5) == pytest.approx(31 / 11)


def test_only_a_failure_without_another_holder_of_its_work_is_patched() -> None:
    stacks, parts = spare(GROUPS, 5, 100.0), mask_and_refill(GROUPS, 1, 100.0, q=8)
    assert stacks.patched(GROUPS, 0) == 1.0
    assert stacks.patched(GROUPS, 1) < 0.1
    assert parts.patched(GROUPS, 3) == 1.0


@pytest.mark.parametrize(("replicas", "r"), [(100, 6), (200, 9)])
def test_the_share_of_patched_failures_is_close_to_what_stacks_do(replicas: int, r: int) -> None:
    placement, seen, expected = golomb(replicas, r), 0, 0.0
    count = 0
    for run in range(12):
        stacks = stacked(placement)
        for vacant, replica in enumerate(Random(run).sample(range(replicas), replicas)):
            stacks = after_failure(stacks, [replica])
            if stacks.assignment.lost:
                break
            seen += stacks.phase == 2
            expected += patched_share(replicas, vacant)
            count += 1
    assert expected / count == pytest.approx(seen / count, abs=0.04)


@pytest.mark.parametrize("r", [2, 3, 6])
def test_finer_micro_shards_have_nearly_the_load_that_coarser_ones_tell_of(r: int) -> None:
    strategy, fine = mask_and_refill(GROUPS, 1, 100.0, f"spare:r={r}", q=4 * FINEST), 4 * FINEST
    for missing in (1, 3, 5):
        assert strategy.load(GROUPS, missing) == pytest.approx(mean_load(f"spare:r={r}", 60, fine, missing), abs=0.05)


def test_the_finest_micro_shards_take_no_longer_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    dealt = set()

    def noted(placement: Placement, q: int, live: Sequence[int]) -> Assignment:
        dealt.add(q)
        return assign(placement, q, live)

    monkeypatch.setattr("understudy.planning.strategy.assign", noted)
    many = PlanningSetting(Cluster(97, 97), StepWork(10.0, 1.0))
    strategy = mask_and_refill(many, 1, 100.0, "spare:r=3", q=10_000)
    assert strategy.load(many, 1) == pytest.approx(97 / 96, rel=1e-3)
    assert dealt == {FINEST}
