"""The progress of a benchmark: a bar on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows how much is done and how long the rest takes.

    Set `total`, then call `advance` after each unit of work. The bar is drawn once a second: drawing costs processor
    time, which the benchmark measures.
    """

    def __init__(
        self,
        title: str,
        console: Console,
        *,
        clock: Callable[[], float] = time.monotonic,
        seconds_between_lines: float = 5.0,
    ) -> None:
        self._title = title
        self._console = console
        self._clock = clock
        self._seconds_between_lines = seconds_between_lines
        self._start = clock()
        self._last_line = float("-inf")
        self._total: int | None = None
        self._done = 0
        self._bar: Bar | None = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.fields[title]}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left", style="dim"),
                TimeRemainingColumn(),
                TextColumn("{task.description}", markup=False),
            )
            self._bar = Bar(*columns, console=console, refresh_per_second=1, transient=True)
            self._task = self._bar.add_task("", total=None, title=title)

    @property
    def total(self) -> int | None:
        """Number of units of work; None: not known yet."""
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        self._total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def advance(self, label: str) -> None:
        """Count one more unit as done; `label` says which."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=label)
            return
        now = self._clock()
        if now - self._last_line >= self._seconds_between_lines:
            self._last_line = now
            self._console.print(self._line(label, now - self._start), markup=False, highlight=False, soft_wrap=True)

    def _line(self, label: str, elapsed: float) -> str:
        if self._total is None:
            return f"{self._title}: {self._done} done, {_clock_time(elapsed)} elapsed, {label}"
        left = elapsed / self._done * max(self._total - self._done, 0)
        times = f"{_clock_time(elapsed)} elapsed, {_clock_time(left)} left"
        return f"{self._title}: {self._done}/{self._total}, {times}, {label}"

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
