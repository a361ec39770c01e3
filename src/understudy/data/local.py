"""A replica's stack of shards on a disk of its own."""

from __future__ import annotations

import os
import shutil
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from understudy.masking.placement import Placement, parse
from understudy.protocol.sentences import counted, named

from .files import CopyingStopped, amount, claim, publish, read_pieces, remove_leftovers, write_pieces
from .sampler import DataError
from .shards import ShardFolder, ShardIndex, open_shards


@dataclass(frozen=True)
class Report:
    """How much of a replica's stack is on its disk."""

    folder: Path
    shards: int
    """The number of shards in the stack."""
    here: int
    """The number of shards that are complete on the disk."""
    size: int
    """Bytes of all shards in the stack."""
    size_here: int
    """Bytes of the shards that are complete on the disk."""
    failed: tuple[DataError, ...]
    """Why shards are missing that the background thread has tried to copy."""

    def __str__(self) -> str:
        sizes = f"{amount(self.size_here)} of {amount(self.size)}"
        problems = "".join(f"; {error}" for error in self.failed)
        return f"{self.here:,} of {counted(self.shards, 'shard')} in {self.folder}, {sizes}{problems}"


class Local:
    """Copies the shards of a replica's stack, its own first, from a folder that `cut` has written to a local folder.

    A thread copies in the background; a shard that is asked for before its turn is copied at once. A file appears when
    it is complete and its digest is right. A shard that is on the disk is not copied again, so several workers of a
    machine may share a folder.
    """

    def __init__(
        self, folder: str | os.PathLike[str], source: str | os.PathLike[str], placement: Placement | str, replica: int
    ) -> None:
        self._folder, self._source = Path(folder), open_shards(source)
        shards = len(self.index.shards)
        self._placement = parse(placement, shards) if isinstance(placement, str) else placement
        self._replica = replica
        if self._placement.replicas != shards:
            raise DataError(
                f"{source} has {counted(shards, 'shard')} and there are {self._placement.replicas:,} replicas; "
                f"cut it into one shard for each replica"
            )
        if not 0 <= replica < shards:
            raise DataError(f"there is no replica {replica}: they are numbered 0 to {shards - 1}")
        self.stack = self._placement.stack(replica)
        """The shards of this replica's stack, its own first."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"folder {folder} for local shards cannot be made: {error.strerror or error}") from None
        remove_leftovers(self._folder)
        self._check_room()
        self._fetching = _Fetching(self._folder, self._source, self.stack)
        self._end = weakref.finalize(self, self._fetching.end)

    @property
    def index(self) -> ShardIndex:
        """Sizes and digests of all shards in the source folder."""
        return self._source.index

    def path(self, shard: int) -> Path:
        """The file of a shard of the stack. Copies the shard first if it is missing."""
        if shard not in self.stack:
            held = f"it holds {named('shard', self.stack)} ({self._placement.name})"
            raise DataError(f"replica {self._replica} does not hold shard {shard}: {held}")
        return self._fetching.fetch(shard)

    def wait(self) -> None:
        """Wait until all shards of the stack are on the disk. Raises DataError if one cannot be copied."""
        for shard in self.stack:
            self.path(shard)

    def report(self) -> Report:
        """How much of the stack is on the disk now."""
        sizes = {shard: self.index.shards[shard].size for shard in self.stack}
        here = [shard for shard in self.stack if (self._folder / self.index.shards[shard].file).exists()]
        failed = tuple(error for shard, error in self._fetching.failed.items() if shard not in here)
        whole, size_here = sum(sizes.values()), sum(sizes[shard] for shard in here)
        return Report(self._folder, len(self.stack), len(here), size=whole, size_here=size_here, failed=failed)

    def close(self) -> None:
        """End the copying and remove incomplete files. Happens at the end of the process at the latest."""
        self._end()

    def _check_room(self) -> None:
        pieces = [self.index.shards[shard] for shard in self.stack]
        missing = sum(piece.size for piece in pieces if not (self._folder / piece.file).exists())
        free = shutil.disk_usage(self._folder).free
        if missing > free:
            raise DataError(
                f"{amount(missing)} of shards are to be copied to {self._folder}, which has {amount(free)} left; "
                f"free some, name another folder, or take a smaller r than {self._placement.r}"
            )


class _Fetching:
    """The thread that copies, and its state. Holds no reference to `Local`, which can be garbage-collected."""

    def __init__(self, folder: Path, source: ShardFolder, stack: tuple[int, ...]) -> None:
        self._folder, self._source, self._stack = folder, source, stack
        self._stop = Event()
        self.failed: dict[int, DataError] = {}
        self._thread = Thread(target=self._run, name="understudy local shards", daemon=True)
        self._thread.start()

    def fetch(self, shard: int) -> Path:
        piece = self._source.index.shards[shard]
        path = self._folder / piece.file
        if path.exists():
            return path
        origin = self._source.path(shard)
        try:
            with claim(path, self._stop) as file:
                if file is not None:
                    _, digest = write_pieces(file, path, read_pieces(origin, 0, piece.size, self._stop))
                    if digest != piece.digest:
                        raise DataError(
                            f"{origin} is not what its index says: digest {digest}, not {piece.digest}; "
                            f"it was changed or damaged, write the shards again with cut(...)"
                        )
                    publish(path)
        except CopyingStopped:
            raise DataError(f"shard {shard} is not in {self._folder}, and copying has been ended") from None
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror or error}") from None
        return path

    def _run(self) -> None:
        for shard in self._stack:
            if self._stop.is_set():
                return
            try:
                self.fetch(shard)
            except DataError as error:
                self.failed[shard] = error

    def end(self) -> None:
        self._stop.set()
        with suppress(RuntimeError):
            self._thread.join()
