"""One worker's end of a group, the same object from the first generation to the last, and the transport beneath it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from understudy.device import torch_private
from understudy.protocol.roster import Roster

from . import waits
from .faults import Fault, Interrupted, OperationTimeout, Poison
from .links.link import Link
from .links.pairs import Receive, Send
from .links.rendezvous import Rendezvous
from .ops import Op, signature
from .own_messages import OwnMessages
from .recording import Recorder
from .sandbox import ObjectExchange, Sandbox
from .topology import GroupKey

log = logging.getLogger("understudy.comm")

Done = Callable[[], None]


class GroupTransport(Protocol):
    """The communication of one group, prepared and switched from generation to generation.

    As in torch's `reconfigure`, set-up and switch are apart: `prepare` runs beside operations and may take its time,
    `switch` may not. All methods but `prepare` are called from training threads.
    """

    async def prepare(self, roster: Roster, poison: Poison) -> Any:
        """Open what this worker needs to take part in the group under this roster, beside running operations."""

    def switch(self, prepared: Any) -> Any:
        """Use what was prepared from now on; None: take part no more. Returns what is left over, for `discard`."""

    def discard(self, leftover: Any) -> None:
        """Close what the generation before had and the current one has not."""

    def cancel(self, prepared: Any) -> None:
        """Close what was prepared and will not be used."""

    def run(self, op: Op) -> None:
        """Run a collective. Raises Interrupted if the generation is poisoned."""

    def post(self, *jobs: Send | Receive) -> None:
        """Start point-to-point messages; each sets its `done`, poisoned or not."""

    def links(self) -> list[Link]:
        """The links in use, with tallies of their traffic; none if the transport does not know them."""

    def close(self) -> None:
        """End all traffic and close all links."""


class Transport(Protocol):
    """A way to move tensors between workers."""

    devices: tuple[str, ...]
    """Types of the devices between which tensors are moved, such as `("cpu",)`."""

    def group(self, key: GroupKey, services: Rendezvous) -> GroupTransport: ...


_REPEATED = "; results of this generation are undefined, and a job repeats the step"


class _After(threading.Event):
    """An event that is set after a call: when a message has come and something is done with it."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def set(self) -> None:
        if not self.is_set():
            self._call()
        super().set()


class Endpoint:
    """Runs the collectives of a group one after another, in the order in which they are submitted.

    `perform` and `post` are the methods of the transport or of a sandbox, depending on the mode.
    """

    def __init__(
        self, key: GroupKey, role: int, transport: GroupTransport, open_late: Callable[[Endpoint], None]
    ) -> None:
        self.key = key
        self.name = str(key)
        self.rank = key.roles.index(role)
        self.size = len(key.roles)
        self.transport = transport
        self.poison: Poison | None = None
        self.vacant: frozenset[int] = frozenset()
        self.vouches = False
        """Whether this rank's contribution to an all-gather stands for those of vacant ranks."""
        self.perform: Callable[[Op], None] = self._closed
        self.post: Callable[..., None] = self._closed
        self.rehearsing = False
        """Whether a sandbox answers the operations of this group, which is not open among mates."""
        self.exchange: ObjectExchange | None = None
        """The collective of objects that runs in a rehearsal."""
        self.asked: Callable[[Endpoint], None] | None = None
        """Called when the script asks for the rank, as long as the rank may change."""
        self.recorded = True
        """Whether results are recorded for joiners, and answered from recordings in a rehearsal."""
        self.recorder: Recorder | None = None
        """Records results in the first steps of a job."""
        self.opening = threading.Lock()
        """Held by the thread that opens the group in a generation that was entered before."""
        self.doing: tuple[int, str, float] | None = None
        """Number and kind of the running collective, and the time since which it runs."""
        self.submitted = 0
        """The number of operations and messages so far."""
        self.defer: Callable[[Any], None] | None = None
        """Called with the kind of each all-reduce of autograd's backward, which is then left out: the runtime reduces
        gradients at the end of a masked step."""
        self._number = 0
        self._own = OwnMessages()
        self._open_late = open_late
        self._turn = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Op, Done, Poison | None] | None] = queue.SimpleQueue()
        self._queued = 0
        self._count = threading.Lock()
        self._thread: threading.Thread | None = None
        self._over = False

    def enter(self, prepared: Any, vacant: frozenset[int], poison: Poison) -> Any:
        """Switch to a prepared generation. Returns the transport's leftovers.

        Operations of an interrupted generation that are still queued are over when this returns, or never run."""
        with self._turn:
            return self.enter_within(prepared, vacant, poison)

    def enter_within(self, prepared: Any, vacant: frozenset[int], poison: Poison) -> Any:
        """Switch to a prepared generation from within an operation, or before the first one."""
        leftover = self.transport.switch(prepared)
        self.poison, self.vacant, self.rehearsing = poison, vacant, False
        if prepared is None:
            self.perform, self.post = self._late, self._late_post
        else:
            self.perform, self.post = self.transport.run, self.transport.post
        return leftover

    def become(self, key: GroupKey, role: int, transport: GroupTransport) -> None:
        """Become the same group of another role, before the first generation."""
        self.transport.close()
        self.key, self.name, self.rank, self.transport = key, str(key), key.roles.index(role), transport

    def rehearse(self, sandbox: Sandbox) -> None:
        self.rehearsing = True
        self.perform = lambda op: sandbox.run(op, self)
        self.post = lambda *jobs: sandbox.post(self, *jobs)

    def fall_back_on(self, sandbox: Sandbox) -> None:
        """Let the sandbox answer what mates of a rehearsal fail to: a rehearsal has no vote that could tell the script
        that results are undefined."""
        run, post, poison = self.transport.run, self.transport.post, self.poison
        assert poison is not None

        def perform(op: Op) -> None:
            try:
                run(op)
            except Interrupted:
                sandbox.run(op, self)

        def answer(job: Receive) -> None:
            if poison.fault is not None:
                answered = Receive(job.peer, job.tag, job.tensor)
                sandbox.post(self, answered)
                job.peer = answered.peer

        def send(*jobs: Send | Receive) -> None:
            for job in jobs:
                if isinstance(job, Receive):
                    job.done = _After(partial(answer, job))
            post(*jobs)

        self.perform, self.post = perform, send

    def release(self, why: str) -> Any:
        """Leave the group: later operations raise with this reason, since the job continues without this worker."""

        def over(*_: object) -> None:
            raise RuntimeError(why)

        with self._turn:
            leftover = self.transport.switch(None)
            self.poison, self.vacant, self.rehearsing = None, frozenset(), False
            self.perform = self.post = over
        return leftover

    def _closed(self, *_: object) -> None:
        raise RuntimeError(
            f"group {self.name} is in no generation yet; rehearse in a sandbox or switch to a roster first"
        )

    def _late(self, op: Op) -> None:
        self._open()
        self.perform(op)

    def _late_post(self, *jobs: Send | Receive) -> None:
        try:
            self._open()
        except Interrupted:
            for job in jobs:
                job.done.set()
        else:
            self.post(*jobs)

    def _open(self) -> None:
        self._open_late(self)
        assert self.poison is not None
        self.poison.check()

    def run(self, op: Op) -> None:
        """Run the operation, poisoned or not: on the calling thread if no other operation runs."""
        self.submitted += 1
        began = time.perf_counter()
        try:
            if self._queued == 0 and self._turn.acquire(blocking=False):
                try:
                    self._carry_out(op)
                finally:
                    self._turn.release()
            else:
                finished = threading.Event()
                self._enqueue(op, finished.set)
                finished.wait()
        finally:
            waits.add(time.perf_counter() - began)

    def submit(self, op: Op, done: Done) -> None:
        """Run the operation in the background and call `done`, poisoned or not."""
        self.submitted += 1
        self._enqueue(op, done)

    def _enqueue(self, op: Op, done: Done) -> None:
        with self._count:
            over = self._over
            if not over:
                self._queued += 1
                self._queue.put((op, done, self.poison))
                if self._thread in (None, threading.current_thread()):
                    self._thread = threading.Thread(target=self._serve, name=f"understudy {self.name}", daemon=True)
                    self._thread.start()
        if over:
            done()

    def message(self, job: Send | Receive) -> None:
        """Start a point-to-point message. Its `done` is set in the end, poisoned or not."""
        self.submitted += 1
        if job.peer == self.rank:
            self._own.post(job, self.poison)
        elif job.peer in self.vacant and job.peer is not None:
            assert self.poison is not None
            role = self.key.roles[job.peer]
            self.poison.set(Fault("vacant", f"a message in group {self.name} is for role {role}, which is vacant"))
            job.done.set()
        else:
            recorder = self.recorder
            if recorder is not None and isinstance(job, Receive):
                kind = "recv_any" if job.peer is None else "recv"
                job.done = _After(partial(self._record, recorder, job, kind))
            self.post(job)

    def _record(self, recorder: Recorder, job: Receive, kind: str) -> None:
        if job.peer is not None:
            mark = signature("send", job.tensor.dtype, job.tensor.numel())
            recorder.note(self, kind, mark, [job.tensor], job.peer, job.tag)

    def _serve(self) -> None:
        """Run what is queued. `done` may be a callback that submits another operation and waits for it, as PowerSGD's
        does: then another thread has taken over meanwhile."""
        while (item := self._queue.get()) is not None:
            op, done, given_in = item
            with self._turn:
                try:
                    if given_in is self.poison:
                        self._carry_out(op)
                except Exception as error:
                    log.error("group %s: %s", self.name, error)
                finally:
                    with self._count:
                        self._queued -= 1
            done()
            if self._thread is not threading.current_thread():
                return

    def _carry_out(self, op: Op) -> None:
        """Run one operation, and what follows it. Results that were made in inference mode are written in it: the mode
        is a property of the thread, and the thread that has made them may be another one."""
        following: Op | None = op
        while following is not None:
            if following.makes_inference:
                with torch.inference_mode():
                    following = self._carry_out_one(following)
            else:
                following = self._carry_out_one(following)

    def _carry_out_one(self, op: Op) -> Op | None:
        """Run one operation. A fault does not raise: the result is undefined then, and the poison has the reason."""
        poison = self.poison
        self._number += 1
        self.doing = (self._number, op.kind, time.monotonic())
        try:
            vouched = self.vouches and op.kind == "all_gather"
            for rank in op.needs(self.size) if self.vacant else ():
                if rank in self.vacant and not vouched:
                    assert poison is not None
                    reason = f"{op.kind} in group {self.name} needs role {self.key.roles[rank]}, which is vacant"
                    raise poison.fail(Fault("vacant", reason))
            self.perform(op)
            for rank in self.vacant if vouched else ():
                op.outputs[rank].copy_(op.inputs[0])
            recorder = self.recorder  # another thread may end the recording meanwhile
            if recorder is not None and op.kind != "barrier":
                recorder.note(self, op.kind, op.signature, op.outputs)
            for target, source in op.copy_back:
                target.copy_(source)
            return None if op.then is None else op.then()
        except Interrupted:
            pass
        except RuntimeError:
            if poison is None or self.poison is not poison:
                raise
            log.exception("group %s: %s failed", self.name, op.kind)
            poison.set(Fault("error", f"{op.kind} in group {self.name} failed; see this worker's log"))
        except Exception as error:
            log.exception("group %s: %s failed", self.name, op.kind)
            if poison is None:
                raise
            poison.set(Fault("error", f"{op.kind} in group {self.name} failed: {error!r}"))
        finally:
            self.doing = None
        return None

    def expired(self, seconds: float) -> OperationTimeout:
        """Poison the generation because a wait has lasted this long. Returns the exception to raise."""
        if self.poison is not None:
            self.poison.set(Fault("timeout", f"a wait for group {self.name} was limited to {seconds:g} s"))
        return OperationTimeout(f"group {self.name}: Timed out after {seconds:g} s, the limit given to wait{_REPEATED}")

    def check_expired(self) -> None:
        """Raise if an operation has reached its time limit, unless a backward pass runs: an exception would break
        DDP's reducer for good."""
        fault = None if self.poison is None else self.poison.fault
        if fault is not None and fault.how == "timeout" and torch_private.backward_pass() == -1:
            raise OperationTimeout(f"group {self.name}: timeout reached: {fault.reason}{_REPEATED}")

    def close(self) -> None:
        with self._count:
            self._over = True
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)
        self.transport.close()
