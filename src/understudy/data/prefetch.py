"""Batches made before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Prefetcher(Generic[Batch]):
    """Calls `make(step, number, count)` for batches that are asked for and, in a thread, for the same micro-shards of
    the next `steps` steps.

    A replica usually computes the same micro-shards in the next steps; any other order is correct and slower. Two
    batches are never made at once. An exception of `make` is raised when its batch is asked for.
    """

    def __init__(self, make: Callable[[int, int, int], Batch], steps: int) -> None:
        self._make, self._steps = make, steps
        self._turn = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "understudy data") if steps > 0 else None
        self._coming: dict[tuple[int, int, int], Future[Batch]] = {}

    def get(self, step: int, number: int, count: int) -> Batch:
        """The batch. The prefetcher drops its reference; a batch that is asked for again is made again."""
        future = self._coming.pop((step, number, count), None)
        for key in [key for key in self._coming if not step <= key[0] <= step + self._steps]:
            self._coming.pop(key).cancel()
        for later in range(step + 1, step + 1 + self._steps):
            key = (later, number, count)
            if self._pool is not None and key not in self._coming:
                self._coming[key] = self._pool.submit(self._made, *key)
        if future is None or future.cancel():
            return self._made(step, number, count)
        return future.result()

    def close(self) -> None:
        """End the thread. Afterwards batches are made when they are asked for."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None
        self._coming.clear()

    def _made(self, step: int, number: int, count: int) -> Batch:
        with self._turn:
            return self._make(step, number, count)
