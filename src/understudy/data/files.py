"""Files that are there as a whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import xxhash

from .errors import DataError, amount

PIECE = 1 << 22
POLL = 0.05
"""Seconds between two looks whether another process has finished with a file."""


class Stopped(Exception):
    """Somebody asked to stop."""


def write(file: int, piece: memoryview | bytes) -> None:
    """All of it."""
    view = memoryview(piece)
    while view:
        view = view[os.write(file, view) :]


def written(file: int, path: Path, pieces: Iterable[memoryview | bytes]) -> tuple[int, str]:
    """(bytes, digest) of what has been written and is on the disk."""
    size, hashed = 0, xxhash.xxh3_128()
    try:
        for piece in pieces:
            write(file, piece)
            hashed.update(piece)
            size += len(piece)
        os.fsync(file)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            room = f"no space is left in {path.parent} after {amount(size)} of {path.name}"
            raise DataError(f"{room}; free some, or name another folder") from None
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None
    return size, hashed.hexdigest()


def pieces_of(source: Path, first: int, end: int, stop: Event | None = None) -> Iterator[bytes]:
    """Bytes `first` to `end` of a file."""
    try:
        with source.open("rb") as file:
            file.seek(first)
            while first < end:
                if stop is not None and stop.is_set():
                    raise Stopped
                piece = file.read(min(PIECE, end - first))
                if not piece:
                    raise DataError(f"{source} ends after {amount(first)} of {amount(end)}; is it still being written?")
                first += len(piece)
                yield piece
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror or error}") from None


def part_of(path: Path) -> Path:
    """Where a file is while it is not complete."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def claimed(path: Path, stop: Event) -> Iterator[int | None]:
    """A file to write to that nobody else writes to, to become `path` with `keep`; None if `path` is there meanwhile.

    Its lock goes with the process that holds it, so what a process that was killed has left behind is taken over. What
    has not become `path` when the block is left is removed.
    """
    part = part_of(path)
    while not path.exists():
        file = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if _locked(file, part):
                try:
                    os.ftruncate(file, 0)
                    yield None if path.exists() else file
                finally:
                    if _is(file, part):
                        part.unlink()
                return
        finally:
            os.close(file)
        if stop.wait(POLL):
            raise Stopped
    yield None


def keep(path: Path) -> None:
    """What has been written becomes the file."""
    part_of(path).rename(path)


def sweep(folder: Path) -> None:
    """Remove what processes that were killed have left behind."""
    for part in folder.glob(".*.part"):
        with suppress(OSError):
            file = os.open(part, os.O_RDWR)
            try:
                if _locked(file, part):
                    part.unlink()
            finally:
                os.close(file)


def _locked(file: int, part: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return _is(file, part)  # else whoever had the lock has finished with it


def _is(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
