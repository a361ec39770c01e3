"""The permutation: of every size one-to-one, far from the order it began with, and the same numbers for ever."""

from __future__ import annotations

from math import isqrt

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from understudy.data.sampler import LARGEST, ROUNDS, hash_numbers, permute

keys = st.integers(0, 2**64 - 1)


def test_every_small_size_is_a_bijection() -> None:
    for size in range(1, 400):
        assert sorted(permute(np.arange(size), size, size).tolist()) == list(range(size))


@given(st.integers(1, 20_000), keys)
def test_any_size_is_a_bijection(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@given(st.integers(1, LARGEST), keys, st.data())
def test_a_large_range_is_kept_and_can_be_undone(size: int, key: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    moved = permute(np.array(indices), size, key).tolist()
    assert [undone(index, size, key) for index in moved] == indices


def test_every_index_comes_to_every_place_equally_often() -> None:
    size, tries = 12, 2400
    seen = np.zeros((size, size))
    for key in range(tries):
        seen[np.arange(size), permute(np.arange(size), size, hash_numbers(key))] += 1
    expected = tries / size
    assert ((seen - expected) ** 2 / expected).sum() < 180  # chi squared, 121 degrees of freedom: one key in a thousand


def test_neighbours_part() -> None:
    moved = permute(np.arange(10_000), 10_000, hash_numbers(7))
    assert abs(np.corrcoef(moved[:-1], moved[1:])[0, 1]) < 0.05


def test_the_numbers_never_change() -> None:
    assert hash_numbers() == 0
    assert [hex(hash_numbers(0)), hex(hash_numbers(1, 2, 3)), hex(hash_numbers(-1))] == GOLDEN_HASHES
    assert permute(np.arange(10), 10, 0).tolist() == GOLDEN_TEN
    assert permute(np.arange(4), 10**12, 1).tolist() == GOLDEN_LARGE


GOLDEN_HASHES = ["0xe220a8397b1dcdaf", "0xd0734750fde362b3", "0xe4d971771b652c20"]
"""The first is SplitMix64's own first number for seed 0."""
GOLDEN_TEN = [8, 1, 3, 4, 0, 7, 2, 5, 9, 6]
GOLDEN_LARGE = [65252653262, 267789839137, 91573470839, 988134068033]


def undone(index: int, size: int, key: int) -> int:
    """The way back, in plain Python."""
    high = isqrt(size - 1) + 1
    low = (size + high - 1) // high
    while True:
        a, b = divmod(index, low)
        for number in reversed(range(0, ROUNDS, 2)):
            b = (b - hashed(a + hash_numbers(key, number + 1)) % low) % low
            a = (a - hashed(b + hash_numbers(key, number)) % high) % high
        index = a * low + b
        if index < size:
            return index


def hashed(word: int) -> int:
    word %= 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ word >> shift) * factor % 2**64
    return word ^ word >> 31
