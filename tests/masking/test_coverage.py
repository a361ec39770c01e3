"""Wipe-outs, sole holders and the sentences that warn of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.masking.strategies import live_sets, placements
from understudy.masking.coverage import at_risk, wipe_out
from understudy.masking.placement import everywhere, golomb, off
from understudy.protocol.sentences import listed, named


@given(st.data())
def test_what_is_lost_and_what_is_at_risk(data: st.DataObject) -> None:
    placement = data.draw(placements())
    live = data.draw(live_sets(placement))
    left = {shard: live & set(placement.holders(shard)) for shard in range(placement.replicas)}
    lost = wipe_out(placement, live)
    assert lost.shards == tuple(shard for shard, holders in left.items() if not holders)
    risk = at_risk(placement, live)
    assert {shard: replica for replica, shards in risk.sole.items() for shard in shards} == {
        shard: next(iter(holders)) for shard, holders in left.items() if len(holders) == 1
    }
    if not lost:
        fatal = {replica for replica in live if wipe_out(placement, live - {replica})}
        assert set(risk.sole) == fatal


def test_a_warning_names_the_replicas_that_must_not_fail() -> None:
    placement = golomb(7, 3)
    assert at_risk(placement, range(7)).reason == "every shard has at least two live holders, or none"
    assert not at_risk(placement, range(7))
    assert at_risk(placement, [0, 1, 2, 4, 6]).reason == "1 shard has a single live holder: replica 2 (shard 2)"
    assert at_risk(placement, [0, 2, 3, 5]).reason == (
        "3 shards have a single live holder: replica 2 (shard 1), replica 3 (shard 3) and replica 5 (shard 5)"
    )
    assert at_risk(off(3), range(3)).reason == "no shard has a second holder (off): any failure is a wipe-out"
    assert at_risk(everywhere(3), [1]).reason == "3 shards have a single live holder: replica 1 (shards 0, 1 and 2)"


def test_a_wipe_out_names_the_shards() -> None:
    placement = golomb(7, 3)
    assert wipe_out(placement, [0, 1, 2, 5]).reason == "wipe-out: no live replica holds shard 3 (spare:r=3)"
    assert wipe_out(everywhere(3), []).reason == "wipe-out: no replica is live (anywhere)"
    assert not wipe_out(everywhere(3), [2])


def test_lists_stay_short() -> None:
    assert listed([5]) == "5"
    assert named("shard", [5, 9]) == "shards 5 and 9"
    assert listed(range(10)) == "0, 1, 2, 3, 4, 5 and 4 more"
