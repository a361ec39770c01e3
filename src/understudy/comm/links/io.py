"""A thread with an event loop, for everything that waits but is on no training step's path."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class IoLoop:
    """An event loop on its own thread. Fabrics of one process may share it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="understudy io", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:  # cancels what still runs in the end
            runner.get_loop().run_forever()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def soon(self, call: Callable[..., object], *args: object) -> None:
        """Run a call on the loop's thread. Does nothing once the loop is closed."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call, *args)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.soon(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()
