"""Windows of token files, mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .local import Local
from .prefetch import Prefetcher
from .sampler import DataError, MicroShard, Sampler, number_and_count, shard_position
from .shards import Paths, ShardFolder, open_shards, paths_of, token_dtype, tokens_in

Pair = tuple[torch.Tensor, torch.Tensor]


class Tokens:
    """Token files (raw little-endian integers), `batch` windows for each micro-shard.

    A window is `context` tokens and the one that follows; windows lie side by side, never across two files. If `source`
    is one or several files, every micro-shard draws from all of them. If it is a folder that `cut` has written, or
    `Local` shards of one, the micro-shards of shard k draw from shard k only, with equal results from both. `dtype` is
    uint16 by default; shards know their own. With `vocabulary`, a token that is not below it raises DataError.
    `prefetch` is the number of steps to make batches ahead for, in a thread.
    """

    def __init__(
        self,
        source: Paths | ShardFolder | Local,
        context: int,
        batch: int,
        *,
        dtype: str | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop: bool = False,
        vocabulary: int | None = None,
        prefetch: int = 0,
    ) -> None:
        if context < 1:
            raise DataError(f"the context must be at least one token, not {context}")
        if isinstance(source, (str, os.PathLike)) and Path(source).is_dir():
            source = open_shards(source)
        if isinstance(source, (ShardFolder, Local)):
            if dtype not in (None, source.index.dtype):
                raise DataError(f"these shards are of {source.index.dtype} tokens, not {dtype}; leave out dtype")
            dtype = source.index.dtype
            shards = [_shard_of_folder(source, k, context) for k in range(len(source.index.shards))]
        else:
            dtype = dtype or "uint16"
            shards = [_shard_of_files(paths_of(source), dtype, context)]
        self._shards, self._dtype = shards, dtype
        self._context, self._batch, self._vocabulary = context, batch, vocabulary
        self._sampler = partial(Sampler, batch=batch, seed=seed, shuffle=shuffle, drop=drop)
        self._ahead: Prefetcher[Pair] = Prefetcher(self._make, prefetch)
        for k, shard in enumerate(shards):
            self._sampler(size=len(shard), count=1, stream=k)

    @property
    def windows(self) -> int:
        """The number of windows, which are the samples of an epoch."""
        return sum(len(shard) for shard in self._shards)

    def batch(self, step: int, shard: MicroShard) -> Pair:
        """(inputs, targets) of a micro-shard, int64 of shape (batch, context): equal on every replica, at any time."""
        return self._ahead.get(step, *number_and_count(shard))

    def close(self) -> None:
        """End the thread that makes batches ahead."""
        self._ahead.close()

    def _make(self, step: int, number: int, count: int) -> Pair:
        k, part, q = shard_position(number, count, len(self._shards))
        shard = self._shards[k]
        windows = self._sampler(size=len(shard), count=q, stream=k).indices(step, part)
        block = np.empty((self._batch, self._context + 1), np.int64)
        for row, window in zip(block, windows.tolist(), strict=True):
            run, start = shard.find(window)
            row[:] = shard.tokens(run)[start : start + len(row)]
            if self._vocabulary is not None and not 0 <= row.min() <= row.max() < self._vocabulary:
                wrong = next(token for token in row.tolist() if not 0 <= token < self._vocabulary)
                raise DataError(
                    f"{run.path()} has token {wrong:,}, which is not of the vocabulary of {self._vocabulary:,}; "
                    f"are its tokens {self._dtype}?"
                )
        return torch.from_numpy(block[:, :-1].copy()), torch.from_numpy(block[:, 1:].copy())


class _Run(NamedTuple):
    """Tokens in one file, without a gap."""

    path: Callable[[], Path]
    """The file; a shard that is not on the local disk yet is copied by the call."""
    first: int
    length: int
    file_length: int
    """The number of tokens that the whole file must have."""


class _Shard:
    """The windows of a shard, each within a run. A run is mapped into memory when it is first used."""

    def __init__(self, runs: Sequence[_Run], dtype: str, context: int) -> None:
        self._runs, self._dtype, self._context = runs, dtype, context
        self._ends = np.cumsum([max(0, run.length - 1) // context for run in runs])
        self._mapped: dict[_Run, NDArray[np.integer]] = {}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def find(self, window: int) -> tuple[_Run, int]:
        """The run of a window, and the window's first token in it."""
        number = int(np.searchsorted(self._ends, window, side="right"))
        return self._runs[number], (window - (int(self._ends[number - 1]) if number else 0)) * self._context

    def tokens(self, run: _Run) -> NDArray[np.integer]:
        if run not in self._mapped:
            path, dtype = run.path(), token_dtype(self._dtype)
            if (found := tokens_in(path, self._dtype)) != run.file_length:
                raise DataError(f"{path} has {found:,} tokens and its index says {run.file_length:,}; cut it again")
            self._mapped[run] = np.memmap(path, dtype, "r", run.first * dtype.itemsize, (run.length,))
        return self._mapped[run]


def _shard_of_files(files: Sequence[Path], dtype: str, context: int) -> _Shard:
    """All windows of files that every replica reads: each file is a run."""
    runs = []
    for file in files:
        length = tokens_in(file, dtype)
        if length <= context:
            raise DataError(f"{file} has {length:,} {dtype} tokens, too few for a context of {context:,} and a target")
        runs.append(_Run(partial(Path, file), 0, length, length))
    return _Shard(runs, dtype, context)


def _shard_of_folder(source: ShardFolder | Local, number: int, context: int) -> _Shard:
    """A shard of a folder that `cut` has written: one file has all runs."""
    lengths = source.index.shards[number].runs
    path, starts = partial(source.path, number), accumulate(lengths, initial=0)
    runs = [_Run(path, first, length, sum(lengths)) for first, length in zip(starts, lengths, strict=False)]
    shard = _Shard(runs, source.index.dtype, context)
    if not len(shard):
        raise DataError(
            f"shard {number} has at most {max(lengths, default=0):,} tokens in a row, too few for a context of "
            f"{context:,} and a target; cut the files into fewer shards"
        )
    return shard
