"""Files that appear only when they are complete."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import xxhash

from .sampler import DataError

PIECE = 1 << 22
POLL = 0.05
"""Seconds between two checks whether another process has finished a file."""


class CopyingStopped(Exception):
    """Raised when copying was asked to stop."""


def amount(size: int) -> str:
    """A number of bytes as text: `512 bytes`, `1.5 MB`."""
    for unit, power in (("TB", 4), ("GB", 3), ("MB", 2), ("kB", 1)):
        if size >= 1000**power:
            return f"{size / 1000**power:,.1f} {unit}"
    return f"{size:,} bytes"


def write(file: int, piece: memoryview | bytes) -> None:
    """Write all bytes of a piece."""
    view = memoryview(piece)
    while view:
        view = view[os.write(file, view) :]


def write_pieces(file: int, path: Path, pieces: Iterable[memoryview | bytes]) -> tuple[int, str]:
    """Write pieces to a file and flush it to the disk. Returns (bytes, digest)."""
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


def read_pieces(source: Path, first: int, end: int, stop: Event | None = None) -> Iterator[bytes]:
    """Bytes `first` to `end` of a file, in pieces."""
    try:
        with source.open("rb") as file:
            file.seek(first)
            while first < end:
                if stop is not None and stop.is_set():
                    raise CopyingStopped
                piece = file.read(min(PIECE, end - first))
                if not piece:
                    raise DataError(f"{source} ends after {amount(first)} of {amount(end)}; is it still being written?")
                first += len(piece)
                yield piece
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror or error}") from None


def partial_path(path: Path) -> Path:
    """The path of a file while it is incomplete."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def claim(path: Path, stop: Event) -> Iterator[int | None]:
    """Open a locked file for writing, which `publish` turns into `path`; None if another process has published `path`.

    The lock ends with the process that holds it, so the file of a killed process is taken over. At the end of the block
    a file that was not published is removed.
    """
    part = partial_path(path)
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
            raise CopyingStopped
    yield None


def publish(path: Path) -> None:
    """Give the complete file its final name."""
    partial_path(path).rename(path)


def remove_leftovers(folder: Path) -> None:
    """Remove the incomplete files of processes that were killed."""
    for part in folder.glob(".*.part"):
        with suppress(OSError), part.open("r+b") as file:
            if _locked(file.fileno(), part):
                part.unlink()


def _locked(file: int, part: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return _is(file, part)  # otherwise the process that had the lock has removed or published the file


def _is(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
