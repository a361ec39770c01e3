"""Batches of a map-style dataset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import default_collate

from .determinism import check, read
from .prefetch import Prefetcher
from .sampler import MicroShard, Sampler, number_and_count, partition, shard_position


class MapData:
    """A map-style dataset, `batch` samples for each micro-shard. The constructor checks the dataset: see `check`.

    With `shards`, one for each replica, shard k draws only from part k of `partition(len(dataset), shards)`, for data
    that not every machine has. `prefetch` is the number of steps to make batches ahead for, in a thread.
    """

    def __init__(
        self,
        dataset: Any,
        batch: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop: bool = False,
        shards: int = 1,
        collate: Callable[[list[Any]], Any] = default_collate,
        prefetch: int = 0,
    ) -> None:
        self.size = check(dataset)
        """The number of samples of the dataset."""
        self._dataset, self._collate = dataset, collate
        self._sampler = partial(Sampler, batch=batch, seed=seed, shuffle=shuffle, drop=drop)
        self._parts = partition(self.size, shards)
        self._ahead: Prefetcher[Any] = Prefetcher(self._make, prefetch)
        self.indices(0, (0, shards))

    def indices(self, step: int, shard: MicroShard) -> list[int]:
        """The indices of the samples of a micro-shard."""
        k, part, q = shard_position(*number_and_count(shard), len(self._parts))
        own = self._parts[k]
        drawn = self._sampler(size=len(own), count=q, stream=k).indices(step, part)
        found: list[int] = (own.start + drawn).tolist()
        return found

    def batch(self, step: int, shard: MicroShard) -> Any:
        """The collated samples of a micro-shard: equal on every replica, at any time."""
        return self._ahead.get(step, *number_and_count(shard))

    def close(self) -> None:
        """End the thread that makes batches ahead."""
        self._ahead.close()

    def _make(self, step: int, number: int, count: int) -> Any:
        return self._collate([read(self._dataset, index) for index in self.indices(step, (number, count))])
