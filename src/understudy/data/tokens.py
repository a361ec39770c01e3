"""Windows of token files, mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from .errors import DataError
from .local import Local
from .prefetch import Prefetcher
from .sampler import MicroShard, Sampler, number_and_count, shard_position
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
        shards: Sequence[_Shard]
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
        self._seed, self._shuffle, self._drop = seed, shuffle, drop
        self._ahead: Prefetcher[Pair] = Prefetcher(self._make, prefetch)
        for k in range(len(shards)):
            self._sampler(k, 1)

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

    def _sampler(self, k: int, q: int) -> Sampler:
        return Sampler(
            size=len(self._shards[k]),
            batch=self._batch,
            count=q,
            seed=self._seed,
            shuffle=self._shuffle,
            drop=self._drop,
            stream=k,
        )

    def _make(self, step: int, number: int, count: int) -> Pair:
        k, part, q = shard_position(number, count, len(self._shards))
        shard = self._shards[k]
        block = np.empty((self._batch, self._context + 1), np.int64)
        for row, window in zip(block, self._sampler(k, q).indices(step, part).tolist(), strict=True):
            run, start = shard.find(window)
            row[:] = shard.tokens(run)[start : start + len(row)]
            if self._vocabulary is not None and not 0 <= row.min() <= row.max() < self._vocabulary:
                wrong = next(token for token in row.tolist() if not 0 <= token < self._vocabulary)
                raise DataError(
                    f"{shard.path(run)} has token {wrong:,}, which is not of the vocabulary of {self._vocabulary:,}; "
                    f"are its tokens {self._dtype}?"
                )
        return torch.from_numpy(block[:, :-1].copy()), torch.from_numpy(block[:, 1:].copy())


class _Runs(Protocol):
    """The runs of tokens of one shard: each is in one file, without a gap."""

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens of each run."""
        ...

    def path(self, run: int) -> Path: ...

    def map(self, run: int) -> NDArray[np.integer]:
        """The tokens of a run, mapped into memory."""
        ...


class _Shard:
    """The windows of a shard, each within a run. A run is mapped when it is first used."""

    def __init__(self, runs: _Runs, context: int) -> None:
        self._runs, self._context = runs, context
        self._ends = np.cumsum([max(0, length - 1) // context for length in runs.lengths])
        self._mapped: dict[int, NDArray[np.integer]] = {}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def find(self, window: int) -> tuple[int, int]:
        """(run, first token) of a window."""
        run = int(np.searchsorted(self._ends, window, side="right"))
        return run, (window - (int(self._ends[run - 1]) if run else 0)) * self._context

    def tokens(self, run: int) -> NDArray[np.integer]:
        """All tokens of a run."""
        if run not in self._mapped:
            self._mapped[run] = self._runs.map(run)
        return self._mapped[run]

    def path(self, run: int) -> Path:
        """The file of a run."""
        return self._runs.path(run)


class _FileRuns:
    """Files that every replica reads: each is a run."""

    def __init__(self, files: Sequence[Path], dtype: str) -> None:
        self._files, self._dtype = files, dtype
        self.lengths = [tokens_in(file, dtype) for file in files]

    def path(self, run: int) -> Path:
        return self._files[run]

    def map(self, run: int) -> NDArray[np.integer]:
        return np.memmap(self._files[run], token_dtype(self._dtype), mode="r")


class _ShardRuns:
    """A shard of a folder that `cut` has written: one file has all runs."""

    def __init__(self, source: ShardFolder | Local, shard: int) -> None:
        self._source, self._shard = source, shard
        self.lengths = source.index.shards[shard].runs

    def path(self, run: int) -> Path:
        return self._source.path(self._shard)

    def map(self, run: int) -> NDArray[np.integer]:
        path, dtype = self._source.path(self._shard), self._source.index.dtype
        if (found := tokens_in(path, dtype)) != sum(self.lengths):
            raise DataError(f"{path} has {found:,} tokens and its index says {sum(self.lengths):,}; cut it again")
        start = sum(self.lengths[:run])
        return np.memmap(path, token_dtype(dtype), "r", start * token_dtype(dtype).itemsize, (self.lengths[run],))


def _shard_of_files(files: Sequence[Path], dtype: str, context: int) -> _Shard:
    runs = _FileRuns(files, dtype)
    for file, length in zip(files, runs.lengths, strict=True):
        if length <= context:
            raise DataError(f"{file} has {length:,} {dtype} tokens, too few for a context of {context:,} and a target")
    return _Shard(runs, context)


def _shard_of_folder(source: ShardFolder | Local, number: int, context: int) -> _Shard:
    runs = _ShardRuns(source, number)
    shard = _Shard(runs, context)
    if not len(shard):
        raise DataError(
            f"shard {number} has at most {max(runs.lengths, default=0):,} tokens in a row, too few for a context of "
            f"{context:,} and a target; cut the files into fewer shards"
        )
    return shard
