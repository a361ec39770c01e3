from __future__ import annotations

import socket
import struct
import threading
from queue import Queue

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.comm.roster import Roster, Worker
from understudy.steward.samples import Sample
from understudy.worker.line import MAX_MESSAGE, Line, LineBroken, Splitter, encode
from understudy.worker.messages import (
    Arm,
    Aside,
    Cancel,
    Copied,
    Done,
    Failed,
    Finish,
    Halt,
    Halted,
    Heard,
    Here,
    Inject,
    Leave,
    Prepare,
    Prepared,
    Progress,
    Rehearse,
    Resume,
    Said,
    Stop,
    Tracked,
)

W0 = Worker("w0", "m0", port=4)
ROSTER = Roster.of(1, [(0, "w0")], [W0])
SAID: list[Said | Aside] = [
    Here(W0),
    Tracked(0, (0, 1), 1 << 40),
    Prepared(2, 0.25),
    Halted(1, 2, 3, True, True, False, "eof", "w1 is gone", "w1"),
    Done(5, "ab", True),
    Failed(3, "ValueError: ü", "…\n" * 50),
    Progress(1, 2, 0.5, {"loss": 1.5}, True),
    Progress(1, 2, 0.5, sample=Sample("w0", 1, 2, 0.25, odd="repeated")),
    Copied(1, 4, 1 << 20, 0.5, 0.01),
]
HEARD: list[Heard] = [
    Rehearse(1),
    Prepare(ROSTER),
    Resume(ROSTER, 3),
    Arm(2),
    Cancel(2),
    Halt(1, "w1 is gone"),
    Finish(),
    Leave(),
    Stop(),
]
said = st.lists(st.sampled_from(SAID), max_size=8)


@given(said, st.data())
def test_messages_come_out_whole_however_the_stream_is_cut(messages: list[Said | Aside], data: st.DataObject) -> None:
    stream = b"".join(encode(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    splitter, got = Splitter(), []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += splitter.feed(stream[start:stop])
    assert got == messages


def test_byte_by_byte() -> None:
    splitter = Splitter()
    got = [message for byte in b"".join(map(encode, SAID)) for message in splitter.feed(bytes([byte]))]
    assert got == SAID


@given(st.binary(max_size=200))
def test_garbage_breaks_the_line_and_nothing_else(garbage: bytes) -> None:
    splitter = Splitter()
    try:
        got = splitter.feed(garbage)
    except LineBroken as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert got == []  # it waits for the rest of a message that never comes


@given(st.binary(max_size=60), said)
def test_a_frame_of_garbage_is_refused(body: bytes, before: list[Said | Aside]) -> None:
    try:
        msgspec.msgpack.decode(body, type=Said | Aside)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        splitter = Splitter()
        for message in before:
            assert splitter.feed(encode(message)) == [message]
        with pytest.raises(LineBroken, match="not a worker's message"):
            splitter.feed(struct.pack("<I", len(body)) + body)


@pytest.mark.parametrize(
    "body",
    [
        msgspec.msgpack.encode({"type": "unheard-of"}),
        msgspec.msgpack.encode({"type": "prepared", "generation": "two"}),
        msgspec.msgpack.encode({"type": "prepared"}),
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode(Stop()),
        b"\x91" * 5000 + b"\x01",
        b"\xa4\xff\xff\xff\xff",
        b"",
    ],
)
def test_what_no_worker_says(body: bytes) -> None:
    with pytest.raises(LineBroken, match="not a worker's message"):
        Splitter().feed(struct.pack("<I", len(body)) + body)


def test_a_length_that_nobody_means() -> None:
    with pytest.raises(LineBroken, match=f"a message of {MAX_MESSAGE + 1} bytes is too long"):
        Splitter().feed(struct.pack("<I", MAX_MESSAGE + 1))


# -- the worker's end --------------------------------------------------------------------------------------------------


class Ends:
    """A line with the agent's end in the test's hands."""

    def __init__(self) -> None:
        self.agent, worker = socket.socketpair()
        self.agent.settimeout(10)
        self.line = Line(worker)
        self.heard: Queue[Heard | Inject] = Queue()
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
        stream = b"".join(encode(message) for message in HEARD)
        for start in range(0, len(stream), 7):
            ends.agent.sendall(stream[start : start + 7])
        assert [ends.heard.get(timeout=10) for _ in HEARD] == HEARD
        assert ends.lost.empty()


def test_what_is_said_arrives_whole_from_several_threads() -> None:
    with Ends() as ends:

        def talk() -> None:
            for message in SAID * 20:
                ends.line.say(message)

        threads = [threading.Thread(target=talk) for _ in range(4)]
        for thread in threads:
            thread.start()
        splitter = Splitter()
        got: list[Said | Aside] = []
        while len(got) < 4 * 20 * len(SAID):
            got += splitter.feed(ends.agent.recv(1 << 16))
        for thread in threads:
            thread.join()
        assert all(got.count(message) == 80 for message in SAID)


def test_the_agent_is_gone() -> None:
    with Ends() as ends:
        ends.agent.close()
        assert ends.lost.get(timeout=10) == "the agent is gone"
        ends.line.say(SAID[0])


def test_closing_ones_own_end_is_no_loss() -> None:
    """A worker whose script has ended closes its line, and must not take that for the death of its agent."""
    ends = Ends()
    with ends:
        ends.line.close()
    assert ends.lost.empty()


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack("<I", MAX_MESSAGE + 1),
        struct.pack("<I", 3) + b"\xc1\xc1\xc1",
        encode(SAID[2]),
        struct.pack("<I", 5001) + b"\x91" * 5000 + b"\x01",
        struct.pack("<I", 5) + b"\xa4\xff\xff\xff\xff",
    ],
)
def test_an_agent_that_speaks_garbage_is_as_good_as_gone(stream: bytes) -> None:
    with Ends() as ends:
        ends.agent.sendall(stream)
        assert ends.lost.get(timeout=10)
        assert ends.heard.empty()
