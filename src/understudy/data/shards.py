"""Token files cut into shards, one file for each, with an index of sizes and digests.

FOLDER/index.json
FOLDER/shard-00000-b7e2c1….bin     raw tokens; the name contains the beginning of the digest
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np

from .files import read_pieces, write_pieces
from .sampler import DataError, partition

INDEX = "index.json"
DTYPES = ("uint8", "uint16", "uint32", "int16", "int32", "int64")
NAME = re.compile(r"shard-\d{5,}-[0-9a-f]{12}\.bin")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class ShardFile(msgspec.Struct, frozen=True):
    """The file of one shard."""

    file: str
    size: int
    digest: str
    runs: tuple[int, ...]
    """The number of tokens from each source file, in order."""


class ShardIndex(msgspec.Struct, frozen=True):
    """The type of the tokens and the file of every shard."""

    dtype: str
    shards: tuple[ShardFile, ...]


@dataclass(frozen=True)
class ShardFolder:
    """A folder with all shards, which every replica can read."""

    folder: Path
    index: ShardIndex

    def path(self, shard: int) -> Path:
        return self.folder / self.index.shards[shard].file


def open_shards(folder: str | os.PathLike[str]) -> ShardFolder:
    """Open a folder that `cut` has written. Raises DataError if its index cannot be read."""
    path = Path(folder) / INDEX
    try:
        index = msgspec.json.decode(path.read_bytes(), type=ShardIndex)
    except FileNotFoundError:
        raise DataError(f"there are no shards in {folder}: it has no {INDEX}; write them with cut(...)") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except msgspec.MsgspecError as error:
        raise DataError(f"{path} is no index of shards: {error}") from None
    width = token_dtype(index.dtype).itemsize
    for shard in index.shards:
        if not NAME.fullmatch(shard.file) or shard.size != width * sum(shard.runs):
            raise DataError(f"{path} does not fit together at {shard.file!r}; write the shards again with cut(...)")
    return ShardFolder(path.parent, index)


def cut(source: Paths, folder: str | os.PathLike[str], shards: int, dtype: str = "uint16") -> ShardIndex:
    """Cut token files into shards of neighbouring tokens, one for each replica, in a new folder.

    The folder appears when it is complete. Its shards can be used with any context; the last tokens of a shard that are
    too few for one are not used.
    """
    target, files = Path(folder), paths_of(source)
    if target.exists():
        raise DataError(f"{target} is there already; remove it, or name another folder for the shards")
    counts = [tokens_in(file, dtype) for file in files]
    if sum(counts) < shards:
        raise DataError(f"{sum(counts):,} tokens cannot be cut into {shards:,} shards; take fewer")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        found = [
            _cut_one(scratch, number, list(_runs(files, counts, tokens)), token_dtype(dtype).itemsize)
            for number, tokens in enumerate(partition(sum(counts), shards))
        ]
        index = ShardIndex(dtype, tuple(found))
        (scratch / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index)))
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return index


def _runs(files: Sequence[Path], counts: Sequence[int], tokens: range) -> Iterator[tuple[Path, int, int]]:
    """(file, first token, end) of each part of a file that is in a range over the tokens of all files."""
    for file, count, end in zip(files, counts, accumulate(counts), strict=True):
        start = end - count
        first, last = max(tokens.start, start), min(tokens.stop, end)
        if first < last:
            yield file, first - start, last - start


def _cut_one(folder: Path, number: int, runs: Sequence[tuple[Path, int, int]], width: int) -> ShardFile:
    path = folder / f"shard-{number:05}"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        chunks = (piece for name, a, b in runs for piece in read_pieces(name, a * width, b * width))
        size, digest = write_pieces(file, path, chunks)
    finally:
        os.close(file)
    done = path.rename(folder / f"{path.name}-{digest[:12]}.bin")
    return ShardFile(done.name, size, digest, tuple(b - a for _, a, b in runs))


def paths_of(source: Paths) -> list[Path]:
    files = [Path(source)] if isinstance(source, (str, os.PathLike)) else [Path(path) for path in source]
    if not files:
        raise DataError("no token file is named; name at least one")
    return files


def token_dtype(dtype: str) -> np.dtype[np.integer]:
    """The little-endian integer type of this name."""
    if dtype not in DTYPES:
        raise DataError(f"tokens cannot be of dtype {dtype!r}; there are {', '.join(DTYPES)}")
    return np.dtype(dtype).newbyteorder("<")


def tokens_in(file: Path, dtype: str) -> int:
    """The number of tokens in a file. Raises DataError if the file is not raw integers of this type."""
    width = token_dtype(dtype).itemsize
    try:
        with file.open("rb") as opened:
            start, size = opened.read(6), file.stat().st_size
    except OSError as error:
        raise DataError(f"token file {file} cannot be read: {error.strerror or error}") from None
    if start == b"\x93NUMPY":
        raise DataError(f"{file} is in numpy's format, with a header; write raw tokens with array.tofile(...)")
    if size == 0 or size % width:
        raise DataError(f"{file} has {size:,} bytes, which is no number of {dtype} tokens of {width} bytes each")
    return size // width
