"""Where results come from while a worker rehearses: no socket, nobody outside of its machine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

from .link import bytes_of
from .ops import Op
from .pairs import Receive, Send
from .recording import Entry, Recording, called
from .signature import signature
from .topology import GroupKey


class Seat(Protocol):
    """A group, as the sandbox sees it."""

    key: GroupKey
    rank: int
    size: int


class Sandbox(Protocol):
    """Answers operations in place of the other roles."""

    def run(self, op: Op, seat: Seat) -> None: ...

    def post(self, seat: Seat, *jobs: Send | Receive) -> None: ...


class Echo:
    """Answers as though every other role had sent what this role sends: values stay in a plausible range."""

    def run(self, op: Op, seat: Seat) -> None:
        fold = op.reduction
        if op.kind in ("all_reduce", "reduce"):
            assert fold is not None
            if fold.kind == dist.ReduceOp.SUM:
                op.outputs[0].mul_(seat.size)
        elif op.kind == "reduce_scatter":
            assert fold is not None
            op.outputs[0].copy_(op.inputs[seat.rank])
            if fold.kind == dist.ReduceOp.SUM:
                op.outputs[0].mul_(seat.size)
        elif op.kind in ("all_gather", "gather"):
            for out in op.outputs:
                out.copy_(op.inputs[0])
        elif op.kind == "scatter":
            if op.inputs:
                op.outputs[0].copy_(op.inputs[seat.rank])
            else:
                op.outputs[0].zero_()
        elif op.kind == "all_to_all":
            for out, sent in zip(op.outputs, op.inputs, strict=True):
                count = min(out.numel(), sent.numel())
                out.zero_()
                out[:count].copy_(sent[:count])

    def post(self, seat: Seat, *jobs: Send | Receive) -> None:
        for job in jobs:
            if isinstance(job, Receive):
                job.tensor.fill_(1)  # torch's pipeline asks by messages whether all shapes are known: 1 is yes
            job.done.set()


class Replay:
    """Answers from a recording. Where the script does something else than what was recorded, that group is answered by
    `otherwise` from there on, and `diverged` says what happened."""

    def __init__(self, recording: Recording, label: Callable[[Seat], str], otherwise: Sandbox) -> None:
        self._recording, self._label, self._otherwise = recording, label, otherwise
        self._lock = threading.Lock()
        self._phase = 0
        self._waiting: dict[tuple[str, int, int], deque[Entry]] = {}
        """(group, peer, tag) → what comes next; collectives have peer and tag -1."""
        self._strayed: set[str] = set()
        self._groups = {entry.group for entry in recording}
        self.diverged = ""
        self.answered = 0
        self._load(0)

    def begin(self, step: int) -> None:
        """A step begins, counted from 1; those after the last that was recorded are answered like that."""
        with self._lock:
            self._check_rest()
            self._load(min(step, self._recording.index.steps))

    def _load(self, phase: int) -> None:
        self._phase = phase
        self._waiting = {}
        for entry in self._recording:
            if entry.phase == phase:
                where = (entry.group, entry.peer, entry.tag) if entry.kind == "recv" else (entry.group, -1, -1)
                self._waiting.setdefault(where, deque()).append(entry)

    def _check_rest(self) -> None:
        for (group, _, _), entries in self._waiting.items():
            if entries and group not in self._strayed:
                left = called(entries[0].kind, entries[0].mark)
                self._stray(group, f"{left} was recorded {self._when} and the script has not called it")

    @property
    def _when(self) -> str:
        return f"in step {self._phase}" if self._phase else "while the model was built"

    def _stray(self, group: str, how: str) -> None:
        self._strayed.add(group)
        self.diverged = self.diverged or f"group {group}: {how}"

    def run(self, op: Op, seat: Seat) -> None:
        if op.kind == "barrier" or not self._answer(seat, op.kind, op.signature, op.outputs, -1, -1):
            self._otherwise.run(op, seat)

    def post(self, seat: Seat, *jobs: Send | Receive) -> None:
        for job in jobs:
            if isinstance(job, Send):
                job.done.set()
                continue
            mark = signature("send", job.tensor.dtype, job.tensor.numel())
            if job.peer is not None and self._answer(seat, "recv", mark, [job.tensor], job.peer, job.tag):
                job.done.set()
            else:
                self._otherwise.post(seat, job)

    def _answer(self, seat: Seat, kind: str, mark: int, outputs: list[torch.Tensor], peer: int, tag: int) -> bool:
        group = self._label(seat)
        with self._lock:
            if group in self._strayed or group not in self._groups:
                return False
            entries = self._waiting.get((group, peer, tag))
            if not entries:
                self._stray(group, f"the script calls {called(kind, mark)} more often than was recorded {self._when}")
                return False
            entry = entries.popleft()
            lengths = tuple(result.length for result in entry.results)
            wanted = tuple(output.numel() * output.element_size() for output in outputs)
            if (entry.kind, entry.mark) != (kind, mark):
                recorded = called(entry.kind, entry.mark)
                self._stray(group, f"{recorded} was recorded where the script calls {called(kind, mark)}")
                return False
            if lengths != wanted:
                self._stray(group, f"{called(kind, mark)}: {lengths} bytes were recorded, the script expects {wanted}")
                return False
        found = [self._recording.data(result) for result in entry.results]
        if any(data is None for data in found):
            return False
        for output, data in zip(outputs, found, strict=True):
            if data is not None and len(data):
                bytes_of(output)[:] = data
        self.answered += 1
        return True
