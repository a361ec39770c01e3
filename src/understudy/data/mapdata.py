"""Batches of a dataset that is read by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import default_collate

from .ahead import Ahead
from .determinism import check, read
from .sampler import MicroShard, Sampler, numbers, partition, place


class MapData:
    """A map-style dataset, `batch` samples for each micro-shard. It is checked at once: see `check`.

    With `shards`, one for each replica, shard k draws from part k of `partition(len(dataset), shards)` only, for data
    that is not everywhere. `prefetch` is the number of steps whose batches are made ahead, in a thread.
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
        """How many samples the dataset has."""
        self._dataset, self._batch, self._collate = dataset, batch, collate
        self._seed, self._shuffle, self._drop = seed, shuffle, drop
        self._parts: Sequence[range] = partition(self.size, shards)
        self._ahead: Ahead[Any] = Ahead(self._make, prefetch)
        self.indices(0, (0, shards))

    def indices(self, step: int, shard: MicroShard) -> list[int]:
        """The samples of a micro-shard."""
        k, part, q = place(*numbers(shard), len(self._parts))
        own = self._parts[k]
        sampler = Sampler(len(own), self._batch, q, self._seed, self._shuffle, self._drop, stream=k)
        found: list[int] = (own.start + sampler.indices(step, part)).tolist()
        return found

    def batch(self, step: int, shard: MicroShard) -> Any:
        """The collated samples of a micro-shard: the same whoever asks, and whenever."""
        return self._ahead.get(step, *numbers(shard))

    def close(self) -> None:
        """Ends the thread that makes batches ahead."""
        self._ahead.close()

    def _make(self, step: int, number: int, count: int) -> Any:
        return self._collate([read(self._dataset, index) for index in self.indices(step, (number, count))])
