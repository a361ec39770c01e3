"""Bad input over a real port: refused at once, in one clear line on each side, and the job goes on."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.comm.helpers import SECRET, Ensemble, eventually, expected, first_roster, prepare, sums
from understudy.comm.faults import LinkFailed, PrepareFailed
from understudy.comm.links import handshake, wire
from understudy.comm.links.link import Link
from understudy.comm.links.wire import Accept, Challenge, Hello, Message, Refusal, Response
from understudy.comm.network import NetworkFabric
from understudy.comm.topology import LinkId
from understudy.protocol.roster import Roster, WorkerAddress


class Stage:
    """Two workers that play in generation 2, and a stranger at their door."""

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
def stage(caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    caplog.set_level(logging.WARNING, logger="understudy.comm")
    with Ensemble() as ensemble:
        yield Stage(ensemble, caplog)


def ring(source: NetworkFabric, target: NetworkFabric) -> LinkId:
    return LinkId("ring", "g0[0-1]", 0, source.uid, target.uid)


def test_the_wrong_secret(stage: Stage) -> None:
    (stranger,) = stage.ensemble.hire("m7", secret=b"a guess")
    with pytest.raises(LinkFailed, match=r"role 0 \(w0 on m0\): it does not know this job's secret"):
        stage.dial(stranger, stage.roster, ring(stranger, stage.a))
    stage.goes_on("wrong secret")


def test_a_stranger_who_does_not_check_the_secret(stage: Stage) -> None:
    """It goes on although this side has not proven anything, and answers the challenge with noise."""
    with Talk(stage.a) as talk:
        talk.send(hello(stage.a))
        assert isinstance(talk.receive(), Challenge)
        talk.send(Response(b"\0" * 32))
        assert talk.receive() == Refusal("wrong secret")
        assert talk.is_over()
    stage.goes_on("wrong secret")


def test_a_proof_sent_back(stage: Stage) -> None:
    """What this side proved with is no proof in the other direction."""
    with Talk(stage.a) as talk:
        talk.send(hello(stage.a))
        challenge = talk.receive()
        assert isinstance(challenge, Challenge)
        talk.send(Response(challenge.proof))
        assert talk.receive() == Refusal("wrong secret")
    stage.goes_on("wrong secret")


def test_the_wrong_job(stage: Stage) -> None:
    (stranger,) = stage.ensemble.hire("m7", job="another")
    with pytest.raises(LinkFailed, match="this is job test, not another"):
        stage.dial(stranger, stage.roster, ring(stranger, stage.a))
    stage.goes_on("it is of job another")


def test_a_stale_generation(stage: Stage) -> None:
    (late,) = stage.ensemble.hire("m7")
    old = first_roster([stage.a, late])
    with pytest.raises(LinkFailed, match="generation 1 is stale, this worker is in generation 2"):
        stage.dial(late, old, ring(late, stage.a))
    stage.goes_on("a ring link from w2 at 127.0.0.1")


def test_a_worker_that_is_not_in_the_roster(stage: Stage) -> None:
    (other,) = stage.ensemble.hire("m7")
    with pytest.raises(LinkFailed, match="w2 is not in the roster of generation 2"):
        stage.dial(other, stage.roster, ring(other, stage.a))
    stage.goes_on("w2 is not in the roster of generation 2")


@pytest.mark.parametrize("kind", ["ring", "pair", "arena", "control", "tree"])
def test_a_worker_that_came_before_the_roster_that_lacks_it(stage: Stage, kind: str) -> None:
    """It waits with a link for generation 3 before that is known here, and is not let in once it is."""
    (other,) = stage.ensemble.hire("m7")
    dialled = stage.ensemble.io.start(
        _dial(other, stage.roster.successor({}), LinkId(kind, "g0[0-1]", 0, other.uid, stage.a.uid))  # type: ignore[arg-type]
    )
    eventually(lambda: expected(stage.a, 3) > 0)
    following = stage.roster.successor({})
    prepare(following, [stage.a, stage.b])
    if kind != "pair":
        for fabric in (stage.a, stage.b):
            fabric.switch(3)
        prepare(following.successor({}), [stage.a, stage.b])
        for fabric in (stage.a, stage.b):
            fabric.switch(4)
    with pytest.raises(LinkFailed):
        dialled.result(5)
    stage.goes_on("from w2")


def test_meant_for_somebody_else(stage: Stage) -> None:
    with Talk(stage.a) as talk:
        talk.enter(hello(stage.a, target="w1", source="w0"))
        assert talk.receive() == Refusal("this is w0, not w1")
    stage.goes_on("this is w0, not w1")


@pytest.mark.parametrize("kind", ["ring", "tree", "control"])
def test_a_link_that_is_there_already(stage: Stage, kind: str) -> None:
    """Nobody waits for it in a generation that is in play."""
    with Talk(stage.a) as talk:
        group = "" if kind == "control" else "g0[0-1]"
        talk.enter(hello(stage.a, kind=kind, group=group, source="w1"))
        assert talk.receive() == Refusal("this worker expects no such link in generation 2")
    stage.goes_on("this worker expects no such link in generation 2")


def test_a_pair_with_a_worker_outside_the_group(stage: Stage) -> None:
    (third,) = stage.ensemble.hire("m2")
    roster = Roster.of(3, [(0, "w0"), (1, "w1"), (2, "w2")], [f.worker for f in (stage.a, stage.b, third)])
    prepare(roster, [stage.a, stage.b, third])
    for fabric in (stage.a, stage.b, third):
        fabric.switch(3)
    with pytest.raises(LinkFailed, match=r"w2 has no role of g0\[0-1\]"):
        stage.dial(third, roster, LinkId("pair", "g0[0-1]", 0, "w2", "w0"))
    stage.goes_on("a pair link from w2")


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
def test_garbage(stage: Stage, data: bytes) -> None:
    with Talk(stage.a) as talk:
        talk.sock.sendall(data)
        assert talk.is_over()
    stage.goes_on("not an Understudy")


def test_another_version(stage: Stage) -> None:
    with Talk(stage.a) as talk:
        talk.send(hello(stage.a, magic=b"understudy/99"))
        assert talk.is_over()
    stage.goes_on("not an Understudy greeting")


def test_connect_and_close(stage: Stage) -> None:
    with Talk(stage.a):
        pass
    stage.goes_on("refused a connection from 127.0.0.1:")


def test_half_a_message_and_gone(stage: Stage) -> None:
    with Talk(stage.a) as talk:
        talk.sock.sendall(wire.MESSAGES.encode(hello(stage.a))[:20])
    stage.goes_on("closed in the middle of a message")


@pytest.mark.parametrize("sent", [0, 3, 20, None])
def test_silence(stage: Stage, sent: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "LIMIT_S", 0.2)
    with Talk(stage.a) as talk:
        talk.sock.sendall(wire.MESSAGES.encode(hello(stage.a))[:sent])
        if sent is None:
            assert isinstance(talk.receive(), Challenge)
        assert talk.is_over()
    stage.goes_on("no greeting in time")


def test_many_strangers_at_once(stage: Stage) -> None:
    talks = [Talk(stage.a) for _ in range(200)]
    assert sums(stage.endpoints) == [11.0, 11.0]
    for talk in talks:
        talk.sock.sendall(b"\xff" * 10)
    for talk in talks:
        assert talk.is_over()
        talk.sock.close()
    stage.goes_on(*["not an Understudy message"] * 200)


def test_a_prepared_roster_with_a_worker_of_another_job(stage: Stage) -> None:
    """What the dialling side of a preparation sees; the others hear of it, and all go on."""
    (stranger,) = stage.ensemble.hire("m7", secret=b"a guess")
    roster = Roster.of(3, [(0, "w0"), (1, "w1"), (2, "w2")], [f.worker for f in (stage.a, stage.b, stranger)], roles=3)
    futures = [fabric.prepare(roster) for fabric in (stage.a, stage.b, stranger)]
    with pytest.raises(PrepareFailed, match=r"generation 3 could not be prepared by w0: .*secret"):
        futures[0].result(5)
    eventually(lambda: stage.a.prepared == stage.b.prepared == 2)
    assert sums(stage.endpoints) == [11.0, 11.0]
    stranger._membership.cancel(3)
    with pytest.raises(PrepareFailed):
        futures[2].result(5)


def test_nobody_listens(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gone = WorkerAddress("w9", "m9", "127.0.0.1", port)
    roster = Roster.of(3, [(0, "w0"), (1, "w1"), (2, "w9")], [stage.a.worker, stage.b.worker, gone])
    futures = [fabric.prepare(roster) for fabric in (stage.a, stage.b)]
    with pytest.raises(PrepareFailed, match=r"link with role 2 \(w9 on m9\): .*Connect call failed"):
        futures[0].result(5)
    eventually(lambda: stage.a.prepared == stage.b.prepared == 2)
    assert sums(stage.endpoints) == [11.0, 11.0]


def test_the_proof_comes_before_the_news(stage: Stage) -> None:
    """A stranger learns nothing from a refusal: neither the job's name nor its generation."""
    with Talk(stage.a) as talk:
        talk.send(hello(stage.a, job="which?", generation=1))
        challenge = talk.receive()
        assert isinstance(challenge, Challenge)
        assert len(challenge.proof) == 32
    stage.goes_on("closed")


def hello(to: NetworkFabric, **changes: object) -> Hello:
    fields: dict[str, object] = {
        "magic": wire.MAGIC,
        "job": "test",
        "generation": 2,
        "kind": "ring",
        "group": "g0[0-1]",
        "rail": 0,
        "source": "w1",
        "target": to.uid,
        "nonce": wire.nonce(),
    }
    return Hello(**fields | changes)  # type: ignore[arg-type]


class Talk:
    """A connection to a worker's port, without a fabric behind it."""

    def __init__(self, to: NetworkFabric) -> None:
        self.sock = socket.create_connection((to.worker.host, to.worker.port), timeout=5)

    def send(self, message: Message) -> None:
        self.sock.sendall(wire.MESSAGES.encode(message))

    def receive(self) -> Message:
        return wire.MESSAGES.receive(self.sock.recv)

    def enter(self, greeting: Hello) -> None:
        """Up to the point where the other side knows whom it talks to."""
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
