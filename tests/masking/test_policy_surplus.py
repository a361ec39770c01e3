"""Which replicas rest if fewer are wanted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy.masking.coverage import wipe_out
from understudy.masking.placement import parse
from understudy.masking.policy import surplus_replicas


def single(count: int) -> list[tuple[int, ...]]:
    return [(number,) for number in range(count)]


def test_the_last_go() -> None:
    assert surplus_replicas(parse("anywhere", 4), single(4), 2).replicas == (2, 3)


def test_vacant_ones_go_first_and_of_these_the_deserted() -> None:
    four = parse("anywhere", 4)
    assert surplus_replicas(four, single(4), 2, vacant=(0,)).replicas == (0, 3)
    assert surplus_replicas(four, single(4), 3, vacant=(0, 1), deserted=(0,)).replicas == (0,)


def test_the_named_replicas_leave_before_all_others() -> None:
    assert surplus_replicas(parse("anywhere", 4), single(4), 2, vacant=(0,), sooner=(1,)).replicas == (0, 1)


def test_replicas_that_share_machines_go_together() -> None:
    pairs = [(0, 1), (2, 3), (4, 5)]
    assert surplus_replicas(parse("anywhere", 6), pairs, 4).replicas == (4, 5)
    found = surplus_replicas(parse("anywhere", 6), pairs, 3)
    assert found.replicas == (4, 5)
    assert found.problem == "each machine is shared by 2 replicas, which come and go together; ask for 4 or more"


def test_a_shard_keeps_its_last_holder() -> None:
    blocks = parse("blocks:r=2", 4)
    assert surplus_replicas(blocks, single(4), 2).replicas == (1, 3)
    found = surplus_replicas(blocks, single(4), 1)
    assert found.replicas == (1, 3)
    assert found.problem == "no remaining replica would hold shards 2 and 3 (blocks:r=2); ask for 2 or more"


@given(
    placement=st.sampled_from(
        ["anywhere", "spare:r=2", "spare:r=3", "blocks:r=7", "consecutive:r=2", "random:r=3,seed=1"]
    ),
    vacant=st.sets(st.integers(0, 6), max_size=3),
    target=st.integers(1, 7),
    named=st.sets(st.integers(0, 6), max_size=2),
)
def test_what_always_holds(placement: str, vacant: set[int], target: int, named: set[int]) -> None:
    seven = parse(placement, 7)
    found = surplus_replicas(seven, single(7), target, vacant=vacant, sooner=named)
    gone, live = set(found.replicas), set(range(7)) - vacant
    assert bool(found.problem) == (len(gone) < 7 - target)
    assert len(gone) <= 7 - target
    if not wipe_out(seven, live):
        assert not wipe_out(seven, live - gone)
    if not found.problem and not named:
        assert gone <= vacant or vacant <= gone
    assert surplus_replicas(seven, single(7), target, vacant=vacant | gone, sooner=named).replicas == found.replicas
