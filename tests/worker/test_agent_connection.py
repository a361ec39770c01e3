from __future__ import annotations

import socket
import struct
import threading
from queue import Queue

import pytest

from tests.protocol.spoken import HEARD, SAID
from understudy.protocol.framing import MAX_MESSAGE
from understudy.protocol.messages import TO_AGENT, TO_WORKER, ExtensionMessage, FromWorker, Telemetry, ToWorker
from understudy.worker.agent_connection import AgentConnection

# -- the worker's end --------------------------------------------------------------------------------------------------


class Ends:
    """A line with the agent's end in the test's hands."""

    def __init__(self) -> None:
        self.agent, worker = socket.socketpair()
        self.agent.settimeout(10)
        self.line = AgentConnection(worker)
        self.heard: Queue[ToWorker | ExtensionMessage] = Queue()
        self.lost: Queue[str] = Queue()
        self.line.start(self.heard.put, self.lost.put)

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *exc: object) -> None:
        self.agent.close()
        self.line.close()
        for thread in threading.enumerate():
            if thread.name == "understudy line":
                thread.join(10)


def test_a_line_hears_everything_in_order_also_in_pieces() -> None:
    with Ends() as ends:
        stream = b"".join(TO_WORKER.encode(message) for message in HEARD)
        for start in range(0, len(stream), 7):
            ends.agent.sendall(stream[start : start + 7])
        assert [ends.heard.get(timeout=10) for _ in HEARD] == HEARD
        assert ends.lost.empty()


def test_what_is_said_arrives_whole_from_several_threads() -> None:
    with Ends() as ends:

        def talk() -> None:
            for message in SAID * 20:
                ends.line.send(message)

        threads = [threading.Thread(target=talk) for _ in range(4)]
        for thread in threads:
            thread.start()
        received = bytearray()
        got: list[FromWorker | Telemetry] = []
        while len(got) < 4 * 20 * len(SAID):
            received += ends.agent.recv(1 << 16)
            got += TO_AGENT.split(received)
        for thread in threads:
            thread.join()
        assert all(got.count(message) == 80 for message in SAID)


def test_the_agent_is_gone() -> None:
    with Ends() as ends:
        ends.agent.close()
        assert ends.lost.get(timeout=10) == "closed"
        ends.line.send(SAID[0])


def test_closing_ones_own_end_is_no_loss() -> None:
    """A worker that has ended its script closes the connection, and must not take that for the death of its agent."""
    ends = Ends()
    with ends:
        ends.line.close()
    assert ends.lost.empty()


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack("<I", MAX_MESSAGE + 1),
        struct.pack("<I", 3) + b"\xc1\xc1\xc1",
        TO_AGENT.encode(SAID[2]),
        struct.pack("<I", 5001) + b"\x91" * 5000 + b"\x01",
        struct.pack("<I", 5) + b"\xa4\xff\xff\xff\xff",
    ],
)
def test_an_agent_that_speaks_garbage_is_as_good_as_gone(stream: bytes) -> None:
    with Ends() as ends:
        ends.agent.sendall(stream)
        assert ends.lost.get(timeout=10)
        assert ends.heard.empty()
