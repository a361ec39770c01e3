"""A fake clock: time moves when a test says so, and wakes what has waited long enough."""

from __future__ import annotations

import threading

import pytest

from understudy.host.world import World
from understudy.testing import FakeClock


def test_time_stands_still_until_it_is_advanced() -> None:
    world: World = (clock := FakeClock(5.0, epoch=100.0))
    assert (world.monotonic(), world.time()) == (5.0, 100.0)
    clock.advance(2.5)
    assert (world.monotonic(), world.time()) == (7.5, 102.5)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1.0)


def test_a_sleeper_wakes_when_its_time_has_come() -> None:
    clock, asleep, woken = FakeClock(), threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.set()
        clock.sleep(60.0)
        woken.set()

    thread = clock.start(sleep, "sleeper")
    asleep.wait()
    clock.advance(59.0)
    thread.join(0.05)
    assert not woken.is_set()
    clock.advance(60.0)  # it may have begun to sleep after the first advance
    thread.join()
    assert woken.is_set()


def test_a_condition_is_notified_or_times_out() -> None:
    clock = FakeClock()
    condition, results = clock.condition(), list[bool]()
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        with condition:
            ready.set()
            results.append(condition.wait(10.0))
            results.append(condition.wait_for(lambda: False, 10.0))
            results.append(condition.wait_for(lambda: True, 10.0))
        done.set()

    thread = clock.start(wait, "waiter")
    ready.wait()
    with condition:
        condition.notify_all()
    while not done.wait(0.01):
        clock.advance(1.0)
    thread.join()
    assert results == [True, False, True]
