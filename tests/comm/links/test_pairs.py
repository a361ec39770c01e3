"""Point-to-point traffic over socket pairs: what happens to messages that cannot finish."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from understudy.comm.faults import Fault, Poison
from understudy.comm.links import wire
from understudy.comm.links.link import Link
from understudy.comm.links.pairs import Pairs, Receive, Send
from understudy.comm.topology import LinkId


class Pair:
    """Rank 0's traffic with rank 1; the test holds rank 1's end of the link."""

    def __init__(self, limit: float = 20.0) -> None:
        self.asked: list[int] = []
        self.poison = Poison()
        self.pairs = Pairs("g0[0-1]", self.asked.append, limit)
        self.far: list[socket.socket] = []
        self.near: list[Link] = []
        self.pairs.adopt(1, self.poison, (1,), {1: self.link()})

    def link(self) -> Link:
        near, far = socket.socketpair()
        far.settimeout(5)
        self.far.append(far)
        self.near.append(Link(near, LinkId("pair", "g0[0-1]", 0, "w0", "w1"), "w1", "role 1 (w1 on m1)"))
        return self.near[-1]

    def post(self, job: Send | Receive) -> Send | Receive:
        self.pairs.submit(job)
        return job

    def write(self, tensor: torch.Tensor, tag: int = 0, part: int | None = None) -> None:
        data = tensor.numpy().tobytes()
        self.far[-1].sendall(wire.pack_header(wire.Header(1, tag, 0, len(data))) + data[:part])

    def close(self) -> None:
        self.pairs.close()
        for link in self.near:
            link.close()
        for far in self.far:
            far.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def fault(poison: Poison) -> Fault:
    assert poison.fault is not None
    return poison.fault


def test_there_and_back(pair: Pair) -> None:
    job = pair.post(Receive(1, 7, torch.zeros(1000)))
    pair.write(torch.arange(1000.0), tag=7)
    assert job.done.wait(5)
    assert torch.equal(job.tensor, torch.arange(1000.0))
    sent = pair.post(Send(1, 3, torch.ones(2)))
    assert sent.done.wait(5)
    data = pair.far[0].recv(1000)
    assert wire.unpack_header(data[: wire.HEADER])[:2] == (1, 3)
    assert data[wire.HEADER :] == torch.ones(2).numpy().tobytes()


@pytest.mark.parametrize("arrived", [None, 0, 1, 3999], ids=["nothing", "header", "little", "nearly all"])
def test_an_interrupt_frees_a_receive_however_much_has_come(pair: Pair, arrived: int | None) -> None:
    job = pair.post(Receive(1, 0, torch.zeros(1000)))
    if arrived is not None:
        pair.write(torch.ones(1000), part=arrived)
        if arrived:
            until(lambda: job.tensor.view(torch.uint8)[arrived // 4 * 4 - 1] != 0 or arrived < 4)
    pair.poison.set(Fault("interrupt", "a test"))
    assert job.done.wait(5)


def test_an_interrupt_frees_a_send_without_a_receiver(pair: Pair) -> None:
    job = pair.post(Send(1, 0, torch.zeros(5_000_000)))
    assert not job.done.wait(0.05)
    pair.poison.set(Fault("interrupt", "a test"))
    assert job.done.wait(5)


def test_an_interrupt_ends_a_long_message_that_keeps_coming(pair: Pair) -> None:
    """Its sender never pauses, so that the socket is never empty."""
    job = pair.post(Receive(1, 0, torch.zeros(100_000_000)))

    def pour() -> None:
        pair.far[0].sendall(wire.pack_header(wire.Header(1, 0, 0, 400_000_000)))
        block = memoryview(bytearray(b"\1" * (1 << 20)))
        with suppress(OSError):
            for number in range(381):
                pair.far[0].sendall(block)
                if number == 100:
                    pair.poison.set(Fault("interrupt", "a test"))

    thread = threading.Thread(target=pour)
    thread.start()
    assert job.done.wait(20)
    pair.far[0].shutdown(socket.SHUT_RDWR)
    thread.join()
    assert pair.poison.fault is not None
    assert job.tensor[99_000_000] == 0


def test_a_lost_peer_is_named(pair: Pair) -> None:
    job = pair.post(Receive(1, 0, torch.zeros(1000)))
    pair.write(torch.ones(1000), part=100)
    pair.far[0].close()
    assert job.done.wait(5)
    assert fault(pair.poison).how == "eof"
    assert fault(pair.poison).who == "w1"
    assert "pair link to role 1 (w1 on m1) closed" in fault(pair.poison).reason


def test_garbage_ends_the_generation(pair: Pair) -> None:
    job = pair.post(Receive(1, 0, torch.zeros(1000)))
    pair.far[0].sendall(b"\0" * 100)
    assert job.done.wait(5)
    assert "out of step" in fault(pair.poison).reason


def test_the_wrong_size(pair: Pair) -> None:
    job = pair.post(Receive(1, 0, torch.zeros(1000)))
    pair.write(torch.ones(999))
    assert job.done.wait(5)
    assert fault(pair.poison).how == "mismatch"
    assert "role 1 (w1 on m1) called" in fault(pair.poison).reason
    assert "recv of 1000 float32" in fault(pair.poison).reason


def test_the_next_generation_is_clean(pair: Pair) -> None:
    """Half a message each way is left in the old streams; the new ones know nothing of it."""
    pair.post(Send(1, 0, torch.zeros(5_000_000)))
    job = pair.post(Receive(1, 0, torch.zeros(1000)))
    pair.write(torch.ones(1000), part=1000)
    pair.poison.set(Fault("interrupt", "a test"))
    assert job.done.wait(5)
    following = Poison()
    pair.pairs.adopt(2, following, (1,), {1: pair.link()})
    again = pair.post(Receive(1, 0, torch.zeros(3)))
    sent = pair.post(Send(1, 0, torch.ones(1)))
    pair.write(torch.full((3,), 5.0))
    assert again.done.wait(5)
    assert sent.done.wait(5)
    assert again.tensor.tolist() == [5.0] * 3
    assert len(pair.far[-1].recv(1000)) == wire.HEADER + 4
    assert following.fault is None


def test_an_interrupt_noticed_late_does_not_reach_the_next_generation(pair: Pair) -> None:
    """The thread is held up just when it lets go of what was interrupted; meanwhile the next generation begins."""
    held, go_on = threading.Event(), threading.Event()
    original = pair.pairs._round

    def slow(poison: Poison) -> bool:
        try:
            return original(poison)
        finally:
            if poison.fault is not None:
                held.set()
                assert go_on.wait(5)

    pair.pairs._round = slow  # type: ignore[method-assign]
    job = pair.post(Receive(1, 0, torch.zeros(3)))
    pair.poison.set(Fault("interrupt", "a test"))
    assert held.wait(5)
    following = Poison()
    later = Receive(1, 0, torch.zeros(3))

    def switch() -> None:
        pair.pairs.adopt(2, following, (1,), {1: pair.link()})
        pair.pairs.submit(later)

    thread = threading.Thread(target=switch)
    thread.start()
    thread.join(0.1)
    go_on.set()
    thread.join(5)
    assert job.done.wait(5)
    assert not later.done.wait(0.05)
    pair.write(torch.full((3,), 5.0))
    assert later.done.wait(5)
    assert later.tensor.tolist() == [5.0] * 3
    assert following.fault is None


def test_a_receive_has_a_limit_also_while_others_succeed() -> None:
    pair = Pair(limit=0.5)
    stop = threading.Event()

    def chat() -> None:
        while not stop.is_set() and pair.poison.fault is None:
            job = pair.post(Receive(1, 1, torch.zeros(3)))
            pair.write(torch.ones(3), tag=1)
            job.done.wait(5)

    thread = threading.Thread(target=chat)
    thread.start()
    job = pair.post(Receive(1, 0, torch.zeros(3)))
    assert job.done.wait(5)
    stop.set()
    thread.join()
    assert fault(pair.poison).how == "timeout"
    assert "no message from rank 1 of g0[0-1] with tag 0" in fault(pair.poison).reason
    pair.close()


@pytest.mark.parametrize("linked", [True, False])
def test_a_send_has_a_limit(linked: bool) -> None:
    pair = Pair(limit=0.3)
    if not linked:
        pair.pairs.adopt(2, pair.poison, (1,), {})
    job = pair.post(Send(1, 0, torch.zeros(5_000_000)))
    assert job.done.wait(5)
    assert fault(pair.poison).how == "timeout"
    assert pair.asked == ([] if linked else [1])
    pair.close()


def test_closed_pairs_end_all_operations(pair: Pair) -> None:
    job = pair.post(Receive(1, 0, torch.zeros(3)))
    pair.pairs.close()
    assert job.done.wait(5)
    late = pair.post(Receive(1, 0, torch.zeros(3)))
    assert late.done.wait(5)
    pair.pairs = Pairs("g0[0-1]", pair.asked.append, 1.0)


def until(holds: object) -> None:
    assert callable(holds)
    deadline = time.monotonic() + 5
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < deadline
        pause.wait(0.002)
