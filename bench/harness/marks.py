"""Marks: the lines that training scripts write when a step begins and ends (`scripts/marks.py`), read again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import msgspec


class Mark(msgspec.Struct, frozen=True):
    """One line that a training script has written."""

    place: int
    """The role, rank or replica that the line is about."""
    pid: int
    kind: str
    step: int
    at: float
    full: bool = True
    shards: tuple[int, ...] = ()
    """At the end of a step: the micro-shards that this process has computed for it, interrupted attempts included."""


class MarkReader:
    """Reads the marks that scripts append to the files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.marks: list[Mark] = []

    def look(self) -> list[Mark]:
        """All marks so far, ordered by time; an incomplete last line is left for the next call."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(complete)
            self.marks += [msgspec.json.decode(line, type=Mark) for line in complete.splitlines()]
        self.marks.sort(key=lambda mark: mark.at)
        return self.marks

    def ends(self, place: int | None = None) -> list[Mark]:
        """The ends of steps, of one place or of all."""
        return [mark for mark in self.look() if mark.kind == "end" and place in (None, mark.place)]

    def process_of(self, place: int) -> int:
        """The id of the process that ended a step of this place last."""
        return self.ends(place)[-1].pid


def gaps(times: Iterable[float]) -> list[float]:
    """The difference of each time to the next."""
    return [later - earlier for earlier, later in pairwise(list(times))]
