"""Faults inside a worker and an agent: each happens once, in its place, and ends."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
import torch
from torch import nn

from understudy.agent.agent import Agent
from understudy.protocol.framing import FramingError
from understudy.protocol.messages import TO_AGENT, ExtensionMessage
from understudy.testing import faults
from understudy.testing.faults import GARBAGE, WORKER_FAULTS, InjectedError, WorkerFaults, agent_fault
from understudy.worker.agent_connection import AgentConnection


class Worker:
    """As much of a worker as faults touch."""

    def __init__(self) -> None:
        self.agent, mine = socket.socketpair()
        self.endpoint = SimpleNamespace(perform=lambda op: None, post=lambda *jobs: None)
        runtime: Any = SimpleNamespace(
            spec=SimpleNamespace(uid="w0"),
            fabric=SimpleNamespace(endpoints=lambda: [self.endpoint]),
            meter=SimpleNamespace(_turn=lambda part: None),
        )
        self.line = AgentConnection(mine)
        self.faults = WorkerFaults(runtime, self.line)

    def suffer(self, kind: str, seconds: float = 0.05) -> None:
        before = set(threading.enumerate())
        self.faults.hear(ExtensionMessage(kind, "m0", "w0", {"seconds": seconds}))
        for thread in set(threading.enumerate()) - before:
            if thread.name == "understudy fault":
                thread.join(10)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.line.close()
        self.agent.close()


def test_every_kind_that_is_listed_can_happen() -> None:
    with Worker() as worker:
        assert worker.faults._points.keys() == WORKER_FAULTS.keys()


def test_an_unknown_fault_does_not_happen(caplog: pytest.LogCaptureFixture) -> None:
    with Worker() as worker:
        worker.suffer("earthquake")
        assert "there is no fault 'earthquake' in a worker" in caplog.text


def test_an_exception_comes_once() -> None:
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    with Worker() as worker:
        worker.suffer("raise-in-forward")
        with pytest.raises(InjectedError):
            module(torch.ones(1))
        module(torch.ones(1))
        worker.suffer("sys-exit")
        with pytest.raises(SystemExit):
            module(torch.ones(1))
        module(torch.ones(1))


def test_one_gradient_is_not_a_number() -> None:
    module = nn.Linear(2, 1)
    with Worker() as worker:
        worker.suffer("nan")
        for broken in (True, False):
            module.zero_grad()
            loss = module(torch.ones(2)).sum()
            loss.backward()
            assert loss.isfinite()
            assert module.weight.grad is not None
            assert bool(module.weight.grad.isnan().all()) is broken


def test_the_disk_is_full_for_a_while() -> None:
    from torch.distributed.checkpoint import state_dict_saver

    save = state_dict_saver.save
    with Worker() as worker:
        thread = threading.Thread(target=worker.suffer, args=("fill-checkpoint-disk", 0.5))
        thread.start()
        deadline = time.monotonic() + 10
        while state_dict_saver.save is save:
            assert time.monotonic() < deadline
        with pytest.raises(OSError, match="No space left"):
            state_dict_saver.save({})
        thread.join()
    assert state_dict_saver.save is save


def end_of(timers: list[threading.Thread]) -> None:
    for timer in timers:
        timer.join(10)
        assert not timer.is_alive()


def timers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_operations_are_late_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(faults, "time", SimpleNamespace(sleep=slept.append))
    with Worker() as worker:
        perform, post = worker.endpoint.perform, worker.endpoint.post
        worker.suffer("delay-links", 0.05)
        late = worker.endpoint.perform, worker.endpoint.post
        late[0](None)
        late[1]()
        assert slept == [faults.LINK_DELAY_S] * 2
        end_of(timers())
        assert (worker.endpoint.perform, worker.endpoint.post) == (perform, post)


def test_a_generation_s_own_way_is_not_undone() -> None:
    with Worker() as worker:
        worker.suffer("delay-links", 0.2)
        worker.endpoint.perform = mine = lambda op: None
        end_of(timers())
        assert worker.endpoint.perform is mine


def test_what_is_said_is_no_message() -> None:
    with Worker() as worker:
        worker.suffer("corrupt-line")
        with pytest.raises(FramingError, match="not a worker's message"):
            list(TO_AGENT.split(bytearray(worker.agent.recv(1 << 16))))


def test_connections_to_others_break_and_nothing_else() -> None:
    with Worker() as worker, socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
        ours, theirs = socket.socketpair()
        with one, two, ours, theirs:
            worker.suffer("throttle-links")
            one.sendall(b"x")
            assert two.recv(1) == b"x"
            worker.suffer("cut-links")
            assert two.recv(1) == b""
            ours.sendall(b"x")
            assert theirs.recv(1) == b"x"
            with socket.create_connection(server.getsockname()):
                server.accept()[0].close()


@pytest.mark.parametrize("kind", ["leak-memory", "burn-cpu"])
def test_a_burden_ends(kind: str) -> None:
    with Worker() as worker:
        worker.suffer(kind)
    assert not [thread for thread in threading.enumerate() if thread.name == "understudy fault"]


def test_everything_takes_longer_for_a_while_or_until_another_factor_is_given() -> None:
    with Worker() as worker:
        worker.suffer("slow")
        assert worker.faults._slowness is not None
        assert worker.faults._slowness.factor == 1.0
        for factor in (1.7, 1.0):
            before = set(threading.enumerate())
            worker.faults.hear(ExtensionMessage("slow", "m0", "w0", {"factor": factor}))
            for thread in set(threading.enumerate()) - before:
                thread.join(10)
            assert worker.faults._slowness.factor == factor


# -- between an agent and the controller -------------------------------------------------------------------------------


class Socket:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)

    async def receive(self) -> str:
        return "an order"


def test_garbage_is_sent() -> None:
    socket = Socket()
    asyncio.run(agent_fault("corrupt-report", 0.0, socket))
    assert socket.sent == [GARBAGE]


def test_garbage_is_received_once() -> None:
    socket: Any = Socket()
    handler = faults.extend_agent(cast(Agent, SimpleNamespace(connection=socket)), "")
    handler(ExtensionMessage("corrupt-order", "m0"))

    async def receive() -> list[Any]:
        return [await socket.receive(), await socket.receive()]

    garbage, order = asyncio.run(receive())
    assert (garbage.type, garbage.data, order) == (aiohttp.WSMsgType.BINARY, GARBAGE, "an order")


def test_everything_comes_twice_for_a_while() -> None:
    async def body() -> None:
        socket = Socket()
        task = asyncio.ensure_future(agent_fault("duplicate-control", 0.1, socket))
        await asyncio.sleep(0)
        await socket.send_bytes(b"one")
        await task
        await socket.send_bytes(b"two")
        assert socket.sent == [b"one", b"one", b"two"]

    asyncio.run(body())


def test_everything_comes_late_for_a_while() -> None:
    async def body() -> None:
        socket = Socket()
        task = asyncio.ensure_future(agent_fault("delay-control", 0.05, socket))
        await asyncio.sleep(0)
        sending = asyncio.ensure_future(socket.send_bytes(b"one"))
        await task
        assert socket.sent == []
        await sending
        assert socket.sent == [b"one"]

    asyncio.run(body())


def test_a_connection_that_is_gone_does_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(agent_fault("drop-control", 0.0, object()))
    handler = faults.extend_agent(cast(Agent, SimpleNamespace(connection=None)), "")
    handler(ExtensionMessage("drop-control", "m0"))
    assert not caplog.text
    handler(ExtensionMessage("earthquake", "m0"))
    assert "there is no fault 'earthquake' in an agent" in caplog.text
