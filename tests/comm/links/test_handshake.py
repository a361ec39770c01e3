"""Bad input over a real port: refused at once, in one clear line on each side, and the job goes on."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterator

import msgspec
import pytest

from tests.comm.helpers import SECRET, Ensemble, eventually, expected, first_roster, prepare, sums
from understudy.comm.faults import LinkFailed, PrepareFailed
from understudy.comm.links import handshake, wire
from understudy.comm.links.link import Link
from understudy.comm.links.wire import Accept, Challenge, Hello, Message, Refusal, Response
from understudy.comm.network import NetworkFabric
from understudy.comm.topology import LinkId
from understudy.protocol.roster import Roster, WorkerAddress


class TwoWorkers:
    """Two workers in generation 2, and a stranger that connects to them."""

    def __init__(self, ensemble: Ensemble, caplog: pytest.LogCaptureFixture) -> None:
        self.ensemble = ensemble
        first, fabrics, self.endpoints = ensemble.start("m0", "m1")
        self.roster = first.successor({})
        prepare(self.roster, fabrics)
        for fabric in fabrics:
            fabric.switch(2)
        self.a, self.b = fabrics
        self._log = caplog

    def refusals(self) -> list[str]:
        return [record.getMessage() for record in self._log.records if record.name == "understudy.comm"]

    def dial(self, by: NetworkFabric, roster: Roster, link: LinkId) -> Link:
        return self.ensemble.io.start(_dial(by, roster, link)).result(20)

    def goes_on(self, *expected: str) -> None:
        """The door has said just this, and the job has noticed nothing."""
        eventually(lambda: len(self.refusals()) >= len(expected))
        assert sums(self.endpoints) == [11.0, 11.0]
        assert self.a.fault is None
        assert self.b.fault is None
        said = self.refusals()
        assert len(said) == len(expected), said
        for line, part in zip(said, expected, strict=True):
            assert line.startswith("w0: refused"), line
            assert part in line


async def _dial(by: NetworkFabric, roster: Roster, link: LinkId) -> Link:
    return await by._rendezvous.link(roster, link)


@pytest.fixture
def two(caplog: pytest.LogCaptureFixture) -> Iterator[TwoWorkers]:
    caplog.set_level(logging.WARNING, logger="understudy.comm")
    with Ensemble() as ensemble:
        yield TwoWorkers(ensemble, caplog)


def ring(source: NetworkFabric, target: NetworkFabric) -> LinkId:
    return LinkId("ring", "g0[0-1]", 0, source.uid, target.uid)


def test_the_wrong_secret(two: TwoWorkers) -> None:
    (stranger,) = two.ensemble.hire("m7", secret=b"a guess")
    with pytest.raises(LinkFailed, match=r"role 0 \(w0 on m0\): it does not know this job's secret"):
        two.dial(stranger, two.roster, ring(stranger, two.a))
    two.goes_on("wrong secret")


def test_a_peer_that_does_not_check_the_secret_is_refused(two: TwoWorkers) -> None:
    """The peer does not ask for a proof, and answers the challenge with noise."""
    with Talk(two.a) as talk:
        talk.send(hello(two.a))
        assert isinstance(talk.receive(), Challenge)
        talk.send(Response(b"\0" * 32))
        assert talk.receive() == Refusal("wrong secret")
        assert talk.is_over()
    two.goes_on("wrong secret")


def test_a_proof_sent_back(two: TwoWorkers) -> None:
    """What this side proved with is no proof in the other direction."""
    with Talk(two.a) as talk:
        talk.send(hello(two.a))
        challenge = talk.receive()
        assert isinstance(challenge, Challenge)
        talk.send(Response(challenge.proof))
        assert talk.receive() == Refusal("wrong secret")
    two.goes_on("wrong secret")


def test_the_wrong_job(two: TwoWorkers) -> None:
    (stranger,) = two.ensemble.hire("m7", job="another")
    with pytest.raises(LinkFailed, match="this is job test, not another"):
        two.dial(stranger, two.roster, ring(stranger, two.a))
    two.goes_on("it is of job another")


def test_a_stale_generation(two: TwoWorkers) -> None:
    (late,) = two.ensemble.hire("m7")
    old = first_roster([two.a, late])
    with pytest.raises(LinkFailed, match="generation 1 is stale, this worker is in generation 2"):
        two.dial(late, old, ring(late, two.a))
    two.goes_on("a ring link from w2 at 127.0.0.1")


def test_a_worker_that_is_not_in_the_roster(two: TwoWorkers) -> None:
    (other,) = two.ensemble.hire("m7")
    with pytest.raises(LinkFailed, match="w2 is not in the roster of generation 2"):
        two.dial(other, two.roster, ring(other, two.a))
    two.goes_on("w2 is not in the roster of generation 2")


@pytest.mark.parametrize("kind", ["ring", "pair", "arena", "control", "tree"])
def test_a_worker_that_came_before_the_roster_that_lacks_it(two: TwoWorkers, kind: str) -> None:
    """It waits with a link for generation 3 before that is known here, and is not let in once it is."""
    (other,) = two.ensemble.hire("m7")
    dialled = two.ensemble.io.start(
        _dial(other, two.roster.successor({}), LinkId(kind, "g0[0-1]", 0, other.uid, two.a.uid))  # type: ignore[arg-type]
    )
    eventually(lambda: expected(two.a, 3) > 0)
    following = two.roster.successor({})
    prepare(following, [two.a, two.b])
    if kind != "pair":
        for fabric in (two.a, two.b):
            fabric.switch(3)
        prepare(following.successor({}), [two.a, two.b])
        for fabric in (two.a, two.b):
            fabric.switch(4)
    with pytest.raises(LinkFailed):
        dialled.result(5)
    two.goes_on("from w2")


def test_a_hello_for_another_worker_is_refused(two: TwoWorkers) -> None:
    with Talk(two.a) as talk:
        talk.enter(hello(two.a, target="w1", source="w0"))
        assert talk.receive() == Refusal("this is w0, not w1")
    two.goes_on("this is w0, not w1")


@pytest.mark.parametrize("kind", ["ring", "tree", "control"])
def test_a_link_that_is_there_already(two: TwoWorkers, kind: str) -> None:
    """No worker of the current generation waits for it."""
    with Talk(two.a) as talk:
        group = "" if kind == "control" else "g0[0-1]"
        talk.enter(hello(two.a, kind=kind, group=group, source="w1"))
        assert talk.receive() == Refusal("this worker expects no such link in generation 2")
    two.goes_on("this worker expects no such link in generation 2")


def test_a_pair_with_a_worker_outside_the_group(two: TwoWorkers) -> None:
    (third,) = two.ensemble.hire("m2")
    roster = Roster.of(3, [(0, "w0"), (1, "w1"), (2, "w2")], [f.worker for f in (two.a, two.b, third)])
    prepare(roster, [two.a, two.b, third])
    for fabric in (two.a, two.b, third):
        fabric.switch(3)
    with pytest.raises(LinkFailed, match=r"w2 has no role of g0\[0-1\]"):
        two.dial(third, roster, LinkId("pair", "g0[0-1]", 0, "w2", "w0"))
    two.goes_on("a pair link from w2")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 64,
        b"\xff" * 64,
        struct.pack("<I", 1 << 31) + b"x",
        struct.pack("<I", (1 << 16) + 1),
        struct.pack("<I", 5) + b"hello",
        struct.pack("<I", 60_009) + b"\x82\xa4type\xa5hello\xa1x" + b"\x91" * 59_996,
        struct.pack("<I", 8) + b"\x81\xa4type\xa2\xff",
        wire.MESSAGES.encode(Accept()),
        wire.MESSAGES.encode(Refusal("no")),
    ],
    ids=["http", "tls", "zeros", "ones", "huge", "too-long", "text", "nested", "not-text", "accept", "refusal"],
)
def test_garbage(two: TwoWorkers, data: bytes) -> None:
    with Talk(two.a) as talk:
        talk.sock.sendall(data)
        assert talk.is_over()
    two.goes_on("not an Understudy")


def test_another_version(two: TwoWorkers) -> None:
    with Talk(two.a) as talk:
        talk.send(hello(two.a, magic=b"understudy/99"))
        assert talk.is_over()
    two.goes_on("not an Understudy greeting")


def test_connect_and_close(two: TwoWorkers) -> None:
    with Talk(two.a):
        pass
    two.goes_on("refused a connection from 127.0.0.1:")


def test_half_a_message_and_gone(two: TwoWorkers) -> None:
    with Talk(two.a) as talk:
        talk.sock.sendall(wire.MESSAGES.encode(hello(two.a))[:20])
    two.goes_on("closed in the middle of a message")


@pytest.mark.parametrize("sent", [0, 3, 20, None])
def test_silence(two: TwoWorkers, sent: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "LIMIT_S", 0.2)
    with Talk(two.a) as talk:
        talk.sock.sendall(wire.MESSAGES.encode(hello(two.a))[:sent])
        if sent is None:
            assert isinstance(talk.receive(), Challenge)
        assert talk.is_over()
    two.goes_on("no greeting in time")


def test_many_strangers_at_once(two: TwoWorkers) -> None:
    talks = [Talk(two.a) for _ in range(200)]
    assert sums(two.endpoints) == [11.0, 11.0]
    for talk in talks:
        talk.sock.sendall(b"\xff" * 10)
    for talk in talks:
        assert talk.is_over()
        talk.sock.close()
    two.goes_on(*["not an Understudy message"] * 200)


def test_a_prepared_roster_with_a_worker_of_another_job(two: TwoWorkers) -> None:
    """What the dialling side of a preparation sees; the others hear of it, and all go on."""
    (stranger,) = two.ensemble.hire("m7", secret=b"a guess")
    roster = Roster.of(3, [(0, "w0"), (1, "w1"), (2, "w2")], [f.worker for f in (two.a, two.b, stranger)], roles=3)
    futures = [fabric.prepare(roster) for fabric in (two.a, two.b, stranger)]
    with pytest.raises(PrepareFailed, match=r"generation 3 could not be prepared by w0: .*secret"):
        futures[0].result(5)
    eventually(lambda: two.a.prepared == two.b.prepared == 2)
    assert sums(two.endpoints) == [11.0, 11.0]
    stranger._membership.cancel(3)
    with pytest.raises(PrepareFailed):
        futures[2].result(5)


def test_preparing_fails_if_a_peer_does_not_listen(two: TwoWorkers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gone = WorkerAddress("w9", "m9", "127.0.0.1", port)
    roster = Roster.of(3, [(0, "w0"), (1, "w1"), (2, "w9")], [two.a.worker, two.b.worker, gone])
    futures = [fabric.prepare(roster) for fabric in (two.a, two.b)]
    with pytest.raises(PrepareFailed, match=r"link with role 2 \(w9 on m9\): .*Connect call failed"):
        futures[0].result(5)
    eventually(lambda: two.a.prepared == two.b.prepared == 2)
    assert sums(two.endpoints) == [11.0, 11.0]


def test_the_proof_comes_before_the_news(two: TwoWorkers) -> None:
    """A stranger learns nothing from a refusal: neither the job's name nor its generation."""
    with Talk(two.a) as talk:
        talk.send(hello(two.a, job="which?", generation=1))
        challenge = talk.receive()
        assert isinstance(challenge, Challenge)
        assert len(challenge.proof) == 32
    two.goes_on("closed")


def hello(to: NetworkFabric, **changes: object) -> Hello:
    link = LinkId("ring", "g0[0-1]", 0, "w1", to.uid)
    of_link = {name: changes.pop(name) for name in LinkId._fields if name in changes}
    greeting = Hello(wire.MAGIC, "test", 2, link._replace(**of_link), wire.nonce())  # type: ignore[arg-type]
    return msgspec.structs.replace(greeting, **changes)


class Talk:
    """A connection to a worker's port, without a fabric behind it."""

    def __init__(self, to: NetworkFabric) -> None:
        self.sock = socket.create_connection((to.worker.host, to.worker.port), timeout=5)

    def send(self, message: Message) -> None:
        self.sock.sendall(wire.MESSAGES.encode(message))

    def receive(self) -> Message:
        return wire.MESSAGES.receive(self.sock.recv)

    def enter(self, greeting: Hello) -> None:
        """Go through the handshake to the end of the authentication."""
        self.send(greeting)
        challenge = self.receive()
        assert isinstance(challenge, Challenge)
        self.send(Response(wire.prove(SECRET, "client", greeting, challenge.nonce)))

    def is_over(self) -> bool:
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
