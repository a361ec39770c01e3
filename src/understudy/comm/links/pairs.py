"""Point-to-point messages: any number of sends and receives at once, matched by peer and tag."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

import torch

from understudy.comm.faults import Fault, Interrupted, Poison
from understudy.comm.ops import describe, signature

from . import wire
from .link import Link, Outlet, advance, bytes_of

INTERNAL = 1 << 63
"""Tags from here on belong to collectives."""


@dataclass(slots=True)
class Send:
    """A message to send to the rank `peer`."""

    peer: int
    tag: int
    tensor: torch.Tensor
    done: threading.Event = field(default_factory=threading.Event)
    deadline: float = inf


@dataclass(slots=True)
class Receive:
    """A message to receive. With `peer` None it may come from any rank; `peer` is the sender afterwards."""

    peer: int | None
    tag: int
    tensor: torch.Tensor
    done: threading.Event = field(default_factory=threading.Event)
    deadline: float = inf


class _Lane:
    """One pair link: what leaves it, and the message that is arriving on it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.sending: deque[tuple[Send, int]] = deque()
        self.outlet = Outlet(link, self._sent)
        self.head = bytearray(wire.HEADER)
        self.target = memoryview(self.head)
        self.header: wire.Header | None = None
        self.receive: Receive | None = None
        self.stash: dict[int, deque[bytearray]] = {}
        self.stashing: bytearray | None = None
        self.since = 0.0
        """Since when a message that has begun to come does not move."""

    def send(self, send: Send, generation: int) -> None:
        data = bytes_of(send.tensor)
        mark = signature("send", send.tensor.dtype, send.tensor.numel())
        self.sending.append((send, 2 if len(data) else 1))
        self.outlet.push(wire.pack_header(wire.Header(generation, send.tag, mark, len(data))))
        if len(data):
            self.outlet.push(data)

    def arrived(self, count: int) -> None:
        if self.header is not None:
            self.link.tally.got += count
        if self.since:
            self.link.tally.starved += time.perf_counter() - self.since
            self.since = 0.0

    def _sent(self) -> None:
        send, left = self.sending[0]
        if left > 1:
            self.sending[0] = (send, left - 1)
        else:
            self.sending.popleft()
            send.done.set()


class Pairs:
    """A thread that moves all point-to-point traffic of one group, started with the first message.

    `connect(rank)` must, in the background, give a link to that rank to `attach`.
    """

    def __init__(self, name: str, connect: Callable[[int], None], limit: float) -> None:
        self._name, self._connect, self._limit = name, connect, limit
        self._poison: Poison | None = None
        self._generation = 0
        self._lanes: dict[int, _Lane] = {}
        self._peers: tuple[int, ...] = ()
        self._asked: set[int] = set()
        self._inbox: deque[Send | Receive] = deque()
        self._unsent: dict[int, deque[Send]] = {}
        self._receives: list[Receive] = []
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        """Held while bytes move: no generation is entered in the middle of that."""
        self._tick = min(1.0, limit / 4)
        self._look = 0.0
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._closed = False

    def attach(self, rank: int, link: Link) -> None:
        with self._lock:
            self._lanes[rank] = _Lane(link)
        self._nudge()

    def links(self) -> dict[int, Link]:
        with self._lock:
            return {rank: lane.link for rank, lane in self._lanes.items()}

    def idle(self) -> list[Link]:
        """Links on which no message has begun to arrive."""
        with self._lock:
            lanes = list(self._lanes.values())
        return [lane.link for lane in lanes if lane.header is None and len(lane.target) == wire.HEADER]

    def adopt(self, generation: int, poison: Poison, peers: tuple[int, ...], links: dict[int, Link]) -> None:
        """Enter a generation with these live ranks, linked or not yet. Lanes with the same link keep what has already
        arrived on them."""
        with self._moving, self._lock:
            if self._poison is not None and self._poison.fault is not None:
                self._let_go()
            old = self._lanes
            kept = {rank: lane for rank, lane in old.items() if links.get(rank) is lane.link}
            self._lanes = {rank: _Lane(link) for rank, link in links.items()} | kept
            self._peers, self._asked = peers, set()
            self._generation, self._poison = generation, poison
        self._nudge()

    def submit(self, *jobs: Send | Receive) -> None:
        with self._lock:
            self._inbox.extend(jobs)
            if self._closed:
                self._let_go()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"understudy pairs {self._name}", daemon=True)
                self._thread.start()
        self._nudge()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread = self._thread
        self._nudge()
        if thread is not None:
            thread.join()
        os.close(self._wake)
        self._wake = -1

    def _nudge(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while not self._closed:
            with self._moving:
                poison = self._poison
                assert poison is not None
                try:
                    moved, over = self._round(poison), False
                except Interrupted:
                    moved, over = False, True
                except Exception as error:
                    poison.set(Fault("error", f"point-to-point traffic of {self._name} failed: {error!r}"))
                    moved, over = False, True
                if over:
                    with self._lock:
                        self._let_go()
            if not moved:
                self._sleep(None if over else poison)
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        """Set `done` of every pending message, with its result undefined. Call with the lock held."""
        for lane in self._lanes.values():
            for send, _ in lane.sending:
                send.done.set()
            lane.sending.clear()
            lane.outlet.queue.clear()
            if lane.receive is not None:
                lane.receive.done.set()
                lane.receive = None
        for job in (*self._inbox, *self._receives, *(s for queue in self._unsent.values() for s in queue)):
            job.done.set()
        self._inbox.clear()
        self._receives.clear()
        self._unsent.clear()

    def _round(self, poison: Poison) -> bool:
        """One pass over everything that can move. Whether anything moved."""
        poison.check()
        self._overdue(poison)
        with self._lock:
            jobs = list(self._inbox)
            self._inbox.clear()
            lanes = dict(self._lanes)
        for job in jobs:
            if job.deadline == inf:
                job.deadline = time.monotonic() + self._limit
            if isinstance(job, Send):
                self._unsent.setdefault(job.peer, deque()).append(job)
            else:
                self._receives.append(job)
            self._look = min(self._look, job.deadline)
        moved = bool(jobs)
        for rank, queue in list(self._unsent.items()):
            if rank in lanes:
                while queue:
                    lanes[rank].send(queue[0], self._generation)
                    queue.popleft()  # only now: until then a failure must find it
                del self._unsent[rank]
                moved = True
            else:
                self._ask(rank)
        for receive in self._receives:
            for rank in self._peers if receive.peer is None else (receive.peer,):
                if rank not in lanes:
                    self._ask(rank)
        for rank, lane in lanes.items():
            try:
                if lane.outlet.queue:
                    moved |= advance(lane.outlet)
                moved |= self._receive(rank, lane, poison)
            except OSError as error:
                raise poison.fail(lane.link.lost(error)) from None
        return moved

    def _ask(self, rank: int) -> None:
        if rank not in self._asked:
            self._asked.add(rank)
            self._connect(rank)

    def _wanted(self, rank: int) -> bool:
        return any(receive.peer in (None, rank) for receive in self._receives)

    def _receive(self, rank: int, lane: _Lane, poison: Poison) -> bool:
        moved = False
        while True:
            poison.check()
            if lane.receive is None and lane.stashing is None:
                if self._from_stash(rank, lane, poison):
                    moved = True
                    continue
                if not self._wanted(rank):
                    return moved
                if lane.header is not None:
                    self._match(rank, lane, poison)
                    moved = True
            if lane.target:
                try:
                    count = lane.link.sock.recv_into(lane.target)
                except BlockingIOError:
                    if lane.header is not None and not lane.since:
                        lane.since = time.perf_counter()
                    return moved
                if count == 0:
                    raise ConnectionResetError("end of file")
                lane.arrived(count)
                moved = True
                lane.target = lane.target[count:]
                if lane.target:
                    continue
            if lane.header is None:
                lane.header = wire.unpack_header(lane.head)
            else:
                self._complete(lane)

    def _from_stash(self, rank: int, lane: _Lane, poison: Poison) -> bool:
        for receive in self._receives:
            waiting = lane.stash.get(receive.tag)
            if waiting and receive.peer in (None, rank):
                data = waiting.popleft()
                self._fits(receive, len(data), lane, poison)
                if data:
                    bytes_of(receive.tensor)[:] = data
                self._receives.remove(receive)
                receive.peer = rank
                receive.done.set()
                return True
        return False

    def _match(self, rank: int, lane: _Lane, poison: Poison) -> None:
        """Find the receive for a message by its header; stash the message if only later ones are wanted."""
        header = lane.header
        assert header is not None
        for receive in self._receives:
            if receive.tag == header.sequence and receive.peer in (None, rank):
                self._fits(receive, header.length, lane, poison)
                lane.receive = receive
                self._receives.remove(receive)
                receive.peer = rank
                lane.target = bytes_of(receive.tensor)
                return
        lane.stashing = bytearray(header.length)
        lane.target = memoryview(lane.stashing)

    def _fits(self, receive: Receive, length: int, lane: _Lane, poison: Poison) -> None:
        expected = receive.tensor.numel() * receive.tensor.element_size()
        if length != expected:
            sent = describe(lane.header.signature) if lane.header is not None else f"{length} bytes"
            asked = describe(signature("send", receive.tensor.dtype, receive.tensor.numel())).replace("send", "recv", 1)
            raise poison.fail(Fault("mismatch", f"{lane.link.who} called {sent} but this role called {asked}"))

    def _complete(self, lane: _Lane) -> None:
        assert lane.header is not None
        if lane.receive is not None:
            receive, lane.receive = lane.receive, None
            receive.done.set()
        else:
            assert lane.stashing is not None
            lane.stash.setdefault(lane.header.sequence, deque()).append(lane.stashing)
            lane.stashing = None
        lane.header = None
        lane.target = memoryview(lane.head)

    def _sleep(self, poison: Poison | None) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        busy = False
        if poison is not None:
            poller.register(poison.fd, select.POLLIN)
            with self._lock:
                lanes = dict(self._lanes)
            for rank, lane in lanes.items():
                reading = lane.receive is not None or lane.stashing is not None or self._wanted(rank)
                mask = (select.POLLOUT if lane.outlet.queue else 0) | (select.POLLIN if reading else 0)
                if mask:
                    poller.register(lane.link.fd, mask)
                    busy = True
        busy = busy or bool(self._unsent or self._receives)
        nap = max(0.0, min(self._tick, self._look - time.monotonic()))
        events = poller.poll(nap * 1000 if busy and poison is not None else None)
        if any(fd == self._wake for fd, _ in events):
            os.eventfd_read(self._wake)

    def _jobs(self) -> Iterator[Send | Receive]:
        """The jobs that have a deadline."""
        for queue in self._unsent.values():
            yield from queue
        yield from self._receives
        for lane in self._lanes.values():
            yield from (send for send, _ in lane.sending)

    def _overdue(self, poison: Poison) -> None:
        now = time.monotonic()
        if now < self._look:
            return
        self._look = min(now + self._tick, *(job.deadline for job in self._jobs() if job.deadline >= now), inf)
        for send in (send for queue in self._unsent.values() for send in queue):
            if send.deadline < now:
                who = f"rank {send.peer} of {self._name}"
                poison.set(Fault("timeout", f"{who} did not ask for a message within the time limit"))
        for receive in self._receives:
            if receive.deadline < now:
                who = "any rank" if receive.peer is None else f"rank {receive.peer} of {self._name}"
                poison.set(Fault("timeout", f"no message from {who} with tag {receive.tag} within the time limit"))
        for lane in self._lanes.values():
            for send, _ in lane.sending:
                if send.deadline < now:
                    poison.set(Fault("timeout", f"{lane.link.who} did not take a message within the time limit"))
