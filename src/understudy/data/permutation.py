"""Shuffling without a list: a permutation of a range, computed index by index from a key.

The range is laid out as a rectangle of about equal sides. In turn, each coordinate is moved along its side by a hash of
the other one. Each such move can be undone, so all together are a permutation of the rectangle (a Feistel network). An
index that lands in one of the few fields beyond the range is moved again until it is inside. All numbers are integers
modulo 2^64, so the result is the same on every machine.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]

LARGEST = 2**62
ROUNDS = 8
_MASK = 2**64 - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def hash_numbers(*numbers: int) -> int:
    """A 64-bit hash of integers of any sign and size (SplitMix64 over their words)."""
    state = 0
    for number in numbers:
        state = _mix((state ^ (number & _MASK)) + _STEP & _MASK)
    return state


def permute(indices: Indices, size: int, key: int) -> Indices:
    """The images of these indices under the permutation of 0 … size - 1 that belongs to the key."""
    high = isqrt(size - 1) + 1
    low = -(-size // high)
    keys = [np.uint64(hash_numbers(key, number)) for number in range(ROUNDS)]
    moved = _once(indices.astype(np.uint64), np.uint64(high), np.uint64(low), keys)
    while (beyond := moved >= np.uint64(size)).any():
        moved[beyond] = _once(moved[beyond], np.uint64(high), np.uint64(low), keys)
    return moved.astype(np.int64)


def _once(numbers: _Words, high: np.uint64, low: np.uint64, keys: list[np.uint64]) -> _Words:
    a, b = numbers // low, numbers % low
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        a = (a + _mix_all(b + first) % high) % high
        b = (b + _mix_all(a + second) % low) % low
    return a * low + b


def _mix(word: int) -> int:
    word = (word ^ word >> 30) * _FIRST & _MASK
    word = (word ^ word >> 27) * _SECOND & _MASK
    return word ^ word >> 31


def _mix_all(words: _Words) -> _Words:
    words = (words ^ words >> np.uint64(30)) * np.uint64(_FIRST)
    words = (words ^ words >> np.uint64(27)) * np.uint64(_SECOND)
    return words ^ words >> np.uint64(31)
