"""The formats on a link: messages (msgpack, typed, never pickled) and headers of data."""

from __future__ import annotations

import hmac
import os
import struct
from typing import NamedTuple

import msgspec

from understudy.comm.faults import Fault
from understudy.comm.topology import LinkId
from understudy.protocol.framing import Framing

MAGIC = b"understudy/1"


class WireError(Exception):
    """The other side of a link breaks the protocol."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a dial: the dialling worker, and the link and generation that it dials for."""

    magic: bytes
    job: str
    generation: int
    link: LinkId
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    nonce: bytes
    proof: bytes


class Response(msgspec.Struct, frozen=True, tag="response"):
    proof: bytes


class Accept(msgspec.Struct, frozen=True, tag="accept"):
    pass


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    reason: str


class Poisoned(msgspec.Struct, frozen=True, tag="poisoned"):
    """The fault of a generation; spreads along control links to all workers."""

    generation: int
    fault: Fault


class Farewell(msgspec.Struct, frozen=True, tag="farewell"):
    """Announces an end of file that is no failure."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The answer on a link that was opened to ask, such as the address of a store."""

    value: str


Message = Hello | Challenge | Response | Accept | Refusal | Poisoned | Farewell | Answer

MESSAGES: Framing[Message] = Framing(Message, "message of a link", limit=1 << 16)
_encoder = msgspec.msgpack.Encoder()


def nonce() -> bytes:
    return os.urandom(16)


def prove(secret: bytes, side: str, hello: Hello, server_nonce: bytes) -> bytes:
    """Proof of the job's secret, bound to everything both sides said and to the side that says it."""
    return hmac.digest(secret, side.encode() + b"\0" + _encoder.encode(hello) + server_nonce, "sha256")


def proven(secret: bytes, side: str, hello: Hello, server_nonce: bytes, proof: bytes) -> bool:
    return hmac.compare_digest(prove(secret, side, hello, server_nonce), proof)


_header = struct.Struct("<4sIQQQ")
HEADER = _header.size


class Header(NamedTuple):
    """Precedes the bytes of every operation on every data link."""

    generation: int
    sequence: int
    signature: int
    length: int


def pack_header(header: Header) -> bytes:
    return _header.pack(b"USTD", *header)


def unpack_header(data: bytes | bytearray | memoryview) -> Header:
    magic, generation, sequence, signature, length = _header.unpack(data)
    if magic != b"USTD":
        raise WireError("the stream is out of step")
    return Header(generation, sequence, signature, length)
