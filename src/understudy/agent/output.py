"""What a worker writes, line by line: a progress bar is one line that changes, not a line for each of its states."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import re
import termios
from collections.abc import Callable
from typing import Literal, NamedTuple

LONGEST_LINE = 1 << 16
_SETTLE_S = 0.2
"""Time after which a bar's newline is taken for the end of its line: the cursor moves up at once, if it does."""
_TOKENS = re.compile(rb"(\r?\n|\r|\x1b\[A)")
_UP = b"\x1b[A"
"""Moves the cursor up: a bar below another one goes back to that one's line."""
_PART = re.compile(rb"\x1b\[?\Z")
"""The beginning of an escape sequence, of which the rest has not come yet."""

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[bytes, Stream], object]


class Bars(NamedTuple):
    """What happens to progress bars: `show` gets the present text of a line that is still changing, at most once in
    this many seconds."""

    show: OnOutput
    seconds: float


class OutputLines:
    """Cuts a stream of bytes into lines without their newlines; a line has at most LONGEST_LINE bytes.

    With `bars`, a carriage return takes back what its line has so far: the line is what was written last. A newline
    after which the cursor moves up again, as bars below one another do it, ends no line."""

    def __init__(self, *, bars: bool = False) -> None:
        self._bars = bars
        self._rest = b""
        """Bytes that may be the beginning of an escape sequence."""
        self._row = bytearray()
        """What was written since the last newline, carriage return or move."""
        self._shown = b""
        """What a carriage return has taken back."""
        self._changing = False
        """Whether the line has been taken back at least once."""
        self._held: bytes | None = None
        """The last state of a bar, which is a line unless the cursor moves up again."""
        self._below = 0
        """The number of newlines since."""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete with these bytes."""
        lines: list[bytes] = []
        if not self._bars:
            first, *others = data.split(b"\n")
            self._write(first, lines)
            for part in others:
                self._end_line(lines)
                self._write(part, lines)
            return lines
        data = self._rest + data
        cut = _PART.search(data)
        self._rest = cut.group() if cut else b""
        data = data.removesuffix(self._rest)
        for token in _TOKENS.split(data):
            match token:
                case b"\n" | b"\r\n":
                    self._newline(lines)
                case b"\r":
                    self._return(lines)
                case _ if token == _UP:
                    self._up()
                case _ if token:
                    if not self._changing:
                        self._release(lines)
                    self._write(token, lines)
        return lines

    @property
    def ended(self) -> bool:
        """Whether a bar has come to the end of its line, unless the cursor moves up again soon."""
        return self._held is not None

    def settle(self) -> list[bytes]:
        """The line of a bar that has ended: the cursor has not moved up again."""
        lines: list[bytes] = []
        self._release(lines)
        return lines

    def end(self) -> list[bytes]:
        """What is left at the end of the stream."""
        lines = self.settle()
        self._row += self._rest
        if last := self._text():
            lines.append(last)
        self._row, self._shown, self._rest, self._changing = bytearray(), b"", b"", False
        return lines

    @property
    def state(self) -> bytes:
        """The present text of a progress bar; empty if there is none."""
        return self._text() if self._changing else b""

    def _text(self) -> bytes:
        return bytes(self._row) if self._row.strip() or not self._changing else self._shown

    def _write(self, text: bytes, lines: list[bytes]) -> None:
        self._row += text
        while len(self._row) > LONGEST_LINE:
            if not self._changing:
                lines.append(bytes(self._row[:LONGEST_LINE]))
            del self._row[:LONGEST_LINE]

    def _end_line(self, lines: list[bytes]) -> None:
        lines.append(self._text())
        self._row, self._shown, self._changing = bytearray(), b"", False

    def _newline(self, lines: list[bytes]) -> None:
        if self._held is not None and not self._row and not self._changing:
            self._below += 1
            return
        self._release(lines)
        if self._changing:
            self._held, self._below = self._text(), 1
            self._row, self._shown, self._changing = bytearray(), b"", False
        else:
            self._end_line(lines)

    def _return(self, lines: list[bytes]) -> None:
        if self._changing:
            self._release(lines)
        if self._row.strip():
            self._shown = bytes(self._row)
        self._row, self._changing = bytearray(), True

    def _up(self) -> None:
        if self._held is not None:
            self._below -= 1
            if not self._below:
                self._shown, self._held = self._text() or self._held, None
                self._row, self._changing = bytearray(), True

    def _release(self, lines: list[bytes]) -> None:
        """The held state is a line, since the cursor has not moved up to it."""
        if self._held is not None:
            lines += [self._held] + [b""] * (self._below - 1)
            self._held = None


class OutputPipe:
    """The reading end of a worker's stdout or stderr. Closed when the stream ends or the worker does."""

    def __init__(self, fd: int, stream: Stream, on_output: OnOutput, bars: Bars | None) -> None:
        self._fd, self._stream, self._on_output, self._bars = fd, stream, on_output, bars
        self._lines = OutputLines(bars=bars is not None)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._read)
        self._due: asyncio.TimerHandle | None = None
        """When the state of a bar is shown next."""
        self._settling: asyncio.TimerHandle | None = None
        self._state = b""
        """The state that was shown last."""

    def _read(self) -> int:
        try:
            data = os.read(self._fd, LONGEST_LINE)
        except BlockingIOError:
            return 0
        self._deliver(self._lines.feed(data))
        if not data:
            self.close()
        elif self._bars is not None:
            if self._due is None and self._lines.state:
                self._due = self._loop.call_later(self._bars.seconds, self._show_state, self._bars)
            if self._settling is None and self._lines.ended:
                self._settling = self._loop.call_later(_SETTLE_S, self._settle)
        return len(data)

    def _settle(self) -> None:
        self._settling = None
        self._deliver(self._lines.settle())

    def _show_state(self, bars: Bars) -> None:
        self._due = None
        state = self._lines.state
        if state and state != self._state:
            self._state = state
            self._call(bars.show, state)

    def drain(self) -> None:
        """Deliver what a dead worker left in the pipe, without waiting for other processes that may still write."""
        if self._fd >= 0:
            left = array.array("i", [0])
            fcntl.ioctl(self._fd, termios.FIONREAD, left)
            due = left[0]
            while due > 0 and (got := self._read()):
                due -= got
            self.close()

    def close(self) -> None:
        for timer in filter(None, (self._due, self._settling)):
            timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._deliver(self._lines.end())

    def _deliver(self, lines: list[bytes]) -> None:
        for line in lines:
            self._call(self._on_output, line)

    def _call(self, listener: OnOutput, line: bytes) -> None:
        try:
            listener(line, self._stream)
        except Exception as error:
            self._loop.call_exception_handler({"message": "on_output failed", "exception": error})
