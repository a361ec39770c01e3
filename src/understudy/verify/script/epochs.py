"""An extension for `understudy check`: short epochs, so that a run of a few steps passes the end of several.

Samplers, schedules, early stopping and evaluation change at the end of an epoch, which is far away in most scripts. In
workers with this extension every `torch.utils.data.DataLoader` gives only its first batches, and its length says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from understudy.device import torch_private
from understudy.worker.agent_connection import AgentConnection
from understudy.worker.runtime import WorkerRuntime

from .observation import SHORTENED


def extend_worker(worker: WorkerRuntime, connection: AgentConnection, argument: str) -> None:
    """Called when a worker starts; `argument` is the number of batches and the folder for observations."""
    batches, _, folder = argument.partition(" ")
    shorten(int(batches), Path(folder))


class ShortSampler:
    """The first `batches` indices, or lists of indices, of a sampler."""

    def __init__(self, sampler: Any, batches: int, folder: Path) -> None:
        self._sampler, self._batches, self._folder = sampler, batches, folder

    def __iter__(self) -> Iterator[Any]:
        source = iter(self._sampler)
        yield from islice(source, self._batches)
        if next(source, None) is not None:
            (self._folder / SHORTENED).touch()

    def __len__(self) -> int:
        return min(len(self._sampler), self._batches)


def shorten(batches: int, folder: Path) -> None:
    """Let every loader of this process end after this number of batches."""
    torch_private.wrap_index_sampler(lambda sampler: ShortSampler(sampler, batches, folder))
