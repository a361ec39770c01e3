"""Marks: a line for each begin and end of a step, with the wall clock, written at once, for benchmarks that kill."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Marks:
    """Writes the marks of one process. Without a folder, nothing is written."""

    def __init__(self, folder: str, place: int) -> None:
        self._place = place
        self._file = None
        self._step = -1
        self._shards: list[int] = []
        if folder:
            self._file = os.open(Path(folder) / f"{place}-{os.getpid()}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    @property
    def open(self) -> bool:
        return self._file is not None

    def begin(self, step: int) -> None:
        """Note the begin of a step, or that it begins again: its micro-shards computed before still count."""
        if step != self._step:
            self._step, self._shards = step, []
        self._write("begin", step)

    def shard(self, number: int) -> None:
        """Note a computed micro-shard; it is written with the step's end."""
        self._shards.append(number)

    def end(self, step: int, *, full: bool = True) -> None:
        """Note the end of a step; `full`: all places took part in it."""
        self._write("end", step, full, self._shards)

    def drop(self, step: int) -> None:
        """Note that the step's work was discarded."""
        self._write("drop", step)

    def _write(self, kind: str, step: int, full: bool = True, shards: list[int] | None = None) -> None:
        if self._file is not None:
            entry = {
                "place": self._place,
                "pid": os.getpid(),
                "kind": kind,
                "step": step,
                "at": time.time(),
                "full": full,
                "shards": shards or [],
            }
            os.write(self._file, json.dumps(entry).encode() + b"\n")
