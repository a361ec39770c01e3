"""A role's state from one worker's memory into another's, from one giver or from several at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from understudy.comm.links.link import Link
from understudy.comm.topology import LinkId
from understudy.state.errors import StateError, StreamBroken
from understudy.state.inventory import digest, take_inventory
from understudy.state.memory import Slot
from understudy.worker.transfer.handover import Arrival, Giver, Taker, Tempo, portion

STREAMS = 2


@contextmanager
def ends(givers: int) -> Iterator[list[tuple[list[Link], list[Link]]]]:
    """For each giver, its links and the taker's."""
    found = []
    for number in range(givers):
        pairs = [socket.socketpair() for _ in range(STREAMS)]
        ids = [LinkId("state", "", rail, f"w{number}", "w9") for rail in range(STREAMS)]
        found.append(
            (
                [Link(one, link, "w9", "") for (one, _), link in zip(pairs, ids, strict=True)],
                [Link(other, link, f"w{number}", "") for (_, other), link in zip(pairs, ids, strict=True)],
            )
        )
    try:
        yield found
    finally:
        for link in (link for both in found for side in both for link in side):
            link.close()


def made(seed: int, steps: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 4))
    tracked = {"model": model, "optim": torch.optim.Adam(model.parameters())}
    for _ in range(steps):
        model(torch.randn(8, 20)).square().mean().backward()
        tracked["optim"].step()  # type: ignore[attr-defined]
        tracked["optim"].zero_grad()  # type: ignore[attr-defined]
    return tracked


def never() -> bool:
    return False


class Beside:
    """Something under way in a thread."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.result: object = None
        self._thread = threading.Thread(target=self._run, args=(work,))
        self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            self.result = work()
        except Exception as error:
            self.result = error

    def wait(self) -> object:
        self._thread.join(30)
        return self.result


@pytest.mark.parametrize("givers", [1, 2, 3])
@pytest.mark.parametrize("steps", [0, 2])
def test_several_give_a_part_each(givers: int, steps: int) -> None:
    """All of them hold the same; the taker has rehearsed with other numbers."""
    taker = made(9, 3)
    with ends(givers) as links:
        sources = [made(1, steps) for _ in range(givers)]
        giving = [
            Beside(lambda n=n: Giver(links[n][0], sources[n], never, (n, givers)).finish(7, Tempo()))  # type: ignore[misc]
            for n in range(givers)
        ]
        sides = [theirs for _, theirs in links]
        arrival = Taker(sides[0], taker, never, sides[1:]).run(lambda arrival: arrival.step == 7)
        given_bytes = [each.wait() for each in giving]
    assert isinstance(arrival, Arrival)
    assert digest(take_inventory(taker)) == digest(take_inventory(sources[0]))
    assert all(isinstance(size, int) for size in given_bytes)
    assert arrival.bytes == sum(given_bytes)  # type: ignore[arg-type]


def test_one_of_several_dies() -> None:
    """Nothing counts, and no thread of the taker is left that would use the links."""
    taker, source = made(9, 1), made(1, 1)
    with ends(2) as links:
        giving = Beside(lambda: Giver(links[0][0], source, never, (0, 2)).finish(7, Tempo()))
        for link in links[1][0]:
            link.close()
        with pytest.raises(StreamBroken):
            Taker(links[0][1], taker, never, [links[1][1]]).run(lambda arrival: pytest.fail("it counts"))
        assert not any(thread.name == "understudy part" for thread in threading.enumerate())
        for link in links[0][1]:
            link.close()
        assert isinstance(giving.wait(), StreamBroken)


def test_givers_must_hold_the_same_state() -> None:
    taker = made(9, 1)
    other = {"model": nn.Linear(3, 3), "optim": torch.optim.SGD([torch.zeros(1)])}
    with ends(2) as links:
        giving = [
            Beside(lambda: Giver(links[0][0], made(1, 1), never, (0, 2)).finish(7, Tempo())),
            Beside(lambda: Giver(links[1][0], other, never, (1, 2)).finish(7, Tempo())),
        ]
        with pytest.raises((StateError, StreamBroken)):
            Taker(links[0][1], taker, never, [links[1][1]]).run(lambda arrival: True)
        for link in (*links[0][1], *links[1][1]):
            link.close()
        assert all(isinstance(each.wait(), StreamBroken) for each in giving)


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 6))
def test_every_tensor_is_given_by_exactly_one(sizes: list[int], parts: int) -> None:
    slots = [Slot(str(number), (), "float32", size) for number, size in enumerate(sizes)]
    given_by = [portion(slots, part, parts) for part in range(parts)]
    assert [number for each in given_by for number in each] == list(range(len(slots)))
    most = max(sizes, default=0)
    assert all(sum(sizes[number] for number in each) <= sum(sizes) / parts + most for each in given_by)
