"""Sandboxes: the sources of results while a worker rehearses, without other machines and without a socket."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

from understudy.device.cpu import HOST

from .links.link import bytes_of
from .links.pairs import Receive, Send
from .ops import FLOATS, Op, Reduction, signature
from .recording import MESSAGES, RecordedOperation, Recording, called
from .topology import GroupKey

_NO_STEP = -1
_LARGEST = 1 << 31
"""Integers beyond this are no sizes of a rehearsal: memory that was allocated and never written looks like that."""


class Unanswered(RuntimeError):
    """A rehearsal ends, because it needs objects that only other roles have."""


class ObjectExchange:
    """A collective of Python objects that runs in a rehearsal: sizes and pickles, neither of which can be made up."""

    def __init__(self, *, alone: bool = False) -> None:
        self.alone = alone
        """Whether this role's object stands for those of all roles, and the recording is left aside."""
        self.unknown = False
        """Whether a part was needed that no recording has; it is zero then."""


class SandboxSeat(Protocol):
    """This worker's place in a group, for a sandbox."""

    key: GroupKey
    rank: int
    size: int
    exchange: ObjectExchange | None


class Sandbox(Protocol):
    """Answers operations in place of the other roles."""

    def run(self, op: Op, seat: SandboxSeat) -> None: ...

    def post(self, seat: SandboxSeat, *jobs: Send | Receive) -> None: ...


class Echo:
    """Answers as though every other role had sent what this role sends: values stay in a plausible range."""

    def run(self, op: Op, seat: SandboxSeat) -> None:
        exchange = seat.exchange
        if exchange is not None and not exchange.alone and not _gives(op, seat):
            _leave_unknown(exchange, op.outputs)
        elif op.kind in ("all_reduce", "reduce"):
            _sum(op.outputs[0], op.fold, seat.size)
        elif op.kind == "reduce_scatter":
            op.outputs[0].copy_(op.inputs[seat.rank])
            _sum(op.outputs[0], op.fold, seat.size)
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
        elif op.kind == "broadcast" and op.root != seat.rank:
            _make_plausible(op.outputs[0])

    def post(self, seat: SandboxSeat, *jobs: Send | Receive) -> None:
        for job in jobs:
            if isinstance(job, Receive) and seat.exchange is not None:
                _leave_unknown(seat.exchange, [job.tensor])
            elif isinstance(job, Receive):
                job.tensor.fill_(1)  # torch's pipeline asks by messages whether all shapes are known: 1 is yes
            job.done.set()


def _gives(op: Op, seat: SandboxSeat) -> bool:
    """Whether this role is the one whose values the others get."""
    return op.kind in ("broadcast", "scatter") and op.root == seat.rank


def _leave_unknown(exchange: ObjectExchange, outputs: list[torch.Tensor]) -> None:
    for output in outputs:
        output.zero_()
        exchange.unknown = True


def _make_plausible(value: torch.Tensor) -> None:
    """Replace what cannot be meant. A role that receives a broadcast may have its own value in the tensor, or memory
    that was never written, from which the script may take a size."""
    if value.dtype == torch.int64:
        value.masked_fill_((value > _LARGEST) | (value < -_LARGEST), 1)
    elif value.dtype in FLOATS:
        value.masked_fill_(~value.isfinite(), 0.0)


def _sum(value: torch.Tensor, fold: Reduction, size: int) -> None:
    if fold.kind == dist.ReduceOp.SUM and value.dtype != torch.bool:  # a sum of booleans is true if one of them is
        value.mul_(size)


class Replay:
    """Answers from a recording. If the script calls another operation than the recorded one, the group is answered by
    `otherwise` from then on, and `diverged` has the difference."""

    def __init__(self, recording: Recording, label: Callable[[SandboxSeat], str], otherwise: Sandbox) -> None:
        self._recording, self._label, self._otherwise = recording, label, otherwise
        self._lock = threading.Lock()
        self._phase = 0
        self._waiting: dict[tuple[str, int, int], deque[RecordedOperation]] = {}
        """(group, peer, tag) → next operations; collectives have peer and tag -1, messages from any rank peer -1."""
        self._strayed: set[str] = set()
        self._groups = {entry.group for entry in recording}
        self._built = any(entry.phase == 0 for entry in recording)
        """Whether the recording begins with the build of the model, not with the first step."""
        self.diverged = ""
        self._load(0)

    def begin(self, step: int) -> None:
        """Begin a step, counted from 1. Steps after the last recorded one are answered like the last; if only the build
        was recorded, no step is."""
        with self._lock:
            self._check_rest()
            self._load(min(step, self._recording.index.steps) or _NO_STEP)

    def _load(self, phase: int) -> None:
        self._phase = phase
        self._waiting = {}
        for entry in self._recording:
            if entry.phase == phase:
                peer = entry.peer if entry.kind == "recv" else -1
                tag = entry.tag if entry.kind in MESSAGES else -1
                self._waiting.setdefault((entry.group, peer, tag), deque()).append(entry)

    def _check_rest(self) -> None:
        for (group, _, _), entries in self._waiting.items():
            if entries and group not in self._strayed:
                self._stray(group, f"{_named(entries[0])} was recorded {self._when} and the script has not called it")

    @property
    def _when(self) -> str:
        return f"in step {self._phase}" if self._phase else "while the model was built"

    def _stray(self, group: str, how: str) -> None:
        self._strayed.add(group)
        self.diverged = self.diverged or f"group {group}: {how}"

    def run(self, op: Op, seat: SandboxSeat) -> None:
        exchange = seat.exchange
        if op.kind == "barrier" or (exchange is not None and exchange.alone):
            self._otherwise.run(op, seat)
        elif exchange is not None and _gives(op, seat):
            self._answer(seat, op.kind, op.signature, [], -1, -1)
            self._otherwise.run(op, seat)
        elif self._answer(seat, op.kind, op.signature, op.outputs, -1, -1) is None:
            self._otherwise.run(op, seat)

    def post(self, seat: SandboxSeat, *jobs: Send | Receive) -> None:
        for job in jobs:
            if isinstance(job, Send):
                job.done.set()
                continue
            mark = signature("send", job.tensor.dtype, job.tensor.numel())
            kind, peer = ("recv_any", -1) if job.peer is None else ("recv", job.peer)
            entry = self._answer(seat, kind, mark, [job.tensor], peer, job.tag)
            if entry is not None:
                job.peer = entry.peer
                job.done.set()
            else:
                self._otherwise.post(seat, job)

    def _answer(
        self, seat: SandboxSeat, kind: str, mark: int, outputs: list[torch.Tensor], peer: int, tag: int
    ) -> RecordedOperation | None:
        """Fill the outputs from the recording. Returns the recorded operation; None if the outputs were not filled."""
        group = self._label(seat)
        with self._lock:
            call = _name(kind, mark, peer, tag)
            entry = self._next(group, kind, call, peer, tag, mark if seat.exchange is None else None)
            if entry is None or not outputs:
                return entry
            if not entry.results:
                return None  # the role that recorded was not the root
            lengths = tuple(result.length for result in entry.results)
            wanted = tuple(output.numel() * output.element_size() for output in outputs)
            if lengths != wanted and seat.exchange is not None:
                return None
            if lengths != wanted:
                self._stray(group, f"{call}: {lengths} bytes were recorded {self._when}, the script expects {wanted}")
                return None
        found = [self._recording.data(result) for result in entry.results]
        if any(data is None for data in found):
            return None
        for output, data in zip(outputs, found, strict=True):
            if data is not None and len(data):
                _fill(output, data)
        return entry

    def _next(
        self, group: str, kind: str, call: str, peer: int, tag: int, mark: int | None
    ) -> RecordedOperation | None:
        """The group's next recorded operation, with the lock held; None if it is another one, or unknown. `call` names
        what the script calls. Without a mark, operations of the same kind are the same."""
        known = self._built if self._phase == 0 else self._phase != _NO_STEP
        if group in self._strayed or group not in self._groups or not known:
            return None
        entries = self._waiting.get((group, peer, tag))
        if not entries:
            waiting = (left[0] for (other, _, _), left in self._waiting.items() if other == group and left)
            another = next((left for left in waiting if left.kind in MESSAGES), None)
            if kind in MESSAGES and another is not None:
                self._stray(group, f"{_named(another)} was recorded {self._when} but the script calls {call}")
            else:
                self._stray(group, f"the script calls {call} more often than was recorded {self._when}")
            return None
        entry = entries.popleft()
        if entry.kind != kind or mark not in (None, entry.mark):
            self._stray(group, f"{_named(entry)} was recorded {self._when} but the script calls {call}")
            return None
        return entry


def _name(kind: str, mark: int, peer: int, tag: int) -> str:
    """An operation in words, such as `recv of 4096 float32 from rank 1 with tag 0`."""
    if kind not in MESSAGES:
        return called(kind, mark)
    return f"{called(kind, mark)} from {'any rank' if kind == 'recv_any' else f'rank {peer}'} with tag {tag}"


def _named(entry: RecordedOperation) -> str:
    return _name(entry.kind, entry.mark, entry.peer, entry.tag)


def _fill(output: torch.Tensor, data: memoryview) -> None:
    if HOST.holds(output):
        bytes_of(output)[:] = data
    else:
        output.copy_(torch.frombuffer(bytearray(data), dtype=output.dtype))
