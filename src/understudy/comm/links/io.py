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
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        if pending:
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def soon(self, call: Callable[..., object], *args: object) -> None:
        """Run a call on the loop's thread. Does nothing once the loop is closed."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call, *args)

    @property
    def inside(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self) -> None:
        if not self.loop.is_closed():
            self.soon(self.loop.stop)
            if not self.inside:
                self._thread.join()
