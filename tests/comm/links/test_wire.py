"""Messages on a socket: each is decoded as it was sent, and any other bytes are refused."""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.comm.faults import Fault
from understudy.comm.links import wire
from understudy.comm.links.wire import Accept, Answer, Challenge, Farewell, Hello, Message, Poisoned, Refusal, Response
from understudy.comm.topology import Kind, LinkId
from understudy.protocol.framing import FramingError

texts = st.text(max_size=50)
numbers = st.integers(0, (1 << 63) - 1)
hellos = st.builds(
    Hello,
    magic=st.binary(max_size=20),
    job=texts,
    generation=numbers,
    link=st.builds(LinkId, kind=st.sampled_from(get_args(Kind)), group=texts, rail=numbers, source=texts, target=texts),
    nonce=st.binary(max_size=20),
)
faults = st.builds(
    Fault,
    how=st.sampled_from(["eof", "timeout", "interrupt", "mismatch", "vacant", "garbage", "error"]),
    reason=texts,
    who=texts,
    noticed_by=texts,
    when=st.floats(allow_nan=False),
)
messages: st.SearchStrategy[Message] = st.one_of(
    hellos,
    st.builds(Challenge, nonce=st.binary(), proof=st.binary()),
    st.builds(Response, proof=st.binary()),
    st.just(Accept()),
    st.builds(Refusal, reason=texts),
    st.builds(Poisoned, generation=numbers, fault=faults),
    st.just(Farewell()),
    st.builds(Answer, value=texts),
)


@given(messages)
def test_there_and_back(message: Message) -> None:
    data = wire.MESSAGES.encode(message)
    body = data[4:]
    assert wire.MESSAGES.decode(body) == message


@given(st.binary(max_size=300))
def test_garbage_is_a_wire_error(data: bytes) -> None:
    with suppress(FramingError):
        message = wire.MESSAGES.decode(data)
        assert wire.MESSAGES.decode(wire.MESSAGES.encode(message)[4:]) == message


@given(messages, st.data())
def test_a_damaged_message_is_a_wire_error(message: Message, data: st.DataObject) -> None:
    body = bytearray(wire.MESSAGES.encode(message)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, len(body) - 1))
        if data.draw(st.booleans()):
            body[where] = data.draw(st.integers(0, 255))
        elif len(body) > 1:
            del body[where]
    with suppress(FramingError):
        wire.MESSAGES.decode(bytes(body))


@pytest.mark.parametrize("opening", [b"\x91", b"\x82\xa4type\xa5hello\xa1x\x91", b"\x81\x91", b"\x81\xa4type\x91"])
def test_a_message_that_never_stops_nesting(opening: bytes) -> None:
    with pytest.raises(FramingError):
        wire.MESSAGES.decode(opening + b"\x91" * 60_000)


def test_an_unknown_message() -> None:
    with pytest.raises(FramingError, match="not a message of a link"):
        wire.MESSAGES.decode(msgspec.msgpack.encode({"type": "exec", "code": "print(1)"}))
    with pytest.raises(FramingError, match="not a message of a link"):
        wire.MESSAGES.decode(msgspec.msgpack.encode({"type": "poisoned", "generation": "1", "fault": None}))


@pytest.mark.parametrize("prefix", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"GET ", b"\x01\0\x01\0"])
def test_a_length_out_of_bounds(prefix: bytes) -> None:
    with pytest.raises(FramingError):
        list(wire.MESSAGES.split(bytearray(prefix)))


def test_the_longest_message() -> None:
    assert list(wire.MESSAGES.split(bytearray((1 << 16).to_bytes(4, "little")))) == []


@given(hellos, hellos, st.binary(min_size=1), st.binary(min_size=1), st.binary(max_size=20), st.binary(max_size=20))
def test_a_proof_is_bound_to_all_that_was_said(
    hello: Hello, other: Hello, secret: bytes, guess: bytes, nonce: bytes, later: bytes
) -> None:
    proof = wire.prove(secret, "client", hello, nonce)
    assert wire.proven(secret, "client", hello, nonce, proof)
    assert not wire.proven(secret, "server", hello, nonce, proof)
    assert not wire.proven(secret, "client", hello, nonce, proof[:-1])
    assert not wire.proven(secret, "client", hello, nonce, b"")
    assert wire.proven(guess, "client", hello, nonce, proof) == (guess.rstrip(b"\0") == secret.rstrip(b"\0"))
    assert wire.proven(secret, "client", hello, later, proof) == (later == nonce)
    for field in Hello.__struct_fields__:
        changed = msgspec.structs.replace(hello, **{field: getattr(other, field)})
        assert wire.proven(secret, "client", changed, nonce, proof) == (changed == hello)


def test_nonces_differ() -> None:
    assert len({wire.nonce() for _ in range(1000)}) == 1000


@given(st.integers(0, (1 << 32) - 1), *[st.integers(0, (1 << 64) - 1)] * 3)
def test_headers(generation: int, sequence: int, signature: int, length: int) -> None:
    header = wire.Header(generation, sequence, signature, length)
    data = wire.pack_header(header)
    assert len(data) == wire.HEADER
    assert wire.unpack_header(data) == wire.unpack_header(bytearray(data)) == header


@given(st.binary(min_size=wire.HEADER, max_size=wire.HEADER))
def test_a_header_out_of_step(data: bytes) -> None:
    if data[:4] != b"USTD":
        with pytest.raises(wire.WireError, match="out of step"):
            wire.unpack_header(data)
