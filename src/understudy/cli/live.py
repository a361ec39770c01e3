"""The live screen of a running job: progress, machines, events, and the last lines of output."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from understudy.cli.status import clock, headline

STYLES = {
    "active": "green",
    "standby": "cyan",
    "leaving": "yellow",
    "parked": "yellow",
    "quarantined": "red",
    "gone": "dim",
}
LOUD = {
    "halt": "bold red",
    "lost": "red",
    "died": "red",
    "failed": "bold red",
    "settled": "bold green",
    "masked": "yellow",
    "notice": "yellow",
    "late": "yellow",
}
EVENTS, LINES, BARS = 6, 8, 8


def screen(
    job: dict[str, Any],
    machines: Sequence[dict[str, Any]],
    events: Sequence[dict[str, Any]],
    lines: Sequence[str],
    bars: Iterable[str] = (),
) -> RenderableType:
    """The whole screen, from the controller's views and events and the workers' output. `bars` are the present states
    of progress bars."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for machine in machines:
        roles = " ".join(str(role) for role in machine["roles"])
        style = STYLES.get(machine["state"], "")
        table.add_row(
            Text(machine["name"], style="bold"),
            Text(machine["state"], style=style),
            Text(f"role {roles}" if roles else machine["why"], style=style),
        )
    parts: list[RenderableType] = [Text(headline(job), style="bold"), table]
    if events:
        parts.append(Rule(style="dim"))
        parts += [
            Text(f"{clock(event.get('at') or time.time())}  {event['text']}", style=LOUD.get(event["kind"], ""))
            for event in list(events)[-EVENTS:]
        ]
    if lines:
        parts.append(Rule(style="dim"))
        parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in list(lines)[-LINES:]]
    parts += [Text(bar, no_wrap=True, overflow="ellipsis") for bar in list(bars)[-BARS:]]
    return Group(*parts)


class LiveScreen(Live):
    """Keeps the screen up to date while the job runs; the last state stays on the terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console=console, refresh_per_second=8)
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._lines: deque[str] = deque(maxlen=LINES)
        self._bars: dict[str, str] = {}
        """By writer: the present state of its progress bar."""
        self._job: dict[str, Any] = {}
        self._machines: list[dict[str, Any]] = []

    def event(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        self._draw()

    def line(self, text: str) -> None:
        self._lines.append(text)
        self._bars.pop(_writer(text), None)  # its last state is this line, or it is drawn again below this line
        self._draw()

    def bar(self, text: str) -> None:
        """The state of a progress bar has changed; an empty state removes the bar."""
        self._bars.pop(_writer(text), None)
        if text.partition("] ")[2].strip():
            self._bars[_writer(text)] = text
        self._draw()

    def view(self, job: dict[str, Any], machines: list[dict[str, Any]]) -> None:
        self._job, self._machines = job, machines
        self._draw()

    def _draw(self) -> None:
        if self._job:
            self.update(screen(self._job, self._machines, self._events, self._lines, self._bars.values()))


def _writer(text: str) -> str:
    """The machine and the role that have written a line."""
    return text.partition("] ")[0]
