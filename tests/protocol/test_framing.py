from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.spoken import SAID
from understudy.protocol.framing import MAX_MESSAGE, FramingError
from understudy.protocol.messages import TO_AGENT, FromWorker, Stop, Telemetry

encode = TO_AGENT.encode


def fed(received: bytearray, data: bytes) -> list[FromWorker | Telemetry]:
    """The messages that are whole once `data` has come, too."""
    received += data
    return list(TO_AGENT.split(received))


said = st.lists(st.sampled_from(SAID), max_size=8)


@given(said, st.data())
def test_messages_come_out_whole_however_the_stream_is_cut(
    messages: list[FromWorker | Telemetry], data: st.DataObject
) -> None:
    stream = b"".join(encode(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    received = bytearray()
    got: list[FromWorker | Telemetry] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += stream[start:stop]
        got += TO_AGENT.split(received)
    assert got == messages


def test_byte_by_byte() -> None:
    received = bytearray()
    got = [message for byte in b"".join(map(encode, SAID)) for message in fed(received, bytes([byte]))]
    assert got == SAID


@given(st.binary(max_size=200))
def test_garbage_breaks_the_line_and_nothing_else(garbage: bytes) -> None:
    received = bytearray()
    try:
        got = fed(received, garbage)
    except FramingError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert got == []  # it waits for the rest of a message that never comes


@given(st.binary(max_size=60), said)
def test_a_frame_of_garbage_is_refused(body: bytes, before: list[FromWorker | Telemetry]) -> None:
    try:
        msgspec.msgpack.decode(body, type=FromWorker | Telemetry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        received = bytearray()
        for message in before:
            assert fed(received, encode(message)) == [message]
        with pytest.raises(FramingError, match="not a worker's message"):
            fed(received, struct.pack("<I", len(body)) + body)


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
    with pytest.raises(FramingError, match="not a worker's message"):
        fed(bytearray(), struct.pack("<I", len(body)) + body)


def test_a_length_over_the_limit_is_refused() -> None:
    with pytest.raises(FramingError, match=f"a worker's message of {MAX_MESSAGE + 1} bytes is too long"):
        fed(bytearray(), struct.pack("<I", MAX_MESSAGE + 1))
