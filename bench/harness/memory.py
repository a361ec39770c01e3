"""The memory of processes, as the kernel counts it.

Peaks are the kernel's own high-water marks, so that nothing is missed between two samples. Pages that are mapped from
files (code, which is read when it first runs) do not count; private and shared memory do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

PERIOD_S = 0.02
RETURN_FREED = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
"""An environment in which the allocator returns large blocks to the kernel at once. By default it keeps some of the
freed memory: between two steps of one process, up to the size of all gradients."""


def sizes_in(lines: Iterable[str]) -> dict[str, int]:
    """Parse `status` or `smaps_rollup` of a process: name → bytes."""
    found = {}
    for line in lines:
        name, _, rest = line.partition(":")
        if rest.endswith("kB\n"):
            found[name] = int(rest.split()[0]) * 1024
    return found


# -- at one moment -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Bytes that a process holds."""

    own: int
    """Pages that no other process maps."""
    resident: int
    """All pages in memory, those shared with other processes included (such as torch's code)."""


def memory_in(lines: Iterable[str]) -> Memory:
    """Parse `smaps_rollup`."""
    sizes = sizes_in(lines)
    return Memory(sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Rss"])


def memory_of(pid: int) -> Memory:
    with Path(f"/proc/{pid}/smaps_rollup").open() as file:
        return memory_in(file)


# -- over time ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resident:
    """The resident memory of one process, in bytes."""

    now: int
    peak: int
    """Since the high-water mark was last reset."""
    files: int

    @property
    def own_peak(self) -> int:
        return self.peak - self.files


def resident_in(lines: Iterable[str]) -> Resident:
    """Parse `status`."""
    sizes = sizes_in(lines)
    return Resident(sizes["RssAnon"] + sizes["RssShmem"], sizes["VmHWM"], sizes["RssFile"])


@dataclass
class WatchedProcess:
    """A worker's process and the samples of its memory."""

    part: str
    """The process's part in the change: "stayer", "leaver", "joiner"."""
    pid: int
    last: Resident | None = None
    times: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def reset(self) -> None:
        """Reset the kernel's high-water mark."""
        with suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def sample(self, now: float) -> None:
        """Take one sample; none if the process has ended."""
        with suppress(OSError, KeyError), Path(f"/proc/{self.pid}/status").open() as file:
            self.last = resident_in(file)
            self.times.append(now)
            self.bytes.append(self.last.now)

    def curve(self, zero: float, marks: Mapping[str, float]) -> dict[str, object]:
        """All samples and some named moments, in seconds from the time `zero`."""
        return {
            "seconds": [round(at - zero, 3) for at in self.times],
            "bytes": self.bytes,
            "marks": {name: round(at - zero, 3) for name, at in marks.items()},
        }


class Sampler:
    """Samples the memory of processes every 20 ms, in a thread of its own, while the context lasts."""

    def __init__(self, watched: Sequence[WatchedProcess]) -> None:
        self.watched = watched
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(PERIOD_S):
            now = time.time()
            for each in self.watched:
                each.sample(now)

    def window(self) -> dict[int, Resident]:
        """The last sample of each process, by process id; then reset the high-water marks."""
        found = {each.pid: each.last for each in self.watched if each.last is not None}
        for each in self.watched:
            each.reset()
        return found
