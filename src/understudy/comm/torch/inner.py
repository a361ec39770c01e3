"""A torch backend's group, for the length of one generation: its operations under way, and its end."""

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
from typing import Any

import torch
import torch.distributed as dist

from understudy.comm.faults import Fault, How, Poison
from understudy.comm.links.pairs import Receive, Send
from understudy.comm.topology import Layout
from understudy.comm.transport import Services

from .ops import as_known

GRACE_S = 0.03
"""How long a poisoned operation is given to let go of its tensors before its caller goes on without it."""
PATIENCE_S = 0.2
"""How long whoever knows more than "a connection is closed" has the first word."""
_LAST_TAG = (1 << 31) - 1
_POLL_S = 0.0005


class Waiters:
    """Threads that wait for works, as many as there are works under way at once.

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
class _Errand:
    """One inner operation under way. It holds the tensors too, which the backend may write to until it ends."""

    what: str
    work: Any
    done: threading.Event = field(default_factory=threading.Event)
    receive: Receive | None = None
    who: str = ""


class Inner:
    """The backend's group among the live ranks of one generation. Its rank i is the i-th live rank.

    Tensors are handed to the backend as they are, without a copy. When the generation is poisoned the group is torn
    apart at once, which ends what is under way in it, and callers are let go when it has ended. Should the backend
    hang on to an operation for longer than GRACE_S its caller goes on all the same, while the backend may still write
    to that operation's tensors. Until the next switch that does no harm: whatever a poisoned generation was to write
    is undefined and will be written again. After it, it would: so a switch waits until the backend has let go.
    """

    def __init__(
        self,
        group: Any,
        store: Any,
        plan: Layout,
        live: tuple[int, ...],
        poison: Poison,
        services: Services,
        waiters: Waiters,
    ) -> None:
        self.group = group
        self.plan = plan
        self.live = live
        self.poison = poison
        self.seen: set[int] = set()
        self._store = store
        self._services = services
        self._waiters = waiters
        self._under_way: set[_Errand] = set()
        self._over = False
        self._closed = False
        self._gloo = isinstance(group, dist.ProcessGroupGloo)
        self._ending: threading.Thread | None = None
        self._lock = threading.Lock()
        tear_apart = weakref.WeakMethod(self._poisoned)
        poison.wakers.append(lambda: None if (call := tear_apart()) is None else call())
        if poison.fault is not None:
            self._poisoned()

    def settle(self, what: str, work: Any) -> None:
        """Return once a collective has ended; raise Interrupted where its result is undefined."""
        errand = _Errand(what, work)
        self._launch(errand)
        if not errand.done.wait(self._services.limit):
            raise self.poison.fail(self._late(errand))
        self.poison.check()

    def message(self, job: Send | Receive) -> None:
        """Start a message. Its `done` is set in the end, whatever becomes of it."""
        if self.poison.fault is not None:
            job.done.set()
            return
        who = "anybody" if job.peer is None else self.plan.roster.names(self.plan.uid(job.peer))
        what = f"{'send to' if isinstance(job, Send) else 'receive from'} {who} with tag {job.tag}"
        errand = _Errand(what, None, job.done, None if isinstance(job, Send) else job)
        errand.who = "" if job.peer is None else self.plan.uid(job.peer)
        try:
            errand.work = self._start(job)
        except Exception as error:
            self._failed(errand, str(error))
            job.done.set()
        else:
            self._launch(errand)

    def _start(self, job: Send | Receive) -> Any:
        """Gloo refuses messages without content: they travel as one byte."""
        if not 0 <= job.tag < _LAST_TAG:
            raise ValueError(f"tags of torch's backends are from 0 to {_LAST_TAG - 1}")
        data = [as_known(job.tensor) if job.tensor.numel() else torch.empty(1, dtype=torch.uint8)]
        if job.peer is None:
            return self.group.recv_anysource(data, job.tag)
        peer = self.live.index(job.peer)
        return (self.group.send if isinstance(job, Send) else self.group.recv)(data, peer, job.tag)

    def _launch(self, errand: _Errand) -> None:
        with self._lock:
            self._under_way.add(errand)
            self._waiters.add(partial(self._watch, errand))
            over = self._over
        if over:
            errand.done.set()

    def _watch(self, errand: _Errand) -> None:
        try:
            self._wait(errand.work)
            if errand.receive is not None and errand.receive.peer is None:
                errand.receive.peer = self.live[errand.work._source_rank()]
        except Exception as error:
            self._failed(errand, str(error))
        errand.work = None
        errand.done.set()
        with self._lock:
            self._under_way.discard(errand)

    def _wait(self, work: Any) -> None:
        limit = self._services.limit
        if self._gloo:
            work.wait(timedelta(seconds=limit))
            return
        until = time.monotonic() + limit
        while not work.is_completed():
            if time.monotonic() > until:
                raise TimeoutError(f"timed out after {limit:g} s")
            time.sleep(_POLL_S)
        work.wait()

    def _failed(self, errand: _Errand, text: str) -> None:
        """Poison the generation, unless somebody who knows more does so at the same time."""
        if self._closed:
            return
        late = _is_late(text)
        if not late:
            told = select.poll()
            told.register(self.poison.fd, select.POLLIN)
            told.poll(PATIENCE_S * 1000)
        self.poison.set(self._late(errand) if late else self._fault("eof", errand, _plainly(text)))

    def _late(self, errand: _Errand) -> Fault:
        return self._fault("timeout", errand, f"no end within {self._services.limit:g} s")

    def _fault(self, how: How, errand: _Errand, reason: str) -> Fault:
        return Fault(how, f"{errand.what} in group {self.plan.name}: {reason}", errand.who, self._services.uid)

    def _poisoned(self) -> None:
        """Called by whoever sets the poison, who must not wait."""
        with self._lock:
            if self._over:
                return
            self._over = True
            name = f"understudy aborts {self.plan.name}"
            self._ending = threading.Thread(target=self._tear_down, name=name, daemon=True)
            self._ending.start()

    def _tear_down(self) -> None:
        """End what is under way, and let its callers go: in GRACE_S at the latest, whatever the backend does."""
        until = time.monotonic() + GRACE_S
        severing = threading.Thread(target=self._sever, args=(self.group,), name="understudy severs", daemon=True)
        severing.start()
        with self._lock:
            stuck = list(self._under_way)
        for errand in stuck:
            errand.done.wait(max(0.0, until - time.monotonic()))
            errand.done.set()
        severing.join()

    def _sever(self, group: Any) -> None:
        """Close the group's connections. Gloo has no call for that (its abort does nothing), but it does so when a
        receive runs into its time limit, and this one always will: nobody sends with the last tag."""
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
        """Whether nothing can be written any more by an operation that was under way when the poison came."""
        until = time.monotonic() + limit
        while self._under_way and time.monotonic() < until:
            time.sleep(_POLL_S)
        return not self._under_way

    def close(self) -> None:
        """Blocks until the backend has let go of everything; what is still under way is ended."""
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
    """A backend's message without the place in its source and the advice."""
    text = re.sub(r"^\[[^\]]*\.cc:\d+\] ", "", text)
    return text.split(". This is typically caused", 1)[0].split("\n", 1)[0]
