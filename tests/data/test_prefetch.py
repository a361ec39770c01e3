"""Prefetching batches: bounded, in any order, and ended by `close`."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from understudy.data.prefetch import Prefetcher

Key = tuple[int, int, int]


class Maker:
    """Writes down what it is asked to make; can be made to wait or to fail."""

    def __init__(self) -> None:
        self.made: list[Key] = []
        self.changed = threading.Condition()
        self.open = threading.Event()
        self.open.set()
        self.broken: set[int] = set()
        self.inside = 0

    def __call__(self, step: int, number: int, count: int) -> Key:
        self.inside += 1
        assert self.inside == 1
        assert self.open.wait(10)
        with self.changed:
            self.made.append((step, number, count))
            self.changed.notify_all()
        self.inside -= 1
        if step in self.broken:
            raise ValueError(f"step {step} is broken")
        return step, number, count

    def wait_for(self, *keys: Key) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: set(keys) <= set(self.made), 10), self.made


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("understudy data")]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for thread in threads():
        thread.join(10)
    assert not threads()


def test_the_next_steps_are_made_ahead_and_no_more() -> None:
    maker = Maker()
    ahead = Prefetcher(maker, 2)
    assert ahead.get(0, 1, 4) == (0, 1, 4)
    maker.wait_for((1, 1, 4), (2, 1, 4))
    assert ahead.get(1, 1, 4) == (1, 1, 4)
    maker.wait_for((3, 1, 4))
    ahead.close()
    assert sorted(maker.made) == [(step, 1, 4) for step in range(4)]


def test_any_order_is_right() -> None:
    ahead = Prefetcher(Maker(), 3)
    for step, number in [(5, 0), (5, 1), (0, 1), (1, 1), (1, 1), (9, 0), (6, 0), (2, 1), (3, 1)]:
        assert ahead.get(step, number, 2) == (step, number, 2)
        assert all(step <= key[0] <= step + 3 for key in ahead._coming)
    ahead.close()


def test_an_error_is_raised_by_the_request_for_its_batch() -> None:
    maker = Maker()
    maker.broken = {1}
    ahead = Prefetcher(maker, 1)
    ahead.get(0, 0, 1)
    maker.wait_for((1, 0, 1))
    with pytest.raises(ValueError, match="step 1 is broken"):
        ahead.get(1, 0, 1)
    assert ahead.get(2, 0, 1) == (2, 0, 1)
    ahead.close()


def test_closing_ends_the_thread_and_what_waits_in_line() -> None:
    maker = Maker()
    ahead = Prefetcher(maker, 50)
    ahead.get(0, 0, 1)
    maker.open.clear()
    closing = threading.Thread(target=ahead.close)
    closing.start()
    maker.open.set()
    closing.join(10)
    assert not threads()
    assert ahead.get(7, 0, 1) == (7, 0, 1)
    ahead.close()


def test_forgetting_it_ends_the_thread() -> None:
    ahead = Prefetcher(Maker(), 2)
    ahead.get(0, 0, 1)
    assert threads()


def test_without_steps_there_is_no_thread() -> None:
    assert Prefetcher(Maker(), 0).get(3, 0, 1) == (3, 0, 1)
    assert not threads()
