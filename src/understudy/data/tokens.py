"""Windows of token files, mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .ahead import Ahead
from .errors import DataError
from .local import Local
from .sampler import MicroShard, Sampler, numbers, place
from .shards import Folder, Paths, item, listed, opened, tokens_in

Pair = tuple[torch.Tensor, torch.Tensor]


class Tokens:
    """Token files (raw little-endian integers), `batch` windows for each micro-shard.

    A window is `context` tokens and the one that follows; windows lie side by side, never across two files. `source` is
    a file or several, and then every micro-shard draws from all of it; or a folder that `cut` has written, or `Local`
    shards of one, and then the micro-shards of shard k draw from shard k only: the same from either. `dtype` is uint16
    if nothing is said, and known of shards. With `vocabulary`, tokens that are not below it are refused.
    `prefetch` is the number of steps whose batches are made ahead, in a thread.
    """

    def __init__(
        self,
        source: Paths | Folder | Local,
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
            source = opened(source)
        if isinstance(source, (Folder, Local)):
            if dtype not in (None, source.index.dtype):
                raise DataError(f"these shards are of {source.index.dtype} tokens, not {dtype}; leave out dtype")
            dtype = source.index.dtype
            shards = [_Held(source, k, context) for k in range(len(source.index.shards))]
        else:
            dtype = dtype or "uint16"
            shards = [_Files(listed(source), dtype, context)]
        self._shards, self._dtype = shards, dtype
        self._context, self._batch, self._vocabulary = context, batch, vocabulary
        self._seed, self._shuffle, self._drop = seed, shuffle, drop
        self._ahead: Ahead[Pair] = Ahead(self._make, prefetch)
        for k in range(len(shards)):
            self._sampler(k, 1)

    @property
    def windows(self) -> int:
        """How many there are: the samples of an epoch."""
        return sum(len(shard) for shard in self._shards)

    def batch(self, step: int, shard: MicroShard) -> Pair:
        """(inputs, targets) of a micro-shard, int64 of shape (batch, context): the same whoever asks, and whenever."""
        return self._ahead.get(step, *numbers(shard))

    def close(self) -> None:
        """Ends the thread that makes batches ahead."""
        self._ahead.close()

    def _sampler(self, k: int, q: int) -> Sampler:
        return Sampler(len(self._shards[k]), self._batch, q, self._seed, self._shuffle, self._drop, stream=k)

    def _make(self, step: int, number: int, count: int) -> Pair:
        k, part, q = place(number, count, len(self._shards))
        shard = self._shards[k]
        block = np.empty((self._batch, self._context + 1), np.int64)
        for row, window in zip(block, self._sampler(k, q).indices(step, part).tolist(), strict=True):
            run, start = shard.find(window)
            row[:] = shard.run(run)[start : start + len(row)]
            if self._vocabulary is not None and not 0 <= row.min() <= row.max() < self._vocabulary:
                wrong = next(token for token in row.tolist() if not 0 <= token < self._vocabulary)
                raise DataError(
                    f"{shard.name(run)} has token {wrong:,}, which is not of the vocabulary of {self._vocabulary:,}; "
                    f"are its tokens {self._dtype}?"
                )
        return torch.from_numpy(block[:, :-1].copy()), torch.from_numpy(block[:, 1:].copy())


class _Shard:
    """Runs of tokens; windows lie within a run. A file is mapped when it is used."""

    def __init__(self, lengths: Sequence[int], context: int) -> None:
        self._context = context
        self._ends = np.cumsum([max(0, length - 1) // context for length in lengths])
        self._mapped: dict[int, NDArray[np.integer]] = {}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def find(self, window: int) -> tuple[int, int]:
        """(run, first token) of a window."""
        run = int(np.searchsorted(self._ends, window, side="right"))
        return run, (window - (int(self._ends[run - 1]) if run else 0)) * self._context

    def run(self, number: int) -> NDArray[np.integer]:
        if number not in self._mapped:
            self._mapped[number] = self._map(number)
        return self._mapped[number]

    def name(self, run: int) -> str:
        raise NotImplementedError

    def _map(self, number: int) -> NDArray[np.integer]:
        raise NotImplementedError


class _Files(_Shard):
    """Files that everybody reads: each is a run."""

    def __init__(self, files: Sequence[Path], dtype: str, context: int) -> None:
        lengths = [tokens_in(file, dtype) for file in files]
        for file, length in zip(files, lengths, strict=True):
            if length <= context:
                raise DataError(
                    f"{file} has {length:,} {dtype} tokens, too few for a context of {context:,} and a target"
                )
        super().__init__(lengths, context)
        self._files, self._dtype = files, dtype

    def name(self, run: int) -> str:
        return str(self._files[run])

    def _map(self, number: int) -> NDArray[np.integer]:
        return np.memmap(self._files[number], item(self._dtype), mode="r")


class _Held(_Shard):
    """A shard of a folder that was cut: its file has all runs."""

    def __init__(self, source: Folder | Local, shard: int, context: int) -> None:
        self._source, self._number, self._piece = source, shard, source.index.shards[shard]
        super().__init__(self._piece.runs, context)
        if not len(self):
            longest = max(self._piece.runs, default=0)
            raise DataError(
                f"shard {shard} has at most {longest:,} tokens in a row, too few for a context of {context:,} and "
                f"a target; cut the files into fewer shards"
            )

    def name(self, run: int) -> str:
        return str(self._source.path(self._number))

    def _map(self, number: int) -> NDArray[np.integer]:
        path, dtype = self._source.path(self._number), self._source.index.dtype
        if (found := tokens_in(path, dtype)) != sum(self._piece.runs):
            raise DataError(f"{path} has {found:,} tokens and its index says {sum(self._piece.runs):,}; cut it again")
        start = sum(self._piece.runs[:number])
        return np.memmap(path, item(dtype), "r", start * item(dtype).itemsize, (self._piece.runs[number],))
