"""When a training script begins and ends its steps, by the wall clock, for `bench failure`: each line at once."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Marks:
    """A process's own file. Without a folder nothing is written."""

    def __init__(self, folder: str, place: int) -> None:
        self._place = place
        self._file = None
        if folder:
            self._file = os.open(Path(folder) / f"{place}-{os.getpid()}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    @property
    def open(self) -> bool:
        return self._file is not None

    def begin(self, step: int) -> None:
        self._write("begin", step)

    def end(self, step: int, *, full: bool = True) -> None:
        """The step counts; `full`: everybody took part in it."""
        self._write("end", step, full)

    def drop(self, step: int) -> None:
        """The step's work was thrown away."""
        self._write("drop", step)

    def _write(self, kind: str, step: int, full: bool = True) -> None:
        if self._file is not None:
            entry = {
                "place": self._place,
                "pid": os.getpid(),
                "kind": kind,
                "step": step,
                "at": time.time(),
                "full": full,
            }
            os.write(self._file, json.dumps(entry).encode() + b"\n")
