"""The loop that moves bytes over several links at once, on socket pairs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from tests.comm.helpers import at_once
from understudy.comm.faults import Fault, Interrupted, Poison
from understudy.comm.links.link import BULK, Inlet, Link, Outlet, bytes_of, pump
from understudy.comm.topology import LinkId

SO_MAX_PACING_RATE = 47
"""Of Linux; Python has no name for it."""


class Ends:
    """Two workers' ends of some links, and a poison for each of them."""

    def __init__(self, count: int = 1) -> None:
        self.poisons = [Poison(), Poison()]
        self.links: list[tuple[Link, Link]] = []
        for number in range(count):
            pair = socket.socketpair()
            ids = LinkId("ring", "g0[0-1]", number, "w0", "w1")
            self.links.append(
                (Link(pair[0], ids, "w1", "role 1 (w1 on m1)"), Link(pair[1], ids, "w0", "role 0 (w0 on m0)"))
            )

    def close(self) -> None:
        for link in (link for pair in self.links for link in pair):
            link.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends(3)
    yield ends
    ends.close()


def far() -> float:
    return time.monotonic() + 20


def flows(
    out: Link | None, data: torch.Tensor, back: Link | None, into: torch.Tensor
) -> tuple[list[Inlet], list[Outlet]]:
    inlets, outlets = [], []
    if out is not None:
        outlets.append(Outlet(out))
        outlets[0].push(bytes_of(data))
    if back is not None:
        inlets.append(Inlet(back))
        inlets[0].push(bytes_of(into))
    return inlets, outlets


@pytest.mark.parametrize("one_link", [True, False])
def test_large_tensors_both_ways_at_once(ends: Ends, one_link: bool) -> None:
    """Far more than any socket buffer holds: neither side may wait for the other to read first."""
    data = [torch.arange(8_000_000) + side for side in range(2)]
    got = [torch.zeros(8_000_000, dtype=torch.int64) for _ in range(2)]

    def run(side: int) -> None:
        out = ends.links[0][side]
        back = ends.links[0 if one_link else 1][side]
        if side == 1 and not one_link:
            out, back = back, out
        inlets, outlets = flows(out, data[side], back, got[side])
        pump(inlets, outlets, ends.poisons[side], far())

    at_once(partial(run, 0), partial(run, 1))
    assert torch.equal(got[0], data[1])
    assert torch.equal(got[1], data[0])


def test_many_small_buffers_keep_their_order(ends: Ends) -> None:
    parts = [torch.arange(number) for number in (1, 0, 7, 100_000, 2, 3, 0, 50)] * 10
    got = [torch.zeros_like(part) for part in parts]
    passed: list[str] = []

    def send() -> None:
        outlet = Outlet(ends.links[0][0], lambda: passed.append("out"))
        for part in parts:
            outlet.push(bytes_of(part))
        pump([], [outlet], ends.poisons[0], far())

    def receive() -> None:
        inlet = Inlet(ends.links[0][1], lambda: passed.append("in"))
        for part in got:
            inlet.push(bytes_of(part))
        pump([inlet], [], ends.poisons[1], far())

    at_once(send, receive)
    assert all(torch.equal(a, b) for a, b in zip(parts, got, strict=True))
    assert passed.count("in") == passed.count("out") == len(parts)


def test_what_comes_in_is_passed_on(ends: Ends) -> None:
    """A buffer that has arrived is pushed into two others; the loop goes on until those are empty too."""
    source = torch.arange(500_000)
    pieces = torch.tensor_split(source, 10)
    kept = torch.zeros_like(source)
    got = [torch.zeros_like(source), torch.zeros_like(source)]
    targets = iter(torch.tensor_split(kept, 10))
    outlets = [Outlet(ends.links[1][0]), Outlet(ends.links[2][0])]
    current: list[torch.Tensor] = []

    def arrived() -> None:
        for outlet in outlets:
            outlet.push(bytes_of(current[-1]))
        expect()

    inlet = Inlet(ends.links[0][0], arrived)

    def expect() -> None:
        piece = next(targets, None)
        if piece is not None:
            current.append(piece)
            inlet.push(bytes_of(piece))

    def give() -> None:
        first = Outlet(ends.links[0][1])
        for piece in pieces:
            first.push(bytes_of(piece))
        ins = [Inlet(ends.links[1][1]), Inlet(ends.links[2][1])]
        for one, into in zip(ins, got, strict=True):
            one.push(bytes_of(into))
        pump(ins, [first], ends.poisons[1], far())

    expect()
    at_once(give, lambda: pump([inlet], outlets, ends.poisons[0], far()))
    assert torch.equal(kept, source)
    assert torch.equal(got[0], source)
    assert torch.equal(got[1], source)


@pytest.mark.parametrize("doing", ["receive", "send", "both"])
def test_the_end_of_a_link_names_the_peer(ends: Ends, doing: str) -> None:
    big = torch.zeros(8_000_000)
    link = ends.links[0][0]
    inlets, outlets = flows(link if doing != "receive" else None, big, link if doing != "send" else None, big.clone())
    thread = threading.Thread(target=ends.links[0][1].close)
    thread.start()
    with pytest.raises(Interrupted):
        pump(inlets, outlets, ends.poisons[0], far())
    thread.join()
    fault = ends.poisons[0].fault
    assert fault is not None
    assert (fault.how, fault.who) == ("eof", "w1")
    assert fault.reason.startswith("ring link to role 1 (w1 on m1) closed (")


def test_an_interrupt_wakes_a_sleeping_worker(ends: Ends) -> None:
    for number in range(5):
        poison = Poison()
        ended, asleep = threading.Event(), threading.Event()

        def run(poison: Poison = poison, ended: threading.Event = ended, asleep: threading.Event = asleep) -> None:
            inlets, _ = flows(None, torch.zeros(1), ends.links[0][0], torch.zeros(10))
            asleep.set()
            with pytest.raises(Interrupted):
                pump(inlets, [], poison, far())
            ended.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert asleep.wait(5)
        asleep.clear()
        asleep.wait(0.01 * number)
        poison.set(Fault("interrupt", "a test"))
        thread.join()
        assert ended.is_set()


def test_a_time_limit_names_the_peer(ends: Ends) -> None:
    inlets, _ = flows(None, torch.zeros(1), ends.links[0][0], torch.zeros(10))
    with pytest.raises(Interrupted):
        pump(inlets, [], ends.poisons[0], time.monotonic() + 0.2)
    fault = ends.poisons[0].fault
    assert fault is not None
    assert (fault.how, fault.who) == ("timeout", "w1")
    assert "role 1 (w1 on m1) did not answer on its ring link" in fault.reason


def test_a_stall_is_reported_now_and_then(ends: Ends) -> None:
    inlets, _ = flows(None, torch.zeros(1), ends.links[0][0], torch.zeros(1))
    calls: list[float] = []

    def stalled() -> None:
        calls.append(time.monotonic())
        if len(calls) == 2:
            ends.links[0][1].sock.sendall(bytes_of(torch.ones(1)))

    pump(inlets, [], ends.poisons[0], far(), stalled)
    assert len(calls) == 2


def test_nothing_to_do(ends: Ends) -> None:
    pump([], [], ends.poisons[0], 0.0)
    pump([Inlet(ends.links[0][0])], [Outlet(ends.links[0][0])], ends.poisons[0], 0.0)


def test_bytes_are_the_tensors_own() -> None:
    tensor = torch.zeros(3, 2)
    bytes_of(tensor)[4:8] = torch.ones(1).numpy().tobytes()
    assert tensor.view(-1).tolist() == [0, 1, 0, 0, 0, 0]
    assert len(bytes_of(torch.zeros(0))) == 0
    assert len(bytes_of(torch.zeros((), dtype=torch.bool))) == 1


def test_only_the_first_fault_counts() -> None:
    told: list[Fault] = []
    poison = Poison()
    poison.tell = told.append
    assert poison.set(Fault("eof", "one"))
    assert not poison.set(Fault("timeout", "two"))
    assert poison.fault == told[0]
    assert [fault.reason for fault in told] == ["one"]
    with pytest.raises(Interrupted):
        poison.check()


def test_a_fault_names_its_kind_its_reason_and_the_worker_that_noticed() -> None:
    assert (
        str(Fault("eof", "role 1 (w1 on m1) is gone", "w1", "w0")) == "eof: role 1 (w1 on m1) is gone (noticed by w0)"
    )
    before = time.time()
    assert before <= Fault("eof", "x").when <= time.time()


def moved(ends: Ends, *, hurry: bool) -> tuple[Link, Link]:
    """A bulk transfer with a pause of the sender, or of the receiver, in the middle."""
    data, into = torch.ones(8_000_000), torch.zeros(8_000_000)
    out, back = ends.links[0]

    def send() -> None:
        outlet = Outlet(out)
        for piece in bytes_of(data[:4_000_000]), bytes_of(data[4_000_000:]):
            outlet.push(piece)
            pump([], [outlet], ends.poisons[0], far())
            time.sleep(0.0 if hurry else 0.1)

    def take() -> None:
        inlet = Inlet(back)
        inlet.push(bytes_of(into[:1000]))
        pump([inlet], [], ends.poisons[1], far())
        time.sleep(0.1 if hurry else 0.0)
        inlet.push(bytes_of(into[1000:]))
        pump([inlet], [], ends.poisons[1], far())

    at_once(send, take)
    assert torch.equal(data, into)
    return out, back


def test_a_late_receiver_is_not_a_slow_link(ends: Ends) -> None:
    out, back = moved(ends, hurry=True)
    assert out.tally.backed > 0.05
    assert back.tally.starved < out.tally.backed
    assert 32_000_000 - 2 * BULK < out.tally.sent <= 32_000_000  # of each piece all but the end
    out.tally.clear()
    assert out.tally.sent == out.tally.backed == 0


def test_a_late_sender_is_not_a_slow_link(ends: Ends) -> None:
    out, back = moved(ends, hurry=False)
    assert back.tally.starved > 0.05
    assert out.tally.backed < back.tally.starved
    assert back.tally.got >= 31_000_000


def test_over_a_slow_link_both_ends_wait() -> None:
    ids = LinkId("ring", "g0[0-1]", 0, "w0", "w1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        one, (two, _) = socket.create_connection(server.getsockname()), server.accept()
    one.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 50_000_000)
    out, back = Link(one, ids, "w1", "role 1"), Link(two, ids, "w0", "role 0")
    data, into = torch.ones(8_000_000), torch.zeros(8_000_000)

    def send() -> None:
        pump([], flows(out, data, None, into)[1], Poison(), far())

    def take() -> None:
        pump(flows(None, data, back, into)[0], [], Poison(), far())

    at_once(send, take)
    assert torch.equal(data, into)
    assert min(out.tally.backed, back.tally.starved) > 0.1  # of the 0.64 s that they take
    out.close()
    back.close()


def test_small_messages_say_nothing_about_a_link(ends: Ends) -> None:
    data, into = torch.ones(100), torch.zeros(100)
    inlets, outlets = flows(ends.links[0][0], data, ends.links[0][1], into)
    pump(inlets, outlets, ends.poisons[0], far())
    assert ends.links[0][0].tally.sent == ends.links[0][1].tally.got == 0
