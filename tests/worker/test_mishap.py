"""Faults inside a worker: each happens once, where it should, and only in a job that allows it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from understudy.host.world import RealWorld, Thread
from understudy.protocol.framing import FramingError
from understudy.protocol.messages import TO_AGENT, Inject, Stop
from understudy.worker import mishap
from understudy.worker.line import Line
from understudy.worker.mishap import WORKER_MISHAPS, InjectedError, Mishaps


class HeldWorld(RealWorld):
    """Notes what is slept; one length of sleep ends when the test says so."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._threads: list[Thread] = []
        self._held, self._asleep, self._go = 0.0, threading.Event(), threading.Event()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if seconds == self._held:
            self._asleep.set()
            assert self._go.wait(20)
        else:
            super().sleep(seconds)

    def start(self, target: Callable[[], object], name: str) -> Thread:
        self._threads.append(super().start(target, name))
        if self._held:
            assert self._asleep.wait(20)
        return self._threads[-1]

    @contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        self._held = seconds
        yield
        self._go.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()


class Worker:
    """As much of one as mishaps touch."""

    def __init__(self, *, chaos: bool = True) -> None:
        self.agent, mine = socket.socketpair()
        self.world = HeldWorld()
        self.heard: list[object] = []
        self.endpoint = SimpleNamespace(perform=lambda op: None, post=lambda *jobs: None)
        player: Any = SimpleNamespace(
            spec=SimpleNamespace(uid="w0", chaos=chaos),
            world=self.world,
            fabric=SimpleNamespace(endpoints=lambda: [self.endpoint]),
            hear=self.heard.append,
            meter=SimpleNamespace(drag=1.0),
        )
        self.meter = player.meter
        self.line = Line(mine)
        self.mishaps = Mishaps(player, self.line)

    def suffer(self, kind: str, seconds: float = 0.05) -> None:
        self.mishaps.hear(Inject(kind, "m0", "w0", seconds))
        self.world.join()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.line.close()
        self.agent.close()


def test_every_kind_that_is_listed_can_happen() -> None:
    assert mishap._MISHAPS.keys() == WORKER_MISHAPS.keys()


def test_other_words_are_passed_on() -> None:
    with Worker() as worker:
        worker.mishaps.hear(Stop())
        assert worker.heard == [Stop()]


def test_nothing_happens_where_it_is_not_allowed_or_not_known(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Linear(1, 1)
    with Worker(chaos=False) as worker:
        worker.suffer("raise-in-forward")
        assert "not started with --chaos" in caplog.text
    with Worker() as worker:
        worker.suffer("earthquake")
        assert "there is no mishap 'earthquake'" in caplog.text
    module(torch.ones(1))


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


def test_operations_are_late_for_a_while() -> None:
    with Worker() as worker:
        perform, post = worker.endpoint.perform, worker.endpoint.post
        with worker.world.held(60.0):
            worker.mishaps.hear(Inject("delay-links", "m0", "w0", 60.0))
            worker.endpoint.perform(None)
            worker.endpoint.post()
            assert worker.world.slept == [60.0, mishap._DELAY_S, mishap._DELAY_S]
        worker.world.join()
        assert (worker.endpoint.perform, worker.endpoint.post) == (perform, post)


def test_a_generation_s_own_way_is_not_undone() -> None:
    with Worker() as worker:
        with worker.world.held(60.0):
            worker.mishaps.hear(Inject("delay-links", "m0", "w0", 60.0))
            worker.endpoint.perform = mine = lambda op: None
        worker.world.join()
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


def test_everything_takes_longer_for_a_while_or_until_told_otherwise() -> None:
    with Worker() as worker:
        worker.suffer("slow")
        assert worker.meter.drag == 1.0
        for factor in (1.7, 1.0):
            before = set(threading.enumerate())
            worker.mishaps.hear(Inject("slow", "m0", "w0", factor=factor))
            for thread in set(threading.enumerate()) - before:
                thread.join(10)
            assert worker.meter.drag == factor
