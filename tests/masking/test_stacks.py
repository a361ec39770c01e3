"""Ordered stacks: SPARe's phases, step by step, against a computation from scratch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.masking.reference import fewest_moves, smallest_load
from tests.masking.strategies import histories, placements
from understudy.masking.assignment import load_bound
from understudy.masking.coverage import wipe_out
from understudy.masking.placement import PlacementError, everywhere, golomb
from understudy.masking.stacks import Stacks, after_failure, after_refill, stacked

WITH_STACKS = ("golomb", "random", "blocks", "consecutive", "off")


def uncovered(stacks: Sequence[Sequence[int]], live: Iterable[int], depth: int) -> tuple[int, ...]:
    """Phase 0: the shards that are not among the first `depth` of any live replica's stack. None: all is well."""
    computed = {shard for replica in live for shard in stacks[replica][:depth]}
    return tuple(shard for shard in range(len(stacks)) if shard not in computed)


def test_phase_0_looks_at_the_first_shards_only() -> None:
    stacks = [(0, 2), (1, 0), (2, 1)]
    assert uncovered(stacks, [0, 1, 2], 1) == ()
    assert uncovered(stacks, [0, 1], 1) == (2,)
    assert uncovered(stacks, [0, 1], 2) == ()


def check(found: Stacks, live: set[int]) -> None:
    placement = found.assignment.placement
    assert set(found.assignment.live) == live
    assert found.assignment.lost == wipe_out(placement, live).shards
    if found.assignment.lost:
        return
    assert found.depth == smallest_load(placement, 1, live)
    assert uncovered(found.order, live, found.depth) == ()
    computed = Counter(shard for replica in live for shard in found.computed(replica))
    assert list(found.copies) == [computed[shard] for shard in range(placement.replicas)]
    for replica in range(placement.replicas):
        assert sorted(found.order[replica]) == sorted(placement.stack(replica))
        assert set(found.assignment.held[replica]) <= set(found.computed(replica))


@settings(max_examples=150)
@given(st.data())
def test_phases_are_exact(data: st.DataObject) -> None:
    placement = data.draw(placements(most=13, kinds=WITH_STACKS).filter(lambda found: not found.everywhere))
    live = set(range(placement.replicas))
    found = stacked(placement)
    for what, replicas in data.draw(histories(placement)):
        before = found
        if what == "refill":
            live = live | replicas
            found = after_refill(before, replicas)
            check(found, live)
            continue
        live = live - replicas
        found = after_failure(before, replicas)
        check(found, live)
        if found.assignment.lost or before.assignment.lost:
            continue
        covered = not uncovered(before.order, live, before.depth)
        assert (found.phase == 0) == covered
        if covered:
            assert found.order == before.order
            assert found.depth == before.depth
        computed = [set(before.computed(replica)) for replica in range(placement.replicas)]
        fewest = fewest_moves(placement, 1, live, found.depth, lambda shard, replica: int(shard in computed[replica]))  # noqa: B023
        assert len(found.patch) == fewest
    assert after_refill(found, range(placement.replicas)) == stacked(placement)


def to_the_end(replicas: int, r: int, seed: int) -> list[Stacks]:
    """All states of one run of single failures, without the wipe-out that ends it."""
    order = list(range(replicas))
    random.Random(seed).shuffle(order)
    states = [stacked(golomb(replicas, r))]
    for replica in order:
        found = after_failure(states[-1], [replica])
        if found.assignment.lost:
            return states[1:]
        states.append(found)
    raise AssertionError("some failure is always the last")


@pytest.mark.parametrize(("replicas", "r"), [(100, 3), (100, 6), (150, 9)])
def test_depth_is_the_even_share_nearly_always(replicas: int, r: int) -> None:
    states = [state for seed in range(8) for state in to_the_end(replicas, r, seed)]
    above = [s for s in states if s.depth > load_bound(replicas, 1, replicas - len(s.assignment.live))]
    assert len(above) <= 0.02 * len(states)


def test_with_three_holders_most_failures_need_no_reordering() -> None:
    """From the second failure on: the first one always opens a second place in every stack."""
    states = [state for seed in range(20) for state in to_the_end(200, 3, seed)[1:]]
    assert sum(state.phase == 0 for state in states) > 0.7 * len(states)


def test_few_shards_move_per_failure() -> None:
    states = to_the_end(150, 9, 1)
    assert sum(len(state.patch) for state in states) < 2 * len(states)


def test_a_failure_says_what_it_did() -> None:
    found = stacked(golomb(13, 3))
    assert found.reason == "all 13 replicas are live: each computes its own micro-shard"
    reasons = []
    for replica in (0, 5, 6):
        found = after_failure(found, [replica])
        reasons.append(found.reason)
    assert reasons == [
        "phase 2: 12 of 13 replicas live, depth 1 becomes 2; computed in addition: shard 0",
        "phase 0: 11 of 13 replicas live, their first 2 shards still cover all shards",
        "phase 2: 10 of 13 replicas live, depth stays 2; computed in addition: shard 5",
    ]


def test_a_replica_that_is_vacant_already_changes_nothing() -> None:
    found = after_failure(stacked(golomb(13, 3)), [4])
    again = after_failure(found, [4])
    assert (again.order, again.assignment.where, again.patch) == (found.order, found.assignment.where, ())


def test_if_data_is_everywhere_there_are_no_stacks() -> None:
    with pytest.raises(PlacementError, match="no stacks to reorder"):
        stacked(everywhere(4))
