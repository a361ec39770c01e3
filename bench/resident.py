"""The resident memory of processes over time. Its peak is the kernel's own high-water mark, so that nothing is missed
between two looks. What is mapped from files (code, which is read when it is first run) is left out; private memory and
shared memory are both in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

PERIOD_S = 0.02


@dataclass(frozen=True)
class Resident:
    """Of one process, in bytes."""

    now: int
    peak: int
    """Since the mark was last reset."""
    files: int

    @property
    def own_peak(self) -> int:
        return self.peak - self.files


def sizes_in(lines: Iterable[str]) -> dict[str, int]:
    """Name → bytes, as the kernel tells them of a process."""
    found = {}
    for line in lines:
        name, _, rest = line.partition(":")
        if rest.endswith("kB\n"):
            found[name] = int(rest.split()[0]) * 1024
    return found


def resident_in(lines: Iterable[str]) -> Resident:
    """From `status`."""
    sizes = sizes_in(lines)
    return Resident(sizes["RssAnon"] + sizes["RssShmem"], sizes["VmHWM"], sizes["RssFile"])


@dataclass
class Watched:
    """A worker's process, and what was seen of it."""

    part: str
    pid: int
    last: Resident | None = None
    times: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def reset(self) -> None:
        """The high-water mark begins anew."""
        with suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def look(self, now: float) -> None:
        with suppress(OSError, KeyError), Path(f"/proc/{self.pid}/status").open() as file:  # it may have gone
            self.last = resident_in(file)
            self.times.append(now)
            self.bytes.append(self.last.now)

    def curve(self, zero: float, marks: Mapping[str, float]) -> dict[str, object]:
        return {
            "seconds": [round(at - zero, 3) for at in self.times],
            "bytes": self.bytes,
            "marks": {name: round(at - zero, 3) for name, at in marks.items()},
        }


class Sampler:
    """Looks at some processes every few milliseconds, in a thread of its own, for as long as the context lasts."""

    def __init__(self, watched: Sequence[Watched]) -> None:
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
                each.look(now)

    def window(self) -> dict[int, Resident]:
        """What was last seen of each, before it begins anew."""
        found = {each.pid: each.last for each in self.watched if each.last is not None}
        for each in self.watched:
            each.reset()
        return found
