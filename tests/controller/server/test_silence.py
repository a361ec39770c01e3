from __future__ import annotations

from typing import cast

from understudy.controller.core.events import Event, Registered
from understudy.controller.core.machines import MachineState
from understudy.controller.server.controller import WATCH_S, Controller, EventLog, lost_machines, silence_of
from understudy.controller.server.spec import ControlSpec
from understudy.host.world import World
from understudy.protocol.options import with_options
from understudy.protocol.settings import Settings
from understudy.testing.clock import FakeClock


def lost(*silences: float) -> list[int]:
    """Which of these, that have been silent for so long, are gone: heartbeat 2 s, patience 600 s."""
    heard = {str(number): 1000.0 - silence for number, silence in enumerate(silences)}
    return [int(name) for name in lost_machines(heard, 1000.0, heartbeat=2.0, patience=600.0)]


def test_a_machine_that_is_silent_while_others_are_not_is_gone() -> None:
    assert lost(0.1, 1.9, 2.1) == [2]
    assert lost(3.0, 0.4, 700.0) == [0, 2]


def test_if_no_machine_is_heard_none_is_gone() -> None:
    assert lost(2.1, 2.4) == []
    assert lost(500.0, 20.0, 30.0) == []


def test_no_machine_is_gone_while_the_last_ones_fall_silent() -> None:
    """Beats do not come at the same moment."""
    assert lost(2.1, 1.7) == []


def test_but_not_for_ever() -> None:
    assert lost(601.0, 602.0) == [0, 1]


def test_one_alone_is_judged_by_itself() -> None:
    assert lost(1.9) == []
    assert lost(2.1) == [0]


def test_without_machines_none_is_gone() -> None:
    assert lost() == []
    assert silence_of({}, 1.0) == 0.0


class Memory:
    """A ledger that is a list."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Event]] = []

    def append(self, at: float, event: Event) -> None:
        self.events.append((at, event))

    def read(self) -> list[tuple[float, Event]]:
        return list(self.events)


def test_all_machines_are_gone_after_the_patience_of_a_controller_that_hears_none() -> None:
    clock, settings = FakeClock(), with_options(Settings(), heartbeat=2.0, patience=20.0)
    spec = ControlSpec("job", b"", 2, 1, (("dp", 2),), "", settings=settings)
    controller = Controller(spec, cast(EventLog, Memory()), world=cast(World, clock))
    for name in ("m0", "m1"):
        controller.feed(Registered(name, f"{name}-a", False))
        controller._seen[name] = clock.monotonic()
    while any(machine.alive for machine in controller.job.machines.values()) and clock.monotonic() < 60.0:
        clock.advance(WATCH_S)
        controller.look()
    assert {machine.state for machine in controller.job.machines.values()} == {MachineState.GONE}
    assert clock.monotonic() > 20.0
