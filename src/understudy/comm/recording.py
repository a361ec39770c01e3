"""Recordings: results that came over the network in the first steps of a job, with which joiners rehearse.

A recording is one file: the results, each content once, and an index behind them. It holds the outputs of collectives
that cross machines and of receives, in the order of each group, for the build of the model and for the steps after it.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import msgspec
import torch
import xxhash

from understudy.device.cpu import HOST

from .links.link import bytes_of
from .ops import describe

log = logging.getLogger("understudy.comm")

_TRAILER = struct.Struct("<Q8s")
_MAGIC = b"understu"
MESSAGES = ("recv", "recv_any")
_SIZES = 1 << 24
"""Results of integers up to this length are kept beyond the limit: sizes and objects, which cannot be made up."""
LOST = -1
"""The offset of a result that was not kept, because the recording had reached its limit."""


class RecordedTensor(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a result: its bytes are at `offset` in the file."""

    offset: int
    length: int


class RecordedOperation(msgspec.Struct, frozen=True, array_like=True):
    """One operation and its results."""

    phase: int
    """0 while the model is built, then the number of the step, from 1."""
    group: str
    kind: str
    mark: int
    """The signature of the operation."""
    peer: int
    tag: int
    """`peer` and `tag` are those of a message. The kind `recv_any` is a receive from any rank; `peer` is the sender."""
    results: tuple[RecordedTensor, ...]


class RecordingIndex(msgspec.Struct, frozen=True):
    """The contents of a recording."""

    key: str
    """Names the program that was recorded: another program is not answered from the recording."""
    role: int
    steps: int
    entries: tuple[RecordedOperation, ...]


class RecordingError(ValueError):
    """A file is no recording, or a recording of another program."""


def called(kind: str, mark: int) -> str:
    """An operation in words, such as `all_reduce(sum) of 4096 float32`."""
    return f"recv {describe(mark).removeprefix('send ')}" if kind in MESSAGES else describe(mark)


class Recorder:
    """Writes a recording to a file while operations run; any thread may call it."""

    def __init__(self, file: IO[bytes], key: str, role: int, limit: int, label: Callable[[Any], str]) -> None:
        self._file, self._key, self._role, self._label = file, key, role, label
        self.limit = limit
        """The size beyond which results are not kept. 0: only sizes and objects are kept, until it is raised."""
        self._lock = threading.Lock()
        self._entries: list[RecordedOperation] = []
        self._known: dict[bytes, RecordedTensor] = {}
        self._hash = xxhash.xxh3_128()
        self._size = 0
        self.phase = 0
        self.spoilt = False
        """Whether the recording is useless, because a result could not be written."""
        self._over = False

    def note(
        self, endpoint: Any, kind: str, mark: int, outputs: Sequence[torch.Tensor], peer: int = 0, tag: int = 0
    ) -> None:
        """Keep the results of an operation. Never raises, since training does not depend on it. Does nothing once the
        recording is complete."""
        with self._lock:
            if self._over or self.spoilt:
                return
            try:
                results, group = tuple(self._keep(output) for output in outputs), self._label(endpoint)
                self._entries.append(RecordedOperation(self.phase, group, kind, mark, peer, tag, results=results))
            except Exception as error:  # the disk is full, the recording was given up, or memory that has no bytes
                self.spoilt = True
                log.warning("%s was not recorded: %s", called(kind, mark), error)

    def _keep(self, output: torch.Tensor) -> RecordedTensor:
        if not self.limit and output.dtype.is_floating_point and output.numel():
            return RecordedTensor(LOST, output.numel() * output.element_size())
        data = bytes_of(HOST.bring(output))
        digest = xxhash.xxh3_128_digest(data)
        known = self._known.get(digest)
        if known is None:
            small = not output.dtype.is_floating_point and len(data) <= _SIZES
            fits = small or self._size + len(data) <= self.limit
            known = RecordedTensor(self._size if fits else LOST, len(data))
            if known.offset != LOST:
                self._write(data)
            self._known[digest] = known
        return known

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._size += len(data)

    def finish(self, steps: int) -> tuple[str, int]:
        """Complete the recording of so many steps; later ones are left out. Returns its digest and its size."""
        with self._lock:
            self._over = True
            entries = tuple(entry for entry in self._entries if entry.phase <= steps)
            index = msgspec.msgpack.encode(RecordingIndex(self._key, self._role, steps, entries))
            self._write(index)
            self._write(_TRAILER.pack(len(index), _MAGIC))
            self._file.flush()
            return self._hash.hexdigest(), self._size


class Recording:
    """A recording to read from. The results stay on disk until they are used."""

    def __init__(self, file: IO[bytes], key: str) -> None:
        try:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            length, magic = _TRAILER.unpack(self._map[-_TRAILER.size :])
            end = len(self._map) - _TRAILER.size
            if magic != _MAGIC or not 0 <= length <= end:
                raise RecordingError("this is no recording")
            self.index = msgspec.msgpack.decode(self._map[end - length : end], type=RecordingIndex)
        except (OSError, ValueError, struct.error, msgspec.MsgspecError, RecursionError) as error:
            raise RecordingError(f"the recording cannot be read: {error}") from error
        if self.index.key != key:
            raise RecordingError("the recording is of another script, mesh or version; it is not used")
        for offset, size in (msgspec.structs.astuple(result) for entry in self for result in entry.results):
            if size < 0 or (offset != LOST and not 0 <= offset <= end - length - size):
                raise RecordingError("the recording is cut short")

    def data(self, result: RecordedTensor) -> memoryview | None:
        """The bytes of a result; None if they were not kept."""
        if result.offset == LOST:
            return None
        return memoryview(self._map)[result.offset : result.offset + result.length]

    def rest(self) -> None:
        """Free the memory that holds parts of the recording, until they are read again."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def __iter__(self) -> Iterator[RecordedOperation]:
        return iter(self.index.entries)


def digest_of(file: IO[bytes]) -> str:
    file.seek(0)
    return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()  # type: ignore[arg-type]  # a file has `readinto`
