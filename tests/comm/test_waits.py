"""The time that a thread waits for other roles is measured; computation meanwhile does not count as waiting."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.autograd import Variable

from understudy.comm import waits
from understudy.comm.endpoint import Endpoint
from understudy.comm.links.pairs import Send
from understudy.comm.ops import Op
from understudy.comm.topology import GroupKey
from understudy.comm.waits import GroupWork, MessageWork

PAUSE_S = 0.05


def later(call: Any) -> None:
    threading.Timer(PAUSE_S, call).start()


def waited(before: float) -> float:
    return waits.waited()[0] - before


def test_waiting_for_an_operation_counts_in_the_thread_that_waits() -> None:
    before, work = waits.waited()[0], GroupWork(None)
    elsewhere: list[float] = []

    def wait() -> None:
        work.wait()
        elsewhere.append(waits.waited()[0])

    later(work.finish)
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert elsewhere[0] > PAUSE_S / 2
    assert waited(before) == 0.0
    work.wait()
    work.synchronize()
    assert waited(before) == 0.0


def test_waiting_for_messages_counts() -> None:
    before, job = waits.waited()[0], Send(1, 0, torch.ones(1))
    later(job.done.set)
    MessageWork([], job, []).wait()
    assert waited(before) > PAUSE_S / 2


@pytest.mark.parametrize("busy", [False, True])
def test_an_operation_that_is_waited_for_counts_as_a_whole(busy: bool) -> None:
    endpoint = Endpoint(GroupKey((0, 1), 0), 0, cast(Any, None), cast(Any, None))
    endpoint.perform = lambda op: time.sleep(PAUSE_S)
    if busy:  # so it is carried out by another thread
        endpoint.submit(Op("barrier"), lambda: None)
    before = waits.waited()[0]
    endpoint.run(Op("barrier"))
    assert waited(before) > PAUSE_S / 2
    before = waits.waited()[0]
    endpoint.submit(Op("barrier"), lambda: None)
    assert waited(before) == 0.0


class Reduced:
    """Takes futures for gradients as DDP does: one as soon as each is there, and waits for all in the end.

    By its clock 2 s are computed while the first one is on its way, and the second one comes after 1 s of waiting."""

    def __init__(self) -> None:
        self.now = 100.0
        self.works: list[GroupWork] = []
        self._futures: list[Any] = []

    def hook(self, gradient: torch.Tensor) -> torch.Tensor:
        if not self.works:
            Variable._execution_engine.queue_callback(self._finish)
        work = GroupWork([gradient])
        self.works.append(work)
        self._futures.append(work.get_future())
        if len(self.works) == 2:
            later(self._arrive)
        else:
            work.finish()
            self.now += 2.0
        return gradient

    def _arrive(self) -> None:
        self.now += 1.0
        self.works[1].finish()

    def _finish(self) -> None:
        for future in self._futures:
            future.wait()


def test_in_a_backward_pass_only_the_wait_at_its_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    reduced = Reduced()
    monkeypatch.setattr(waits, "time", SimpleNamespace(perf_counter=lambda: reduced.now))
    first.register_hook(reduced.hook)
    second.register_hook(reduced.hook)
    before, unknown = waits.waited()
    (first + second).sum().backward()
    assert waited(before) == 1.0
    assert waits.waited()[1] == unknown
    assert waited(before) == waited(before)


def test_waiting_for_a_future_makes_the_waited_time_unknown() -> None:
    _, before = waits.waited()
    GroupWork(None, done=True).get_future()
    assert waits.waited()[1] == before
    work = GroupWork(None)
    work.get_future()
    work.finish()
    assert waits.waited()[1] == before + 1
