"""A copy over links: to a backup that keeps it, or into a joiner."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from understudy.comm.links.link import Link
from understudy.comm.topology import LinkId
from understudy.state.copy import Copy, Draft
from understudy.state.errors import StreamBroken
from understudy.state.inventory import digest, take_inventory
from understudy.worker.transfer.copying import confirm_copy, give_copy, send_copy, take_copy
from understudy.worker.transfer.handover import KeepStep, Last, Taker, Tempo, TensorBatch, send

Ends = tuple[list[Link], list[Link]]


@pytest.fixture(params=[1, 3], ids=["one stream", "three streams"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    pairs = [socket.socketpair() for _ in range(request.param)]
    links = [
        [Link(sock, LinkId("copy", "", rail, "w0", "w1"), "", "") for sock in two] for rail, two in enumerate(pairs)
    ]
    yield [a for a, _ in links], [b for _, b in links]
    for link in (link for two in links for link in two):
        link.close()


def never() -> bool:
    return False


def made(seed: int, steps: int, *, carried: bool = False, zeros: bool = False) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 4))
    tracked = {"model": model, "optim": torch.optim.Adam(model.parameters())}
    for _ in range(steps):
        model(torch.randn(8, 20)).square().mean().backward()
        tracked["optim"].step()  # type: ignore[attr-defined]
        tracked["optim"].zero_grad(set_to_none=not zeros)  # type: ignore[attr-defined]
    if carried:
        model[0](torch.randn(8, 20)).sum().backward()
    return tracked


def gradients(tracked: dict[str, Any]) -> list[Any]:
    return [None if g is None else g.tolist() for _, g in take_inventory(tracked).gradients()]


def beside(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start it in a thread; call what is returned for its result."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(30)
        return outcome[0]

    return result


def draft(tracked: dict[str, Any], step: int) -> Copy:
    return Draft(step, take_inventory(tracked)).finish()


KINDS = [{}, {"carried": True}, {"zeros": True}, {"zeros": True, "carried": True}]


@pytest.mark.parametrize("kind", KINDS, ids=["no gradients", "carried", "zeros", "both"])
def test_to_a_backup_and_from_it_to_a_joiner(ends: Ends, kind: dict[str, bool]) -> None:
    givers, takers = ends
    tracked = made(1, 2, **kind)
    original = draft(tracked, 7)
    given = beside(lambda: send_copy(givers, original, 4, never))
    told: list[int] = []
    kept = take_copy(takers, told.append, never)
    assert told == [4]
    confirm_copy(takers, never)
    assert given() == sum(slot.bytes for slot in (*original.slots, *original.gradients))
    assert (kept.step, kept.slots, kept.rest, kept.zeros) == (7, original.slots, original.rest, original.zeros)
    assert list(kept.carried) == list(original.carried)

    joiner = made(2, 0)
    given = beside(lambda: give_copy(takers, kept, never))
    arrival = Taker(givers, joiner, never).run(lambda arrival: arrival.step == 7)
    assert arrival is not None
    assert (arrival.step, arrival.tempo, arrival.again) == (7, Tempo(), False)
    assert given() == arrival.bytes
    assert digest(take_inventory(joiner)) == digest(take_inventory(tracked))
    assert gradients(joiner) == gradients(tracked)


def test_one_after_the_other_in_the_same_memory(ends: Ends) -> None:
    givers, takers = ends
    kept: Copy | None = None
    places: set[int] = set()
    for step in range(1, 5):
        tracked = made(1, step, carried=step > 1)
        original = draft(tracked, step)
        given = beside(partial(send_copy, givers, original, 0, never))
        spare = [kept]
        kept = take_copy(takers, lambda _: spare.pop(), never)  # noqa: B023
        confirm_copy(takers, never)
        assert given() > 0
        used = {tensor.data_ptr() for tensor in (*kept.tensors, *kept.carried.values())}
        assert step < 3 or used == places
        places = used
        other = made(3, 0)
        kept.restore(other)
        assert digest(take_inventory(other)) == digest(take_inventory(tracked))


def test_the_giver_fails_if_the_taker_goes_in_the_middle(ends: Ends) -> None:
    givers, takers = ends
    original = draft(made(1, 1), 1)
    given = beside(lambda: send_copy(givers, original, 0, never))

    def gone(_: int) -> None:
        for link in takers:
            link.close()

    with pytest.raises((StreamBroken, OSError, ValueError)):
        take_copy(takers, gone, never)
    assert isinstance(given(), StreamBroken)


def test_the_taker_fails_if_the_giver_goes_in_the_middle(ends: Ends) -> None:
    givers, takers = ends
    original = draft(made(1, 1), 1)
    taken = beside(lambda: take_copy(takers, lambda _: None, never))
    send(givers[0].sock, KeepStep(0), never)
    send(givers[0].sock, TensorBatch(original.slots, tuple(range(len(original.slots))), True), never)
    givers[0].sock.send(b"x" * 100)
    for link in givers:
        link.close()
    assert isinstance(taken(), StreamBroken)


def test_a_copy_ends_when_it_is_stopped(ends: Ends) -> None:
    givers, takers = ends
    over = threading.Event()
    given = beside(lambda: send_copy(givers, draft(made(1, 1), 1), 0, over.is_set))
    taken = beside(lambda: take_copy(takers, lambda _: over.set(), over.is_set))
    assert isinstance(given(), StreamBroken)
    assert isinstance(taken(), StreamBroken)


def test_a_part_is_no_copy(ends: Ends) -> None:
    givers, takers = ends
    original = draft(made(1, 1), 1)
    send(givers[0].sock, KeepStep(0), never)
    send(givers[0].sock, TensorBatch(original.slots, (0,), True), never)
    with pytest.raises(StreamBroken, match="a part of the state"):
        take_copy(takers, lambda _: None, never)
    send(givers[0].sock, Last(1, (), (), (), b"", Tempo(), False), never)
    with pytest.raises(StreamBroken, match="received Last, expected KeepStep"):
        take_copy(takers, lambda _: None, never)
