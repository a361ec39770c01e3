"""The seconds of a step, by part, without waits."""

from __future__ import annotations

import copy
import io
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from understudy.comm import waits
from understudy.comm.fabric import Fabric
from understudy.comm.links.link import LinkTally
from understudy.host.world import World
from understudy.protocol.samples import Sample, Traffic
from understudy.testing import faults
from understudy.worker.meter import Meter, traffic_of


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def works(self, seconds: float) -> None:
        self.now += seconds

    def waits(self, seconds: float) -> None:
        self.now += seconds
        waits.add(seconds)


class Net(nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.clock = clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.works(3.0)
        self.clock.waits(0.5)
        return cast(torch.Tensor, self.inner(x))


def measured(meter: Meter, clock: Clock, net: nn.Module, *, step: int = 9, micro: int = 2) -> Sample:
    meter.begin(1, step)
    for _ in range(micro):
        meter.shard()
        clock.works(1.0)
        net(torch.ones(2))
        clock.works(5.0)
        clock.waits(2.0)
        meter.update()
    clock.works(0.25)
    clock.waits(4.0)
    clock.works(0.75)
    sample = meter.end("w0", 0, step + 1)
    assert sample is not None
    return sample


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_each_part_has_its_own_seconds(clock: Clock) -> None:
    meter, net = Meter(world=cast(World, clock)), Net(clock)
    meter.watch([net, net.inner])
    for step in range(3):
        assert measured(meter, clock, net, step=step).odd == "the first of a generation"
    sample = measured(meter, clock, net)
    assert sample.parts == pytest.approx((2.0, 6.0, 10.0, 1.0))
    assert sample.compute == pytest.approx(19.0)
    assert sample.waited == pytest.approx(9.0)
    assert (sample.micro, sample.odd, sample.step) == (2, "", 10)


def test_without_a_tracked_module_only_the_whole_is_known(clock: Clock) -> None:
    meter = Meter(world=cast(World, clock))
    sample = measured(meter, clock, Net(clock), micro=1)
    assert sample.parts == ()
    assert sample.compute == pytest.approx(10.0)


def test_between_steps_and_in_a_rehearsal_nothing_is_measured(clock: Clock) -> None:
    meter, net = Meter(world=cast(World, clock)), Net(clock)
    meter.watch([net])
    net(torch.ones(2))
    meter.shard()
    meter.update()
    assert meter.end("w0", 0, 1) is None


def test_a_step_that_is_repeated_is_odd(clock: Clock) -> None:
    meter, net = Meter(world=cast(World, clock)), Net(clock)
    for step in range(4):
        measured(meter, clock, net, step=step)
    meter.begin(1, 4)
    clock.works(1.0)
    assert measured(meter, clock, net, step=4).odd == "repeated"
    assert measured(meter, clock, net, step=5).odd == ""
    meter.begin(2, 6)
    meter.note("state is being kept")
    assert meter.odd == "the first of a generation"


def test_if_waits_cannot_be_measured_they_are_unknown(clock: Clock) -> None:
    assert measured(Meter(False, world=cast(World, clock)), clock, Net(clock)).waited is None


def test_an_exception_in_forward_does_not_confuse_it(clock: Clock) -> None:
    meter, net = Meter(world=cast(World, clock)), Net(clock)
    meter.watch([net])
    meter.begin(1, 0)
    with pytest.raises(RuntimeError):
        net(torch.ones(3))
    assert measured(meter, clock, net).parts[1] == pytest.approx(6.0)


def test_a_copy_of_a_module_is_not_measured(clock: Clock) -> None:
    meter, net = Meter(world=cast(World, clock)), Net(clock)
    meter.watch([net])
    other = copy.deepcopy(net)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    meter.begin(1, 0)
    other(torch.ones(2))
    sample = meter.end("w0", 0, 1)
    assert sample is not None
    assert sample.parts == ()
    meter.close()
    assert not net._forward_hooks
    assert not net._forward_pre_hooks


@pytest.mark.long
def test_a_module_may_be_compiled_in_one_piece(clock: Clock) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    meter = Meter(world=cast(World, clock))
    meter.watch([model])
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    meter.begin(1, 0)
    compiled(torch.ones(1, 2)).sum().backward()
    assert meter.end("w0", 0, 1) is not None


def test_a_slow_worker_takes_longer_for_each_part(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    meter, net = Meter(world=cast(World, clock)), Net(clock)
    meter.watch([net])
    monkeypatch.setattr(time, "sleep", clock.works)
    faults._Slowness(meter).factor = 1.5
    assert measured(meter, clock, net).parts == pytest.approx((3.0, 9.0, 15.0, 1.5))


def test_what_has_passed_over_all_links_to_a_neighbour() -> None:
    def link(peer: str, sent: int, got: int) -> SimpleNamespace:
        tally = LinkTally()
        tally.sent, tally.got, tally.pushing, tally.backed, tally.starved = sent, got, 0.5, 0.25, 0.125
        return SimpleNamespace(peer=peer, tally=tally)

    links = [link("w1", 1 << 20, 0), link("w1", 0, 1 << 20), link("w2", 100, 0), link("w3", 0, 0)]
    transport = SimpleNamespace(links=lambda: links)
    fabric = cast(Fabric, SimpleNamespace(endpoints=lambda: [SimpleNamespace(transport=transport)]))
    assert traffic_of(fabric) == (Traffic("w1", 1 << 20, 1.0, 0.5, 0.25, 1 << 20),)
    assert traffic_of(fabric) == ()
