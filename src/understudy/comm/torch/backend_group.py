"""A group of a torch backend in one generation: its running operations, and its end."""

from __future__ import annotations

import queue
import re
import select
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any

import torch
import torch.distributed as dist

from understudy.comm.faults import Fault, How, Poison
from understudy.comm.links.pairs import Receive, Send
from understudy.comm.links.rendezvous import Rendezvous
from understudy.comm.topology import Layout

from .ops import as_known

GRACE_S = 0.03
"""Seconds for which a poisoned operation may hold its tensors before its caller continues."""
PATIENCE_S = 0.2
"""Seconds in which a worker that knows more than "a connection is closed" may set the fault first."""
_LAST_TAG = (1 << 31) - 1
_POLL_S = 0.0005


class Waiters:
    """Threads that wait for works, one for each work that runs at the same time.

    Gloo's messages can neither be polled nor waited for in turns: the wait is what completes them, and one that runs
    into its time limit ends the whole group.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()

    def add(self, task: Callable[[], None]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._threads.append(threading.Thread(target=self._serve, name=self._name, daemon=True))
                self._threads[-1].start()
            self._tasks.put(task)

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        until = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))


@dataclass(eq=False, slots=True)
class _Running:
    """One running operation. It keeps the tensors alive: the backend may write to them until the operation ends."""

    what: str
    work: Any
    limit: float
    done: threading.Event = field(default_factory=threading.Event)
    receive: Receive | None = None
    who: str = ""


class BackendGroup:
    """The backend's group among the live ranks of one generation. Its rank i is the i-th live rank.

    Tensors are handed to the backend as they are, without a copy. When the generation is poisoned the group is torn
    down at once, which ends its running operations, and callers continue when the operations have ended. If the backend
    holds an operation for longer than GRACE_S its caller continues all the same, while the backend may still write to
    the tensors. Until the next switch that does no harm: results of a poisoned generation are undefined and will be
    written again. After the switch it would: so a switch waits until the backend has let go.
    """

    def __init__(
        self,
        group: Any,
        store: Any,
        plan: Layout,
        live: tuple[int, ...],
        poison: Poison,
        services: Rendezvous,
        waiters: Waiters,
    ) -> None:
        self.group, self.plan, self.live, self.poison = group, plan, live, poison
        self.seen: set[int] = set()
        """Signatures of operations about which all ranks have agreed."""
        self._store, self._services, self._waiters = store, services, waiters
        self._under_way: set[_Running] = set()
        self._over = False
        self._closed = False
        self._gloo = isinstance(group, dist.ProcessGroupGloo)
        self._ending: threading.Thread | None = None
        self._lock = threading.Lock()
        tear_apart = weakref.WeakMethod(self._poisoned)
        poison.wakers.append(lambda: None if (call := tear_apart()) is None else call())
        if poison.fault is not None:
            self._poisoned()

    def settle(self, what: str, work: Any, limit: float | None) -> None:
        """Return once a collective has ended; raise Interrupted if its result is undefined."""
        running = _Running(what, work, limit or self._services.limit)
        self._launch(running)
        if not running.done.wait(running.limit):
            raise self.poison.fail(self._late(running))
        self.poison.check()

    def message(self, job: Send | Receive) -> None:
        """Start a message. Its `done` is set in the end, poisoned or not."""
        if self.poison.fault is not None:
            job.done.set()
            return
        who = "any rank" if job.peer is None else self.plan.roster.names(self.plan.uid(job.peer))
        what = f"{'send to' if isinstance(job, Send) else 'receive from'} {who} with tag {job.tag}"
        limit = self._services.limit if job.deadline == inf else job.deadline - time.monotonic()
        running = _Running(what, None, limit, job.done, None if isinstance(job, Send) else job)
        running.who = "" if job.peer is None else self.plan.uid(job.peer)
        try:
            running.work = self._start(job)
        except Exception as error:
            self._failed(running, str(error))
            job.done.set()
        else:
            self._launch(running)

    def _start(self, job: Send | Receive) -> Any:
        """Hand a message to the backend. Gloo refuses empty messages: they travel as one byte."""
        if not 0 <= job.tag < _LAST_TAG:
            raise ValueError(f"tags of torch's backends are from 0 to {_LAST_TAG - 1}")
        data = [as_known(job.tensor) if job.tensor.numel() else torch.empty(1, dtype=torch.uint8)]
        if job.peer is None:
            return self.group.recv_anysource(data, job.tag)
        peer = self.live.index(job.peer)
        return (self.group.send if isinstance(job, Send) else self.group.recv)(data, peer, job.tag)

    def _launch(self, running: _Running) -> None:
        with self._lock:
            self._under_way.add(running)
            self._waiters.add(partial(self._watch, running))
            over = self._over
        if over:
            running.done.set()

    def _watch(self, running: _Running) -> None:
        try:
            self._wait(running.work, running.limit)
            if running.receive is not None and running.receive.peer is None:
                running.receive.peer = self.live[running.work.source_rank()]
        except Exception as error:
            self._failed(running, str(error))
        running.work = None
        running.done.set()
        with self._lock:
            self._under_way.discard(running)

    def _wait(self, work: Any, limit: float) -> None:
        if self._gloo:
            work.wait(timedelta(seconds=limit))
            return
        until = time.monotonic() + limit
        while not work.is_completed():
            if time.monotonic() > until:
                raise TimeoutError(f"timed out after {limit:g} s")
            time.sleep(_POLL_S)
        work.wait()

    def _failed(self, running: _Running, text: str) -> None:
        """Poison the generation, unless a worker that knows more does so at the same time."""
        if self._closed:
            return
        late = _is_late(text)
        if not late:
            told = select.poll()
            told.register(self.poison.fd, select.POLLIN)
            told.poll(PATIENCE_S * 1000)
        self.poison.set(self._late(running) if late else self._fault("eof", running, _plainly(text)))

    def _late(self, running: _Running) -> Fault:
        return self._fault("timeout", running, f"no end within {running.limit:g} s")

    def _fault(self, how: How, running: _Running, reason: str) -> Fault:
        return Fault(how, f"{running.what} in group {self.plan.name}: {reason}", running.who, self._services.uid)

    def _poisoned(self) -> None:
        """Tear the group down on another thread: the thread that sets the poison must not wait."""
        with self._lock:
            if self._over:
                return
            self._over = True
            name = f"understudy aborts {self.plan.name}"
            self._ending = threading.Thread(target=self._tear_down, name=name, daemon=True)
            self._ending.start()

    def _tear_down(self) -> None:
        """End running operations, and let callers continue after GRACE_S at the latest, whatever the backend does."""
        until = time.monotonic() + GRACE_S
        severing = threading.Thread(target=self._sever, args=(self.group,), name="understudy severs", daemon=True)
        severing.start()
        with self._lock:
            stuck = list(self._under_way)
        for running in stuck:
            running.done.wait(max(0.0, until - time.monotonic()))
            running.done.set()
        severing.join()

    def _sever(self, group: Any) -> None:
        """Close the group's connections. Gloo has no call for that (its abort does nothing), but it closes them when a
        receive reaches its time limit, and this one always does: no message has the last tag."""
        if not self._gloo:
            group.abort()
            return
        for peer in range(len(self.live)):
            if peer != group.rank():
                try:
                    group.recv([torch.empty(1)], peer, _LAST_TAG).wait(timedelta(milliseconds=1))
                except RuntimeError as error:
                    if _is_late(str(error)):
                        return

    def has_let_go(self, limit: float) -> bool:
        """Whether no operation that ran when the poison was set can write any more."""
        until = time.monotonic() + limit
        while self._under_way and time.monotonic() < until:
            time.sleep(_POLL_S)
        return not self._under_way

    def close(self) -> None:
        """End running operations. Blocks until the backend has let go of everything."""
        with self._lock:
            self._over = self._closed = True
            busy, ending = bool(self._under_way), self._ending
        if ending is not None:
            ending.join()
        group, self.group, self._store = self.group, None, None
        if busy and group is not None:
            self._sever(group)
        del group


def _is_late(text: str) -> bool:
    return "timed out" in text.lower()


def _plainly(text: str) -> str:
    """A backend's message without the line of its source and without advice."""
    text = re.sub(r"^\[[^\]]*\.cc:\d+\] ", "", text)
    return text.split(". This is typically caused", 1)[0].split("\n", 1)[0]
