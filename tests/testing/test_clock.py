"""A fake clock: time moves when a test says so, and wakes what has waited long enough."""

from __future__ import annotations

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
    clock = FakeClock()
    thread = clock.start(lambda: clock.sleep(60.0), "sleeper")
    clock.until_waiting(1)
    clock.advance(59.0)
    thread.join(0.05)
    assert thread.is_alive()
    clock.advance(1.0)
    thread.join()
    with pytest.raises(TimeoutError, match="0 threads wait"):
        clock.until_waiting(1, timeout=0.01)


def test_a_condition_is_notified_or_times_out() -> None:
    clock = FakeClock()
    condition, results = clock.condition(), list[bool]()

    def wait() -> None:
        with condition:
            results.append(condition.wait(10.0))
            results.append(condition.wait_for(lambda: False, 10.0))
            results.append(condition.wait_for(lambda: True, 10.0))
            results.append(condition.wait())

    thread = clock.start(wait, "waiter")
    clock.until_waiting(1)
    with condition:
        condition.notify_all()
    while len(results) < 3:
        clock.until_waiting(len(results) == 1)
        clock.advance(1.0)
    while thread.is_alive():
        with condition:
            condition.notify_all()
        thread.join(0.01)
    assert results == [True, False, True, True]
