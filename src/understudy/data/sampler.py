"""Which samples a micro-shard of a step has: a pure function of numbers, the same on every replica at any time."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]

LARGEST = 2**62
ROUNDS = 8
_MASK = 2**64 - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class DataError(Exception):
    """Data cannot be read or written as asked for. The message names the data, the reason and the way out."""


class NumberedShard(Protocol):
    """A micro-shard as `step.shards()` gives it: `number` of `count`."""

    @property
    def number(self) -> int: ...
    @property
    def count(self) -> int: ...


MicroShard = NumberedShard | tuple[int, int]
"""Names a batch: a shard of `step.shards()`, or (number, count)."""


@dataclass(frozen=True)
class Sampler:
    """Draws from `size` samples: `batch` for each of a step's `count` micro-shards.

    Epochs follow each other without gap or repeat: each uses every sample exactly once, in an order of its own. If an
    epoch is no whole number of steps, its last step continues with the next epoch; with `drop` that step is left out,
    and so are the up to `batch * count - 1` samples that come last in the epoch. `stream` distinguishes samplers that
    share a seed. A sampler has no state: any step can be asked for, at the cost of one batch.
    """

    size: int
    batch: int
    count: int
    seed: int = 0
    shuffle: bool = True
    drop: bool = False
    stream: int = 0

    def __post_init__(self) -> None:
        for name, value in (("sample", self.size), ("sample in a batch", self.batch), ("micro-shard", self.count)):
            if value < 1:
                raise DataError(f"there must be at least one {name}, not {value}")
        if self.size > LARGEST:
            raise DataError(f"{self.size:,} samples are too many to be shuffled: at most {LARGEST:,} are possible")
        if self.drop and self.size < self.batch * self.count:
            raise DataError(
                f"an epoch has no whole step: {self.batch:,} samples for each of {self.count:,} micro-shards are "
                f"{self.batch * self.count:,} and there are {self.size:,}; take a smaller batch, or drop=False"
            )

    @property
    def epoch_size(self) -> int:
        """The number of samples that an epoch uses."""
        used = self.batch * self.count
        return self.size // used * used if self.drop else self.size

    def indices(self, step: int, number: int) -> Indices:
        """The indices of the samples of micro-shard `number` of a step."""
        if step < 0:
            raise DataError(f"there is no step {step}: steps are numbered from 0")
        if not 0 <= number < self.count:
            raise DataError(f"there is no micro-shard {number}: they are numbered 0 to {self.count - 1}")
        place, end = (step * self.count + number) * self.batch, (step * self.count + number + 1) * self.batch
        parts = []
        while place < end:
            epoch, first = divmod(place, self.epoch_size)
            last = min(first + end - place, self.epoch_size)
            plain: Indices = np.arange(first, last, dtype=np.int64)
            key = hash_numbers(self.seed, self.stream, epoch)
            parts.append(permute(plain, self.size, key) if self.shuffle else plain)
            place += last - first
        return np.concatenate(parts)


def partition(size: int, shards: int) -> tuple[range, ...]:
    """Cut `size` samples (or tokens) into shards of neighbours, as equal as possible: the range of each shard."""
    if shards < 1:
        raise DataError(f"there must be at least one shard, not {shards}")
    if size < shards:
        raise DataError(f"{size:,} cannot be cut into {shards:,} shards: some would be empty")
    return tuple(range(size * k // shards, size * (k + 1) // shards) for k in range(shards))


def number_and_count(shard: MicroShard) -> tuple[int, int]:
    return shard if isinstance(shard, tuple) else (shard.number, shard.count)


def shard_position(number: int, count: int, shards: int) -> tuple[int, int, int]:
    """(k, part, q): the micro-shard is part `part` of the q of shard k."""
    if count % shards:
        raise DataError(
            f"{count:,} micro-shards cannot be shared out evenly among {shards:,} shards: there must be one shard "
            f"for each replica, and step.shards() the same number of micro-shards for each"
        )
    if not 0 <= number < count:
        raise DataError(f"there is no micro-shard {number}: they are numbered 0 to {count - 1}")
    q = count // shards
    return number // q, number % q, q


# -- shuffling ---------------------------------------------------------------------------------------------------------


def hash_numbers(*numbers: int) -> int:
    """A 64-bit hash of integers of any sign and size (SplitMix64 over their words)."""
    state = 0
    for number in numbers:
        state = _mix((state ^ (number & _MASK)) + _STEP & _MASK)
    return state


def permute(indices: Indices, size: int, key: int) -> Indices:
    """The images of these indices under the permutation of 0 … size - 1 that belongs to the key, without a list of all.

    The range is laid out as a rectangle of about equal sides. In turn, each coordinate is moved along its side by a
    hash of the other one. Each such move can be undone, so all together are a permutation of the rectangle (a Feistel
    network). An index that lands in one of the few fields beyond the range is moved again until it is inside. All
    numbers are integers modulo 2^64, so the result is the same on every machine."""
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
