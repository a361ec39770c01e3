"""The fork server's messages and its refusals, without a process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from understudy.agent.forkserver import (
    MESSAGES,
    ForkExited,
    ForkInbox,
    ForkRefused,
    Message,
    Server,
    Spawn,
    Started,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def heard(sock: socket.socket) -> list[tuple[Message, list[int]]]:
    """Everything until the end of the stream."""
    inbox = ForkInbox(sock)
    found: list[tuple[Message, list[int]]] = []
    while inbox.receive():
        found += inbox.messages()
    inbox.close()
    return found


def spawn(id: int, spec: bytes = b"") -> Spawn:
    return Spawn(id, "mod:fn", spec, [(b"A", b"\xff=")], b"/")


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_messages_and_descriptors_stay_together_however_they_are_cut(
    pair: tuple[socket.socket, socket.socket], size: int
) -> None:
    """Each piece is read before the next is sent; whole messages are all sent before the first is read."""
    left, right = pair
    inbox = ForkInbox(right)
    said: list[Message] = [
        ForkExited(1, -9),
        spawn(2),
        Started(3, 4),
        ForkExited(5, 0),
        Started(6, 7),
        spawn(8, b"x" * 300),
    ]
    found: list[tuple[Message, list[int]]] = []
    sent = []
    for message in said:
        fds = [os.memfd_create("test") for _ in range({Spawn: 3, Started: 1}.get(type(message), 0))]
        sent.append([os.fstat(fd).st_ino for fd in fds])
        data = MESSAGES.encode(message)
        for at in range(0, len(data), size):
            socket.send_fds(left, [data[at : at + size]], fds if at == 0 else [])
            if size < len(data):
                assert inbox.receive()
                found += inbox.messages()
        for fd in fds:
            os.close(fd)
    left.shutdown(socket.SHUT_WR)
    while inbox.receive():
        found += inbox.messages()
    assert [message for message, _ in found] == said
    assert [[os.fstat(fd).st_ino for fd in fds] for _, fds in found] == sent
    for fd in (fd for _, fds in found for fd in fds):
        assert not os.get_inheritable(fd)
        os.close(fd)


def test_descriptors_of_an_incomplete_message_are_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    read, write = os.pipe()
    socket.send_fds(left, [MESSAGES.encode(spawn(1))[:-1]], [write, write, write])
    os.close(write)
    left.close()
    assert heard(right) == []
    assert os.read(read, 1) == b""
    os.close(read)


def test_a_fork_that_fails_is_told(pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    agent, control = pair
    read, write = os.pipe()
    socket.send_fds(agent, [MESSAGES.encode(spawn(1))], [write, write, write])
    os.close(write)
    agent.shutdown(socket.SHUT_WR)
    Server(control).serve()
    control.shutdown(socket.SHUT_WR)
    assert heard(agent) == [(ForkRefused(1, "[Errno 11] Resource temporarily unavailable"), [])]
    assert os.read(read, 1) == b""
    os.close(read)
