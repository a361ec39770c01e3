"""Batches made before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Ahead(Generic[Batch]):
    """Calls `make(step, number, count)`, also in a thread, for up to `steps` steps beyond those that are asked for.

    Whoever asks for a micro-shard is likely to ask for the same one in the next steps: any order is right, this one is
    fast. Two batches are never made at once. What `make` raises is raised where its batch is asked for.
    """

    def __init__(self, make: Callable[[int, int, int], Batch], steps: int) -> None:
        self._make, self._steps = make, steps
        self._turn = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "understudy data") if steps > 0 else None
        self._coming: dict[tuple[int, int, int], Future[Batch]] = {}

    def get(self, step: int, number: int, count: int) -> Batch:
        """The batch, which is then the caller's: asked for again, it is made again."""
        future = self._coming.pop((step, number, count), None)
        self._forget(step)
        for later in range(step + 1, step + 1 + self._steps):
            key = (later, number, count)
            if self._pool is not None and key not in self._coming:
                self._coming[key] = self._pool.submit(self._made, *key)
        if future is None or future.cancel():
            return self._made(step, number, count)
        return future.result()

    def close(self) -> None:
        """Ends the thread; afterwards batches are made when they are asked for."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None
        self._coming.clear()

    def _made(self, step: int, number: int, count: int) -> Batch:
        with self._turn:
            return self._make(step, number, count)

    def _forget(self, step: int) -> None:
        """Nobody is going to ask for what is before this step, or far after it."""
        for key in [key for key in self._coming if not step <= key[0] <= step + self._steps]:
            self._coming.pop(key).cancel()
