"""One stream between two workers, and the loop that moves bytes over several of them at once."""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import torch

from understudy.comm.faults import Fault, Poison
from understudy.comm.topology import LinkId

_SEND_BUFFER = 1 << 22
"""Bytes of the send buffer of every link: with less, sender and receiver take turns instead of overlapping."""
STALL_S = 0.2
"""Seconds without progress after which a worker looks at what the others are doing."""
_GLANCES = 25
"""Looks at idle sockets before sleeping on them, some 50 µs: a sleeper is costly to wake."""
BULK = 1 << 16
"""Bytes from which on the time of a transfer says something about the link."""
_BATCH = 16
"""Buffers handed to one sendmsg or recvmsg_into."""


class LinkTally:
    """Bulk transfers over one link so far: bytes, and seconds from the first byte of each transfer on."""

    __slots__ = ("backed", "got", "pushing", "sent", "starved")

    def __init__(self) -> None:
        self.sent = self.got = 0
        self.pushing = 0.0
        """Seconds in which bytes went out."""
        self.backed = 0.0
        """Seconds in which the link took none of the bytes that were to go out."""
        self.starved = 0.0
        """Seconds in which none of the bytes that were to come in came."""

    def clear(self) -> None:
        """Begin anew. Call between two operations."""
        self.__init__()  # type: ignore[misc]


class Link:
    """A connected, authenticated, non-blocking socket. Read and written by one operation at a time."""

    __slots__ = ("fd", "id", "peer", "sock", "tally", "who")

    def __init__(self, sock: socket.socket, link: LinkId, peer: str, who: str) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.sock, self.fd = sock, sock.fileno()
        self.id, self.peer, self.who = link, peer, who
        self.tally = LinkTally()

    def peek(self, count: int) -> bytes:
        """Up to `count` bytes that have arrived and are not read yet. They stay unread."""
        try:
            return self.sock.recv(count, socket.MSG_PEEK)
        except OSError:
            return b""

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def lost(self, how: object) -> Fault:
        return Fault("eof", f"{self.id.kind} link to {self.who} closed ({how})", self.peer)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, without a copy."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data


class _Flow:
    """Buffers that pass over one link, in order. `passed` is called for each that has done so; it may push more."""

    __slots__ = ("link", "passed", "queue", "since")

    def __init__(self, link: Link, passed: Callable[[], None] | None = None) -> None:
        self.link = link
        self.since = 0.0
        """Since when a bulk transfer that has begun does not move."""
        self.queue: deque[memoryview] = deque()
        self.passed = passed

    def push(self, data: memoryview | bytes) -> None:
        if len(data):
            self.queue.append(memoryview(data))
        elif self.passed is not None:
            self.passed()


class Outlet(_Flow):
    """Buffers that leave over a link."""

    __slots__ = ()

    def move(self) -> int:
        queue = self.queue
        if len(queue) == 1:
            return self.link.sock.send(queue[0])
        return self.link.sock.sendmsg([queue[i] for i in range(min(len(queue), _BATCH))])

    def note(self, count: int, began: float) -> None:
        """Count bytes that have moved; none had moved from `since` to `began`."""
        tally = self.link.tally
        tally.sent += count
        tally.pushing += time.perf_counter() - began
        if self.since:
            tally.backed += began - self.since
            self.since = 0.0


class Inlet(_Flow):
    """Buffers to fill from a link."""

    __slots__ = ()

    def move(self) -> int:
        queue = self.queue
        if len(queue) == 1:
            count = self.link.sock.recv_into(queue[0])
        else:
            count = self.link.sock.recvmsg_into([queue[i] for i in range(min(len(queue), _BATCH))])[0]
        if count == 0:
            raise ConnectionResetError("end of file")
        return count

    def note(self, count: int, began: float) -> None:
        """Count bytes that have moved; none had moved from `since` to `began`."""
        tally = self.link.tally
        tally.got += count
        if self.since:
            tally.starved += began - self.since
            self.since = 0.0


def advance(flow: Inlet | Outlet) -> bool:
    """Move what the socket allows without waiting. Whether anything moved."""
    queue = flow.queue
    bulk = len(queue[0]) >= BULK  # a header in front of it has moved: both sides are there
    began = time.perf_counter() if bulk else 0.0
    try:
        count = flow.move()
    except BlockingIOError:
        if bulk and not flow.since:
            flow.since = began
        return False
    if bulk or flow.since:
        flow.note(count, began or time.perf_counter())
    while count:
        head = queue[0]
        if count < len(head):
            queue[0] = head[count:]
            break
        count -= len(head)
        queue.popleft()
        if flow.passed is not None:
            flow.passed()
    return True


def pump(
    inlets: list[Inlet],
    outlets: list[Outlet],
    poison: Poison,
    deadline: float,
    stalled: Callable[[], None] | None = None,
) -> None:
    """Move bytes until every queue is empty. Poisons the generation and raises Interrupted if that is not possible.

    `stalled` is called now and then while nothing moves."""
    flows: tuple[Inlet | Outlet, ...] = (*outlets, *inlets)
    glances = 0
    while True:
        moved = waiting = False
        for flow in flows:
            if flow.queue:
                waiting = True
                try:
                    moved |= advance(flow)
                except OSError as error:
                    raise poison.fail(flow.link.lost(error)) from None
        if not waiting:
            return
        if poison.fault is not None:
            poison.check()
        if moved:
            glances = 0
        elif glances < _GLANCES:
            glances += 1
            os.sched_yield()
        else:
            glances = 0
            if not _sleep(inlets, outlets, poison, deadline) and stalled is not None:
                stalled()


def _sleep(inlets: list[Inlet], outlets: list[Outlet], poison: Poison, deadline: float) -> bool:
    """Wait until something can move. False if nothing could for STALL_S."""
    poller = select.poll()
    poller.register(poison.fd, select.POLLIN)
    events = {inlet.link.fd: select.POLLIN for inlet in inlets if inlet.queue}
    for outlet in outlets:
        if outlet.queue:
            events[outlet.link.fd] = events.get(outlet.link.fd, 0) | select.POLLOUT
    for fd, mask in events.items():
        poller.register(fd, mask)
    remaining = deadline - time.monotonic()
    if remaining > 0 and poller.poll(min(remaining, STALL_S) * 1000):
        return True
    if time.monotonic() >= deadline:
        slow = next(flow.link for flow in (*inlets, *outlets) if flow.queue)
        reason = f"{slow.who} did not answer on its {slow.id.kind} link within the time limit"
        raise poison.fail(Fault("timeout", reason, slow.peer))
    return False
