from __future__ import annotations

from itertools import combinations

import pytest

from understudy.masking.assignment import assign
from understudy.masking.placement import parse
from understudy.worker.masked.shard_plan import Segment, ShardPlan, still_good


def plan(replica: int, live: tuple[int, ...], q: int = 3, replicas: int = 4, placement: str = "anywhere") -> ShardPlan:
    return ShardPlan(assign(parse(placement, replicas), q, live), replica, deterministic=True)


def test_with_all_replicas_live_each_has_its_own_micro_shards() -> None:
    whole = plan(1, (0, 1, 2, 3))
    assert whole.mine == (3, 4, 5)
    assert whole.shards[2] == (Segment(2, (6, 7, 8)),)
    assert {whole.segment(number) for number in whole.mine} == {3}
    assert all(whole.own(number) for number in whole.mine)


@pytest.mark.parametrize("placement", ["anywhere", "random:r=3,seed=1", "blocks:r=2"])
def test_every_micro_shard_is_in_one_segment_of_the_replica_that_computes_it(placement: str) -> None:
    for size in (1, 2, 3, 4):
        for live in combinations(range(4), size):
            for q in (1, 2, 3):
                first = plan(live[0], live, q, placement=placement)
                if first.assignment.lost:
                    continue
                segments = [segment for shard in first.shards for segment in shard]
                assert [number for segment in segments for number in segment.numbers] == list(range(4 * q))
                assert sum(first.loads) == 4 * q
                for replica in live:
                    own = {number for each in segments if each.replica == replica for number in each.numbers}
                    assert own == set(plan(replica, live, q, placement=placement).mine)
                    assert first.loads[replica] == len(own)


def test_a_later_part_of_another_unit_is_summed_on_its_own() -> None:
    missing = plan(0, (0, 1, 2))
    (lost,) = (shard for shard in missing.shards if len(shard) > 1)
    assert [segment.numbers for segment in lost] == [(9,), (10,), (11,)]
    assert {segment.replica for segment in lost} == {0, 1, 2}


def test_there_is_one_sum_if_the_order_does_not_count() -> None:
    missing = ShardPlan(assign(parse("anywhere", 4), 3, (0, 1)), 0, deterministic=False)
    assert {missing.segment(number) for number in missing.mine} == {0}


def test_what_is_kept_must_be_the_beginning() -> None:
    now = plan(0, (0, 1, 2))
    assert still_good([], now)
    assert still_good([0, 1], now)
    assert still_good(list(now.mine), now)
    assert not still_good([0, 2], now)
    assert not still_good([*now.mine, 11], now)
