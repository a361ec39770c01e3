"""Assignments of micro-shards: exact, fair, the same everywhere."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.masking.reference import fewest_moves, smallest_load
from tests.masking.strategies import histories, live_sets, placements
from understudy.masking.assignment import Assignment, assign, load_bound, mask, refill
from understudy.masking.coverage import wipe_out
from understudy.masking.placement import Placement, everywhere, golomb


def numbers_of(found: Assignment) -> dict[int, tuple[int, ...]]:
    """The micro-shards of every live replica."""
    return {replica: found.of(replica) for replica in found.live}


def check(found: Assignment, live: set[int]) -> None:
    """What every assignment must be."""
    placement, q = found.placement, found.q
    assert set(found.live) == live
    assert found.lost == wipe_out(placement, live).shards
    if found.lost:
        assert numbers_of(found) == dict.fromkeys(live, ())
        assert "wipe-out" in found.reason
        return
    numbers = numbers_of(found)
    assert set(numbers) == live
    assert Counter(number for many in numbers.values() for number in many) == Counter(range(placement.replicas * q))
    assert all(replica in placement.holders(number // q) for replica, many in numbers.items() for number in many)
    assert max(map(len, numbers.values())) == found.load
    assert found.load == smallest_load(placement, q, live)
    assert found.load >= load_bound(placement.replicas, q, placement.replicas - len(live))
    for replica, many in numbers.items():
        own = [number for number in many if number // q == replica]
        assert list(many) == own + sorted(set(many) - set(own))
        assert own == sorted(own)
    for replica, shards in enumerate(found.held):
        assert shards == tuple(sorted({number // q for number in numbers.get(replica, ())}))


@settings(max_examples=120)
@given(st.data())
def test_the_canonical_assignment_is_exact_and_moves_the_least(data: st.DataObject) -> None:
    placement = data.draw(placements())
    live, q = data.draw(live_sets(placement)), data.draw(st.integers(1, 5))
    found = assign(placement, q, live)
    check(found, live)
    if not found.lost:
        at_home = fewest_moves(placement, q, live, found.load, lambda shard, replica: q if shard == replica else 0)
        assert found.moved == at_home


@settings(max_examples=120)
@given(st.data())
def test_step_by_step_every_answer_is_exact(data: st.DataObject) -> None:
    placement = data.draw(placements(most=12))
    q = data.draw(st.integers(1, 4))
    live = set(range(placement.replicas))
    found = assign(placement, q, live)
    for what, replicas in data.draw(histories(placement, most=6)):
        before = found
        if what == "fail":
            live = live - replicas
            found = mask(before, replicas)
            check(found, live)
            if not found.lost and not before.lost:
                where = before.where
                least = fewest_moves(placement, q, live, found.load, lambda shard, replica: where[shard].count(replica))  # noqa: B023
                assert found.moved == least
        else:
            live = live | replicas
            found = refill(before, replicas)
            check(found, live)
    assert refill(found, range(placement.replicas)).where == assign(placement, q, range(placement.replicas)).where


@settings(max_examples=50)
@given(st.data())
def test_the_same_inputs_give_the_same_assignment(data: st.DataObject) -> None:
    placement = data.draw(placements())
    live = data.draw(live_sets(placement))
    shuffled = data.draw(st.permutations(sorted(live)))
    assert assign(placement, 3, live) == assign(placement, 3, shuffled)


@given(placements(), st.integers(1, 6))
def test_with_all_replicas_live_each_computes_its_own_micro_shards(placement: Placement, q: int) -> None:
    found = assign(placement, q, range(placement.replicas))
    assert numbers_of(found) == {
        replica: tuple(range(replica * q, replica * q + q)) for replica in range(placement.replicas)
    }
    assert found.load == q
    assert found.moved == 0


def test_one_failure_costs_the_even_share_if_data_is_everywhere() -> None:
    found = mask(assign(everywhere(9), 16, range(9)), [4])
    assert found.load == 18
    assert sorted(map(len, numbers_of(found).values())) == [18] * 8
    assert found.moved == 16
    assert found.reason == ("1 of 9 replicas vacant: replica 4; at most 18 micro-shards each, the even share; 16 moved")


def test_micro_shards_cost_less_than_whole_shards() -> None:
    placement = golomb(31, 4)
    live = set(range(31)) - {3, 11, 20}
    assert assign(placement, 1, live).depth == 2
    assert assign(placement, 16, live).depth < 1.2


def test_after_a_wipe_out_refills_lead_back() -> None:
    placement = golomb(8, 2)
    lost = mask(assign(placement, 2, range(8)), [3, 4])
    assert lost.lost == (3,)
    assert lost.of(0) == ()
    assert mask(lost, [5]).lost == (3, 4)
    assert refill(lost, [4]) == assign(placement, 2, set(range(8)) - {3})


@pytest.mark.parametrize("replica", [-1, 8])
def test_a_replica_that_does_not_exist_is_an_error(replica: int) -> None:
    normal = assign(golomb(8, 2), 2, range(8))
    with pytest.raises(ValueError, match="there is no replica"):
        assign(golomb(8, 2), 2, [replica])
    with pytest.raises(ValueError, match="there is no replica"):
        mask(normal, [replica])
    with pytest.raises(ValueError, match="there is no replica"):
        refill(normal, [replica])


def test_a_shard_without_micro_shards_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one micro-shard"):
        assign(golomb(8, 2), 0, range(8))
