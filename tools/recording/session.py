"""Programs in pseudo-terminals, with the time of every line they write."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .svg import Pane
from .terminal import Line, parse

LIMIT_S = 300.0
LONGEST_PAUSE_S = 1.0


class Terminal:
    """One terminal, in which one program runs after the other."""

    def __init__(self, title: str, rows: int, columns: int, folder: Path, env: dict[str, str]) -> None:
        self.title, self.rows, self.columns = title, rows, columns
        self._folder, self._env = folder, {**env, "TERM": "xterm-256color", "COLUMNS": str(columns)}
        self._written: list[tuple[float, str]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    @property
    def text(self) -> str:
        return "".join(text for _, text in self._written)

    def begin(self, words: Sequence[str], shown: str) -> None:
        """Start a program; `shown` is the command line that the picture shows."""
        self._written.append((time.monotonic(), f"\x1b[1m$ {shown}\x1b[0m\n"))
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))
        self._process = subprocess.Popen(
            words, cwd=self._folder, env=self._env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()

    def until(self, words: str) -> None:
        """Wait until the terminal shows these words."""
        deadline = time.monotonic() + LIMIT_S
        assert self._process is not None
        while words not in self.text:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{words!r} did not appear; the terminal shows:\n{self.text}")
            time.sleep(0.02)

    def end(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait(LIMIT_S)
        self._reader.join(5)
        return code

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _read(self, fd: int) -> None:
        while True:
            try:
                data = os.read(fd, 1 << 16)
            except OSError:  # the last program on this terminal has ended
                data = b""
            if not data:
                os.close(fd)
                return
            self._written.append((time.monotonic(), data.decode(errors="replace")))

    def timed_lines(self, marks: Mapping[str, str]) -> list[tuple[float, Line]]:
        """Each line with the time at which it was complete. `marks`: words → style of the lines that contain them."""
        text, moments = "", []
        for when, part in self._written:
            moments += [when] * part.count("\n")
            text += part
        found: list[tuple[float, Line]] = []
        name = self._folder.as_posix()
        for when, line in zip(moments, text.replace(name, "~").split("\n"), strict=False):
            style = next((style for words, style in marks.items() if words in line and "$" not in line), "")
            found += [(when, _marked(each, style)) for each in parse(line, self.columns)]
        return found


def _marked(line: Line, style: str) -> Line:
    return tuple(piece._replace(style=piece.style or style) for piece in line)


def panes(terminals: Sequence[Terminal], marks: Mapping[str, str]) -> list[Pane]:
    """The terminals on one clock with pauses cut to a second; each shows its last lines at the end."""
    lines = [terminal.timed_lines(marks) for terminal in terminals]
    moments = sorted({when for each in lines for when, _ in each})
    clock, now, before = {}, 0.5, moments[0]
    for when in moments:
        now += min(when - before, LONGEST_PAUSE_S)
        clock[when], before = now, when
    return [
        Pane(terminal.title, terminal.rows, [(clock[when], line) for when, line in each])
        for terminal, each in zip(terminals, lines, strict=True)
    ]
