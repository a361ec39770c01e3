"""Ring: each piece travels round the cells once, growing into the full sum, and a second time as the result.

Bandwidth-optimal. Partial sums live in scratch memory, so the caller's tensors are overwritten by results only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from understudy.comm.links.channel import PIECE, SEGMENT, Channel
from understudy.comm.links.link import bytes_of
from understudy.comm.native.arena import ArenaRounds
from understudy.comm.ops import Reduction


class Window(NamedTuple):
    """One segment per cell, by place on the ring: this worker's contribution, and the memory for the finished one.

    Without a gather only this worker's own `out` is used; without a reduction `own` is unused.
    """

    own: Sequence[torch.Tensor]
    out: Sequence[torch.Tensor]


def even_windows(value: torch.Tensor, cells: int, itemsize: int) -> Iterator[Window]:
    """Cut a flat tensor into windows of one bounded segment per cell; results replace contributions."""
    total = value.numel()
    width = cells * (SEGMENT // itemsize)
    for low in range(0, total, width):
        high = min(low + width, total)
        step = -(-(high - low) // cells)
        cuts = [value[min(low + c * step, high) : min(low + (c + 1) * step, high)] for c in range(cells)]
        yield Window(cuts, cuts)


class _Step(NamedTuple):
    """What to do with the next incoming segment: add to it or take it, and whether it ends here."""

    own: torch.Tensor | None
    out: torch.Tensor | None
    memory: memoryview | None
    """Of `out`, if there is one."""
    last: bool


class _Run:
    """One pass over the windows. The order of the outgoing stream is fixed: own segment, partial sums, own finished
    segment, finished segments of other cells. Each item but the first depends on one that came in a segment earlier, so
    the stream never stalls and needs scratch for one segment and a piece."""

    def __init__(self, channel: Channel, rail: int, windows: Iterator[Window], fold: Reduction | None, gather: bool):
        _, link_in, link_out = next(entry for entry in channel.rails if entry[0] == rail)
        self.m, self.p = channel.cells, channel.place
        self.fold, self.gather = fold, gather
        self.windows = windows
        self.channel = channel
        self.outlet = channel.outlet(link_out, self._sent)
        self.inlet = channel.inlet(link_in, self._filled)
        self.tokens: deque[int | None] = deque()
        if fold is not None:
            self.item = fold.acc.itemsize
            self.piece = PIECE // self.item
            count = SEGMENT // PIECE + 1
            block = channel.scratch.take("ring", count * PIECE).view(fold.acc)
            self.buffers = [block[i * self.piece : (i + 1) * self.piece] for i in range(count)]
            self.memories = [bytes_of(buffer) for buffer in self.buffers]
            self.free = deque(range(count))
        self.raw_parity = 0
        self.script: Iterator[tuple[_Step, int, int]] = self._incoming()
        self.current: tuple[_Step, int, int, int | None] | None = None
        self.stalled: tuple[_Step, int, int] | None = None

    def run(self) -> None:
        self._next()
        self.channel.pump([self.inlet], [self.outlet])

    def _incoming(self) -> Iterator[tuple[_Step, int, int]]:
        """Every piece that will come in, in order. Sends segments that depend on no other when it is their turn."""
        m, p, acc = self.m, self.p, None if self.fold is None else self.fold.acc.itemsize
        window = next(self.windows, None)
        if window is not None:
            self._send_first(window)
        while window is not None:
            following = next(self.windows, None)
            if acc is not None:
                for t in range(m - 1):
                    own, last = window.own[(p - 2 - t) % m], t == m - 2
                    out = window.out[p] if last else None
                    step = _Step(own, out, None if out is None else bytes_of(out), last)
                    for low in range(0, own.numel(), self.piece):
                        yield step, low, min(low + self.piece, own.numel())
            if following is not None and (m == 2 or not self.gather):
                self._send_first(following)
            for t in range(m - 1) if self.gather else ():
                memory, last = bytes_of(window.out[(p - 1 - t) % m]), t == m - 2
                if last and m > 2 and following is not None:
                    self._send_first(following)
                width = max(1, len(memory)) if last else PIECE
                for low in range(0, len(memory), width):
                    yield _Step(None, None, memory, last), low, min(low + width, len(memory))
            window = following

    def _send_first(self, window: Window) -> None:
        if self.fold is None:
            self._send(bytes_of(window.out[self.p]), None)
            return
        segment = window.own[(self.p - 1) % self.m]
        if segment.dtype != self.fold.acc:
            self.raw_parity ^= 1
            block = self.channel.scratch.take(f"raw{self.raw_parity}", SEGMENT).view(self.fold.acc)
            segment = block[: segment.numel()].copy_(segment)
        self._send(bytes_of(segment), None)

    def _send(self, data: memoryview, token: int | None) -> None:
        if len(data):
            self.tokens.append(token)
            self.outlet.push(data)

    def _sent(self) -> None:
        token = self.tokens.popleft()
        if token is not None:
            self.free.append(token)
            if self.stalled is not None:
                todo, self.stalled = self.stalled, None
                self._expect(*todo)

    def _next(self) -> None:
        todo = next(self.script, None)
        if todo is not None:
            self._expect(*todo)

    def _expect(self, step: _Step, low: int, high: int) -> None:
        if step.own is None:
            assert step.memory is not None
            self.current = (step, low, high, None)
            self.inlet.push(step.memory[low:high])
        elif self.free:
            token = self.free.popleft()
            self.current = (step, low, high, token)
            self.inlet.push(self.memories[token][: (high - low) * self.item])
        else:
            self.stalled = (step, low, high)

    def _filled(self) -> None:
        assert self.current is not None
        step, low, high, token = self.current
        if step.own is None:
            if not step.last:
                assert step.memory is not None
                self._send(step.memory[low:high], None)
        else:
            assert self.fold is not None
            assert token is not None
            partial = self.buffers[token][: high - low]
            if step.out is None:
                self.fold.accumulate(partial, step.own[low:high])
                self._send(self.memories[token][: (high - low) * self.item], token)
            else:
                self.fold.complete(partial, step.own[low:high], step.out[low:high])
                self.free.append(token)
                if self.gather:
                    assert step.memory is not None
                    size = step.out.element_size()
                    self._send(step.memory[low * size : high * size], None)
        self._next()


def ring(channel: Channel, rail: int, windows: Iterator[Window], fold: Reduction | None, *, gather: bool) -> None:
    """Reduce-scatter (fold only), all-gather (gather only) or all-reduce (both) over the cells' rail."""
    _Run(channel, rail, windows, fold, gather).run()


def rows_of(channel: Channel, arena: ArenaRounds, itemsize: int) -> tuple[list[int], int, int]:
    """For windows with one row per live rank, cell by cell, so that a cell's rows are one stretch of memory: the ranks
    of the rows, this worker's row, and the elements of a row that fit the arena."""
    layout = channel.layout
    rows = [rank for cell in layout.alive for rank in layout.members[cell]]
    width = arena.bytes // itemsize // len(rows)
    if width == 0:
        raise ValueError(f"rows of {len(rows)} roles do not fit an arena slot of {arena.bytes} bytes")
    return rows, rows.index(channel.rank), width


def segments(channel: Channel, rows: torch.Tensor, span: int) -> list[torch.Tensor]:
    """The rows of each live cell, as `rows_of` orders them."""
    found, low = [], 0
    for cell in channel.layout.alive:
        high = low + span * len(channel.layout.members[cell])
        found.append(rows[low:high])
        low = high
    return found
