"""The sampler gives every caller the same samples, and an epoch has every sample exactly once."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.data import DataError, Sampler, partition
from understudy.data.sampler import shard_position

sizes, batches, counts = st.integers(1, 60), st.integers(1, 7), st.integers(1, 6)


def stream(sampler: Sampler, steps: int) -> list[int]:
    return [
        index
        for step in range(steps)
        for number in range(sampler.count)
        for index in sampler.indices(step, number).tolist()
    ]


@given(sizes, batches, counts, st.integers(), st.booleans())
def test_epochs_follow_each_other_and_have_everything_once(
    size: int, batch: int, count: int, seed: int, shuffle: bool
) -> None:
    sampler = Sampler(size, batch, count, seed, shuffle)
    drawn = stream(sampler, 3 * size // (batch * count) + 1)
    for start in range(0, len(drawn) - size + 1, size):
        assert sorted(drawn[start : start + size]) == list(range(size))


@given(sizes, batches, counts, st.integers(0, 9))
def test_dropping_the_end_leaves_whole_steps_and_no_repeats(size: int, batch: int, count: int, seed: int) -> None:
    used = batch * count
    if size < used:
        with pytest.raises(
            DataError, match=f"{batch} samples for each of {count} micro-shards are {used} and there are"
        ):
            Sampler(size, batch, count, seed, drop=True)
        return
    steps = size // used
    drawn = stream(Sampler(size, batch, count, seed, drop=True), 2 * steps)
    for epoch in (drawn[: steps * used], drawn[steps * used :]):
        assert max(Counter(epoch).values()) == 1


def test_every_sample_has_its_turn_although_ends_are_dropped() -> None:
    assert set(stream(Sampler(10, 2, 2, drop=True), 40)) == set(range(10))


def test_epochs_seeds_and_streams_differ() -> None:
    first, second = (Sampler(100, 100, 1).indices(epoch, 0).tolist() for epoch in (0, 1))
    seeded = Sampler(100, 100, 1, seed=1).indices(0, 0).tolist()
    other = Sampler(100, 100, 1, stream=1).indices(0, 0).tolist()
    assert len({tuple(order) for order in (first, second, seeded, other, range(100))}) == 5


def test_without_shuffling_it_goes_straight_on() -> None:
    assert stream(Sampler(5, 2, 2, shuffle=False), 3) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_how_a_step_is_shared_out_does_not_change_what_it_has() -> None:
    assert stream(Sampler(1000, 2, 8), 5) == stream(Sampler(1000, 4, 4), 5)


def test_the_numbers_never_change() -> None:
    assert Sampler(50, 4, 3, seed=42).indices(5, 2).tolist() == GOLDEN_SMALL
    assert Sampler(10**12, 3, 1024, seed=42).indices(10**9, 7).tolist() == GOLDEN_LARGE


GOLDEN_SMALL = [11, 16, 45, 24]
GOLDEN_LARGE = [885446463305, 48189687862, 218195678841]


@given(st.integers(1, 200), st.integers(1, 200))
def test_a_partition_has_everything_once_in_nearly_equal_shards(size: int, shards: int) -> None:
    if size < shards:
        with pytest.raises(DataError, match="some would be empty"):
            partition(size, shards)
        return
    parts = partition(size, shards)
    assert [index for part in parts for index in part] == list(range(size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_micro_shard_is_a_part_of_a_shard() -> None:
    assert [shard_position(number, 6, 3) for number in range(6)] == [
        (k, part, 2) for k in range(3) for part in range(2)
    ]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Sampler(0, 1, 1), "at least one sample, not 0"),
        (lambda: Sampler(5, 0, 1), "at least one sample in a batch, not 0"),
        (lambda: Sampler(5, 1, 0), "at least one micro-shard, not 0"),
        (lambda: Sampler(2**63, 1, 1), "too many to be shuffled"),
        (lambda: Sampler(5, 1, 2).indices(-1, 0), "there is no step -1"),
        (lambda: Sampler(5, 1, 2).indices(0, 2), "there is no micro-shard 2: they are numbered 0 to 1"),
        (lambda: partition(5, 0), "at least one shard, not 0"),
        (lambda: shard_position(0, 10, 4), "10 micro-shards cannot be shared out evenly among 4 shards"),
        (lambda: shard_position(8, 8, 4), "there is no micro-shard 8"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(call: object, sentence: str) -> None:
    assert callable(call)
    with pytest.raises(DataError, match=re.escape(sentence)):
        call()
