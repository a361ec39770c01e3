"""The seeded scheduler: one thread at a time, a clock that moves when none can run, processes that die or freeze."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import closing

import pytest

from understudy.testing.simulation.scheduler import Deadlock, Scheduler, SimProcess


def test_a_seed_gives_the_same_order_and_another_seed_another_one() -> None:
    def order(seed: int) -> list[tuple[float, str]]:
        scheduler = Scheduler(seed)
        process = SimProcess(scheduler, "p")
        seen: list[tuple[float, str]] = []

        def work(name: str) -> None:
            for _ in range(20):
                process.sleep(0.1)
                seen.append((round(scheduler.now, 3), name))

        tasks = [process.start(lambda name=name: work(name), name) for name in "abc"]  # type: ignore[misc]

        def end() -> None:
            for task in tasks:
                task.join()
            scheduler.stop()

        process.start(end, "end")
        scheduler.run()
        return seen

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert len(order(1)) == 60


def test_conditions_hand_on_and_time_out() -> None:
    scheduler = Scheduler(0)
    process = SimProcess(scheduler, "p")
    changed = process.condition()
    box: list[int] = []
    seen: list[object] = []

    def put() -> None:
        for number in range(50):
            process.sleep(0.01)
            with changed, changed:
                box.append(number)
                changed.notify_all()

    def take() -> None:
        with changed:
            seen.append(changed.wait_for(lambda: False, 0.001))
            for _ in range(50):
                changed.wait_for(lambda: bool(box))
                seen.append(box.pop(0))
        scheduler.stop()

    process.start(put, "put")
    process.start(take, "take")
    scheduler.run()
    assert seen == [False, *range(50)]


def test_a_killed_process_does_not_clean_up_before_the_end() -> None:
    scheduler = Scheduler(0)
    victim, other = SimProcess(scheduler, "victim"), SimProcess(scheduler, "other")
    cleaned: list[float] = []

    def forever() -> None:
        try:
            while True:
                victim.sleep(0.1)
        finally:
            cleaned.append(scheduler.now)
            victim.sleep(1.0)  # raises: nothing of it reaches the others

    def look() -> None:
        other.sleep(5.0)
        assert not cleaned
        scheduler.stop()

    victim.start(forever, "forever")
    other.start(look, "look")
    scheduler.at(1.0, victim.kill)
    before = threading.active_count()
    scheduler.run()
    assert cleaned == [5.0]
    assert threading.active_count() <= before


def test_a_frozen_process_stands_still() -> None:
    scheduler = Scheduler(0)
    process = SimProcess(scheduler, "p")
    ticks: list[float] = []

    def tick() -> None:
        for _ in range(3):
            process.sleep(1.0)
            ticks.append(scheduler.now)
        scheduler.stop()

    process.start(tick, "tick")
    scheduler.at(1.5, process.freeze)
    scheduler.at(4.5, process.thaw)
    scheduler.run()
    assert ticks == [1.0, 4.5, 5.5]


def test_sockets_are_waited_for_in_simulated_time() -> None:
    scheduler = Scheduler(0)
    process = SimProcess(scheduler, "p")
    here, there = socket.socketpair()
    with closing(here), closing(there):
        seen: list[bool] = []

        def read() -> None:
            seen.append(process.wait_ready(here, select.POLLIN, 1.0))
            seen.append(process.wait_ready(here, select.POLLIN, 10.0))
            assert 3.0 <= scheduler.now < 3.1
            scheduler.stop()

        process.start(read, "read")
        scheduler.at(3.0, lambda: there.send(b"x"))  # type: ignore[arg-type]
        scheduler.run()
        assert seen == [False, True]


def test_a_deadlock_is_told_with_the_stacks() -> None:
    scheduler = Scheduler(0)
    process = SimProcess(scheduler, "p")
    changed = process.condition()

    def wait_for_nothing() -> None:
        with changed:
            changed.wait()

    process.start(wait_for_nothing, "waits")
    with pytest.raises(Deadlock, match="wait_for_nothing"):
        scheduler.run()


def test_an_exception_of_a_thread_ends_the_run() -> None:
    scheduler = Scheduler(0)
    process = SimProcess(scheduler, "p")

    def broken() -> None:
        raise KeyError("x")

    process.start(broken, "broken")
    with pytest.raises(KeyError):
        scheduler.run()
