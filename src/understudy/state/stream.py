"""Tensors over several connections at once, from memory into memory.

Both sides compute the same plan from the sizes, so no headers are needed: a stream is its bytes and, unless a digest of
the whole state follows later, their digest.
"""

from __future__ import annotations

import heapq
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass
from functools import partial
from typing import NamedTuple

import torch
import xxhash

from understudy.host.world import REAL, World

from .errors import StreamBroken
from .memory import PIECE, Staging, in_place, size_of

_LOOK_S = 0.05
"""Seconds after which a stream that cannot move asks whether it should stop."""
_BATCH = 16
"""Buffers of one system call."""


class WorldStop:
    """A condition that ends transfers, and the world in which they wait for their sockets."""

    def __init__(self, stop: Callable[[], bool], world: World) -> None:
        self._stop, self.world = stop, world

    def __call__(self) -> bool:
        return self._stop()


def wait_ready(sock: socket.socket, event: int, stop: Callable[[], bool]) -> bool:
    """Wait for a socket for a moment, after which `stop` is to be asked again."""
    world = stop.world if isinstance(stop, WorldStop) else REAL
    return world.wait_ready(sock, event, _LOOK_S)


class Piece(NamedTuple):
    """Bytes offset to offset + length of the tensor with this number."""

    tensor: int
    offset: int
    length: int


def plan(sizes: Sequence[int], streams: int, piece: int = PIECE) -> list[list[Piece]]:
    """The pieces of each stream, in order: every byte once, the streams' totals within one piece of each other."""
    carried: list[list[Piece]] = [[] for _ in range(streams)]
    loads = [(0, stream) for stream in range(streams)]
    for tensor, size in enumerate(sizes):
        for offset in range(0, size, piece):
            length = min(piece, size - offset)
            load, stream = loads[0]
            carried[stream].append(Piece(tensor, offset, length))
            heapq.heapreplace(loads, (load + length, stream))
    return carried


@dataclass
class _Stream:
    """One connection's part of a transfer. Runs in a thread of its own."""

    gives: bool
    name: str
    fd: int
    tensors: Sequence[torch.Tensor]
    pieces: Sequence[Piece]
    stop: Callable[[], bool]
    failures: list[BaseException]
    """Shared by all streams of a transfer: the first failure ends them all."""
    check: InitVar[bool]

    def __post_init__(self, check: bool) -> None:
        self._size = sum(piece.length for piece in self.pieces)
        self._done = 0
        self._hash = xxhash.xxh3_64() if check else None
        self._staging: Staging | None = None

    def run(self) -> None:
        try:
            # A second handle: the caller's may have a time-out of its own, under which Python would wait by itself.
            with socket.socket(fileno=os.dup(self.fd)) as self._sock:
                self._carry()
        except OSError as error:
            self.failures.append(self._broken(f"has no open connection ({error.strerror or error})"))
        except BaseException as error:
            self.failures.append(error)

    def _carry(self) -> None:
        for batch in self._batches():
            if isinstance(batch, Piece):
                self._staging = self._staging or Staging(max(piece.length for piece in self.pieces))
                self._pass_staged(batch, self._staging)
            else:
                self._move(batch)
        if self._hash is not None:
            self._finish(self._hash.digest())

    def _batches(self) -> Iterator[deque[memoryview] | Piece]:
        """Batches of memory that moves in place, and pieces that must be staged."""
        batch: deque[memoryview] = deque()
        views: dict[int, memoryview | None] = {}
        for piece in self.pieces:
            if piece.tensor not in views:
                views = {piece.tensor: in_place(self.tensors[piece.tensor])}
            view = views[piece.tensor]
            if batch and (view is None or len(batch) == _BATCH):
                yield batch
                batch = deque()
            if view is None:
                yield piece
            else:
                batch.append(view[piece.offset : piece.offset + piece.length])
        if batch:
            yield batch

    def _move(self, queue: deque[memoryview], *, content: bool = True) -> None:
        """Move all of these buffers. Content is hashed while it is still in the cache."""
        while queue:
            if self.failures or self.stop():
                raise self._broken("was stopped")
            try:
                count = self._send_or_receive(list(queue))
            except BlockingIOError:
                wait_ready(self._sock, select.POLLOUT if self.gives else select.POLLIN, self.stop)
                continue
            except OSError as error:
                peer = "taker" if self.gives else "giver"
                raise self._broken(f"lost the {peer} ({error.strerror or error})") from None
            self._done += count if content else 0
            while count:
                head = queue.popleft()
                if count < len(head):
                    queue.appendleft(head[count:])
                    head = head[:count]
                count -= len(head)
                if content and self._hash is not None:
                    self._hash.update(head)

    def _send_or_receive(self, buffers: list[memoryview]) -> int:
        """Move as many bytes as the socket takes or has. Returns their number."""
        if self.gives:
            return self._sock.sendmsg(buffers, [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        count = self._sock.recvmsg_into(buffers, 0, socket.MSG_DONTWAIT)[0]
        if count == 0:
            raise ConnectionResetError("end of file")
        return count

    def _broken(self, what: str) -> StreamBroken:
        return StreamBroken(f"{self.name} {what} after {self._done} of {self._size} bytes")

    def _pass_staged(self, piece: Piece, staging: Staging) -> None:
        tensor = self.tensors[piece.tensor]
        if self.gives:
            self._move(deque([staging.read(tensor, piece.offset, piece.length)]))
        else:
            self._move(deque([staging.view(piece.length)]))
            staging.write(tensor, piece.offset, piece.length)

    def _finish(self, digest: bytes) -> None:
        """Send the digest of the content, or compare it with the giver's."""
        if self.gives:
            self._move(deque([memoryview(digest)]), content=False)
            return
        sent = bytearray(len(digest))
        self._move(deque([memoryview(sent)]), content=False)
        if sent != digest:
            raise StreamBroken(
                f"{self.name}: what arrived is not what was sent (digest {digest.hex()}, the giver's {sent.hex()}); "
                "it was damaged on the way or changed while it was sent, take it again"
            )


def _run(
    gives: bool,
    sockets: Sequence[socket.socket],
    tensors: Sequence[torch.Tensor],
    *,
    stop: Callable[[], bool],
    piece: int = PIECE,
    check: bool = True,
) -> int:
    if not sockets:
        raise ValueError("there is no connection to move the state over")
    sizes = [size_of(tensor) for tensor in tensors]
    used = sockets[: max(1, -(-sum(sizes) // piece))]  # a thread for less than a piece costs more than it brings
    failures: list[BaseException] = []
    stream_over = partial(_Stream, gives, tensors=tensors, stop=stop, failures=failures, check=check)
    streams = [
        stream_over(name=f"stream {number} of {len(used)}", fd=sock.fileno(), pieces=pieces)
        for number, (sock, pieces) in enumerate(zip(used, plan(sizes, len(used), piece), strict=True))
    ]
    threads: list[threading.Thread] = []
    try:
        for stream in streams[1:]:
            threads.append(threading.Thread(target=stream.run, name="understudy-state", daemon=True))
            threads[-1].start()
        streams[0].run()
        for thread in threads:
            thread.join()
    except BaseException as error:
        failures.append(error)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if failures:
        raise failures[0]
    return sum(sizes)


give = partial(_run, True)
"""Send the tensors' bytes to a worker that takes tensors of the same sizes. Returns the number of bytes.

The tensors must not change meanwhile. `stop` is called from several threads. The sockets stay open."""

take = partial(_run, False)
"""Fill the tensors with the bytes that the giver sends over the same connections. Returns the number of bytes.

With `check`, which must be equal on both sides, every stream is compared with the giver's digest. After an error the
tensors are partly filled."""
