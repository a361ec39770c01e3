"""Placements: what holds for all, what each is for, and what a wrong text is told."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given

from tests.masking.strategies import placements
from understudy.masking.placement import (
    Placement,
    PlacementError,
    blocks,
    consecutive,
    everywhere,
    golomb,
    holders_of,
    off,
    parse,
    random_regular,
)
from understudy.masking.rulers import SHORTEST


@given(placements(most=24))
def test_every_shard_has_r_holders_and_every_replica_r_shards(placement: Placement) -> None:
    replicas = range(placement.replicas)
    for shard in replicas:
        holders = placement.holders(shard)
        assert len(holders) == len(set(holders)) == placement.r
        assert holders[0] == shard
    for replica in replicas:
        stack = placement.stack(replica)
        assert len(stack) == len(set(stack)) == placement.r
        assert stack[0] == replica
        assert all(replica in placement.holders(shard) for shard in stack)


@pytest.mark.parametrize(("replicas", "r"), [(7, 3), (13, 4), (21, 5), (50, 5), (200, 9), (600, 8)])
def test_two_shards_share_at_most_one_holder(replicas: int, r: int) -> None:
    assert most_shared(golomb(replicas, r)) == 1
    assert most_shared(golomb(replicas, r, wide=False)) == 1


@pytest.mark.parametrize("r", range(2, 8))
def test_any_number_of_replicas_beyond_twice_the_ruler_will_do(r: int) -> None:
    """SPARe asks for N > 2·o_max - 1; at N = 2·o_max itself two shards share two holders."""
    length = SHORTEST[r][-1]
    for replicas in (2 * length + 1, 2 * length + 2, 2 * length + 5):
        assert most_shared(golomb(replicas, r, wide=False)) == 1


@pytest.mark.parametrize(("replicas", "r", "domain"), [(28, 3, 4), (64, 3, 4), (26, 4, 2), (400, 5, 8)])
def test_a_domain_never_holds_a_shard_twice(replicas: int, r: int, domain: int) -> None:
    for placement in (golomb(replicas, r, domain), blocks(replicas // domain // r * domain * r, r, domain)):
        for shard in range(placement.replicas):
            assert len({replica // domain for replica in placement.holders(shard)}) == r
    assert most_shared(golomb(replicas, r, domain)) == 1


def test_blocks_hold_the_same_shards() -> None:
    placement = blocks(12, 3)
    assert {frozenset(placement.holders(shard)) for shard in range(12)} == {
        frozenset(range(first, first + 3)) for first in (0, 3, 6, 9)
    }


def test_random_placements_follow_their_seed() -> None:
    one, same, other = random_regular(40, 4, 1), random_regular(40, 4, 1), random_regular(40, 4, 2)
    assert one == same
    assert one.hosts != other.hosts
    shifts = Counter((holder - shard) % 40 for shard in range(40) for holder in one.holders(shard)[1:])
    assert len(shifts) > 30


def test_everywhere_needs_no_table() -> None:
    placement = everywhere(10_000)
    assert placement.hosts == ()
    assert len(placement.holders(3)) == 10_000


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("spare:r=3", golomb(8, 3)),
        ("spare:r=2,domain=2", golomb(8, 2, 2)),
        (" spare:domain=2, r=2 ", golomb(8, 2, 2)),
        ("random:r=3", random_regular(8, 3)),
        ("random:r=3,seed=5", random_regular(8, 3, 5)),
        ("blocks:r=2", blocks(8, 2)),
        ("consecutive:r=3", consecutive(8, 3)),
        ("anywhere", everywhere(8)),
        ("off", off(8)),
    ],
)
def test_a_text_names_a_placement(text: str, placement: Placement) -> None:
    assert parse(text, 8) == placement
    assert parse(placement.name, 8) == placement
    assert str(placement).startswith(f"{placement.name}: ")


@pytest.mark.parametrize(
    ("text", "r"), [("spare:r=12,domain=4", 12), ("blocks:r=2", 2), ("anywhere", None), ("off", None)]
)
def test_a_text_says_how_many_holders_a_shard_has(text: str, r: int | None) -> None:
    assert holders_of(text) == r


@pytest.mark.parametrize(
    ("text", "replicas", "sentence"),
    [
        ("spar:r=3", 8, "'spar:r=3': there is no placement 'spar'; there are spare, random, blocks"),
        ("", 8, "there is no placement ''"),
        ("spare", 8, "'spare': how many holders per shard? Write spare:r=3 or spare:r=3,domain=4"),
        ("spare:", 8, "spare has no setting ''; write spare:r=3"),
        ("spare:q=3", 8, "spare has no setting 'q'; write spare:r=3 or spare:r=3,domain=4"),
        ("spare:r=x", 8, "r must be a whole number, not 'x'"),
        ("spare:r=-1", 8, "r must be a whole number, not '-1'"),
        ("spare:r=0", 8, "a shard needs at least one holder, r=1, not r=0"),
        ("spare:r=3,r=2", 8, "r is given twice"),
        ("spare:r=9", 8, "r=9 holders per shard need 9 replicas and there are 8; use r=8 or less"),
        ("spare:r=3", 4, "with 4 replicas at most r=2 is possible"),
        ("spare:r=6", 21, "with 21 replicas at most r=5 is possible"),
        ("spare:r=3,domain=2", 8, "with 8 replicas in domains of 2 at most r=2 is possible"),
        (
            "spare:r=3,domain=4",
            8,
            "at most r=1 is possible if two shards are to share at most one holder; use a smaller",
        ),
        ("spare:r=3,domain=3", 8, "domain=3 does not divide the 8 replicas into equal domains; with r=3 one of 1, 2"),
        ("spare:r=3,domain=0", 8, "domain=0 does not divide"),
        ("blocks:r=3", 8, "r must divide the 8 replicas; the nearest below is r=2"),
        ("blocks:r=3,domain=2", 8, "r must divide the 4 domains of 2 replicas; the nearest below is r=2"),
        ("anywhere:r=3", 8, "anywhere takes no settings; write anywhere"),
        ("off", 0, "there must be at least one replica, not 0"),
    ],
)
def test_a_wrong_text_is_told_what_would_be_right(text: str, replicas: int, sentence: str) -> None:
    with pytest.raises(PlacementError) as caught:
        parse(text, replicas)
    assert sentence in str(caught.value)


def most_shared(placement: Placement) -> int:
    held = Counter(
        pair for replica in range(placement.replicas) for pair in combinations(sorted(placement.stack(replica)), 2)
    )
    return max(held.values())
