"""Membership, one worker after the other: what may be prepared, switched to, given up and left."""

from __future__ import annotations

import gc
import socket
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.comm.helpers import (
    Ensemble,
    all_reduce,
    at_once,
    endpoint_of,
    enter,
    eventually,
    exchange,
    fault_of,
    first_roster,
    joiner,
    kill,
    prepare,
    send,
    streams,
    sums,
)
from understudy.comm.faults import PrepareFailed, SwitchRefused
from understudy.comm.links.pairs import Receive
from understudy.comm.network import NetworkFabric
from understudy.comm.ops import Op, reduction
from understudy.comm.sandbox import Echo
from understudy.protocol.roster import Roster, RosterError, WorkerAddress


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


# -- what may be prepared ----------------------------------------------------------------------------------------------


def test_an_old_generation(ensemble: Ensemble) -> None:
    roster, fabrics, _ = ensemble.start("m0")
    enter(roster.successor({}, generation=5), fabrics)
    for number in (1, 4, 5):
        again = Roster.of(number, [(0, "w0")], [fabrics[0].worker])
        with pytest.raises(RosterError, match=f"generation {number} is not after generation 5"):
            fabrics[0].prepare(again)


def test_the_same_generation_twice(ensemble: Ensemble) -> None:
    roster, fabrics, _ = ensemble.start("m0")
    following = roster.successor({})
    prepare(following, fabrics)
    with pytest.raises(RosterError, match="a number is used once"):
        fabrics[0].prepare(following)
    fabrics[0]._membership.cancel(2)
    with pytest.raises(RosterError, match="a number is used once"):
        fabrics[0].prepare(following)
    enter(roster.successor({}, generation=3), fabrics)


def test_another_role(ensemble: Ensemble) -> None:
    roster, (a, b), _ = ensemble.start("m0", "m1")
    swapped = Roster.of(2, [(0, "w1"), (1, "w0")], [a.worker, b.worker])
    with pytest.raises(RosterError, match="generation 2 gives role 1 to w0, which has role 0"):
        a.prepare(swapped)
    enter(roster.successor({}, generation=3), [a, b])
    assert sums([endpoint_of(a), endpoint_of(b)]) == [11.0, 11.0]


def test_another_address(ensemble: Ensemble) -> None:
    _, (a,), _ = ensemble.start("m0")
    (b,) = ensemble.hire("m1")
    lie = Roster.of(2, [(0, "w0")], [WorkerAddress("w0", "m0", "127.0.0.1", b.worker.port)])
    with pytest.raises(RosterError, match="lists w0 at another address than its own"):
        a.prepare(lie)


def test_a_port_that_is_taken() -> None:
    threads = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        NetworkFabric("w0", "m0", job="test", secret=b"x", port=taken.getsockname()[1])
    assert threading.active_count() == threads


def test_an_empty_secret() -> None:
    with pytest.raises(ValueError, match="secret is empty"):
        NetworkFabric("w0", "m0", job="test", secret=b"")


# -- what may be switched to -------------------------------------------------------------------------------------------


def test_what_is_not_prepared(ensemble: Ensemble) -> None:
    _, (a,), _ = ensemble.start("m0")
    with pytest.raises(SwitchRefused, match="w0 has not prepared generation 2"):
        a.switch(2)


def test_an_interrupted_generation_leaves_only_a_fresh_way(ensemble: Ensemble) -> None:
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    prepare(roster.successor({}), fabrics)
    fabrics[0].interrupt("a test")
    fault_of(fabrics[1])
    for fabric in fabrics:
        with pytest.raises(SwitchRefused, match="prepare one from a roster with fresh=True"):
            fabric.switch(2)
        assert str(fabric.fault) == "interrupt: a test (noticed by w0)"
    enter(roster.successor({}, generation=3, fresh=True), fabrics)
    assert sums(endpoints) == [11.0, 11.0]


def test_one_of_two_prepared_generations_is_entered(ensemble: Ensemble) -> None:
    """The other was made to follow a generation that is over: it is closed, and no worker votes for it."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    before = streams()
    for number, role in ((2, 1), (3, 0)):
        new = joiner(ensemble, "m9", role, 2)
        following = roster.successor({role: new.worker}, generation=number)
        prepare(following, [*fabrics, new])
        if number == 2:
            second = new
        else:
            new.close()
    assert fabrics[0].prepared <= 3
    for fabric in (*fabrics, second):
        fabric.switch(2)
    assert [fabric.prepared for fabric in (*fabrics, second)] == [2, 2, 2]
    with pytest.raises(SwitchRefused):
        fabrics[0].switch(3)
    assert sums([endpoints[0], endpoint_of(second)]) == [11.0, 11.0]
    fabrics[1].close()
    eventually(lambda: not fabrics[0]._membership.prepared)
    eventually(lambda: streams() == before)


def test_a_preparation_is_overtaken(ensemble: Ensemble) -> None:
    """A preparation fails if the worker enters a generation that the prepared one does not follow."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    new = joiner(ensemble, "m9", 1, 2)
    prepare(roster.successor({}), fabrics)
    future = fabrics[0].prepare(roster.successor({1: new.worker}, generation=3))
    for fabric in fabrics:
        fabric.switch(2)
    with pytest.raises(PrepareFailed, match="generation 2 was entered meanwhile; prepare a later one"):
        future.result(5)
    assert sums(endpoints) == [11.0, 11.0]


def test_a_poisoned_preparation_is_not_voted_for(ensemble: Ensemble) -> None:
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    new = joiner(ensemble, "m9", 1, 2)
    prepare(roster.successor({1: new.worker}), [*fabrics, new])
    assert [fabric.prepared for fabric in fabrics] == [2, 2]
    kill(new)
    eventually(lambda: [fabric.prepared for fabric in fabrics] == [1, 1])
    assert sums(endpoints) == [11.0, 11.0]
    for fabric in fabrics:
        fabric._membership.cancel(2)


# -- giving up ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [True, False], ids=["ready", "under way"])
def test_giving_up(ensemble: Ensemble, wait: bool) -> None:
    roster, fabrics, endpoints = ensemble.start("m0", "m0", "m1", "m2")
    before = streams()
    new = joiner(ensemble, "m9", 2, 4)
    following = roster.successor({2: new.worker})
    futures = [fabric.prepare(following) for fabric in (*fabrics, new)]
    if wait:
        for future in futures:
            future.result(10)
    for fabric in (*fabrics, new):
        fabric._membership.cancel(2)
        assert fabric.prepared == fabric.generation
    if not wait:
        told = {str(future.exception(5)).rpartition(": ")[2] for future in futures}
        assert told <= {"None", "it was cancelled"}
    assert sums(endpoints) == [1111.0] * 4
    new.close()
    futures.clear()  # an error holds the frames it came through, and they hold arenas
    eventually(lambda: streams() == before)
    third = joiner(ensemble, "m8", 2, 4)
    enter(roster.successor({2: third.worker}, generation=3), [*fabrics, third])
    assert sums([endpoints[0], endpoints[1], endpoint_of(third), endpoints[3]]) == [1111.0] * 4


def test_giving_up_before_it_has_begun(ensemble: Ensemble) -> None:
    """No other worker prepares, so the preparation cannot end by itself."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    new = joiner(ensemble, "m9", 1, 2)
    for number in range(2, 30):
        future = fabrics[0].prepare(roster.successor({1: new.worker}, generation=number))
        fabrics[0]._membership.cancel(number)
        with pytest.raises(PrepareFailed, match="it was cancelled"):
            future.result(1)
        assert not fabrics[0]._membership.prepared
    assert sums(endpoints) == [11.0, 11.0]


def test_giving_up_leaves_pairs_in_use_alone(ensemble: Ensemble) -> None:
    roster, fabrics, endpoints = ensemble.start("m0", "m1", "m2")
    exchange(endpoints[0], endpoints[1])
    exchange(endpoints[0], endpoints[2])
    new = joiner(ensemble, "m9", 2, 3)
    prepare(roster.successor({2: new.worker}), [*fabrics, new])
    for fabric in (*fabrics, new):
        fabric._membership.cancel(2)
    exchange(endpoints[0], endpoints[1])
    exchange(endpoints[0], endpoints[2])
    assert [fabric.fault for fabric in fabrics] == [None] * 3


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_a_released_worker_runs_no_more_operations(ensemble: Ensemble) -> None:
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    new = joiner(ensemble, "m9", 1, 2)
    enter(roster.successor({1: new.worker}), [*fabrics, new])
    why = "w1 was released: it has no role in generation 2"
    with pytest.raises(RuntimeError, match=why):
        all_reduce(endpoints[1], torch.ones(3))
    with pytest.raises(RuntimeError, match=why):
        send(endpoints[1], torch.ones(3), 0)
    done = threading.Event()
    endpoints[1].submit(Op("barrier"), done.set)
    assert done.wait(5)
    assert fabrics[1].role is None
    assert fabrics[1].fault is None
    assert fabrics[0].fault is None
    with pytest.raises(RuntimeError, match="changes its role only before the first"):
        fabrics[1].assume(0)
    assert sums([endpoints[0], endpoint_of(new)]) == [11.0, 11.0]


@pytest.mark.parametrize("machines", [("m0", "m0"), ("m0", "m1"), ("m0", "m0", "m0"), ("m0", "m1", "m2", "m3")])
def test_an_operation_with_a_worker_that_has_left_ends_at_once(ensemble: Ensemble, machines: tuple[str, ...]) -> None:
    """A worker that closes its fabric takes part in no operation: the others do not wait until the time limit."""
    _, fabrics, endpoints = ensemble.start(*machines)
    assert sums(endpoints)[0] > 1
    fabrics[-1].close()
    assert all(fabric.fault is None for fabric in fabrics[:-1])
    at_once(*[partial(all_reduce, endpoint, torch.ones(3)) for endpoint in endpoints[:-1]], limit=8)
    for fabric in fabrics[:-1]:
        fault = fault_of(fabric)
        assert fault.how == "eof"
        assert fabrics[-1].uid in fault.reason


def test_closing_twice_and_calling_after(ensemble: Ensemble) -> None:
    _, fabrics, endpoints = ensemble.start("m0", "m0")
    exchange(*endpoints)
    for fabric in fabrics:
        fabric.close()
        fabric.close()
    job = Receive(1, 0, torch.ones(1))
    endpoints[0].post(job)
    assert job.done.wait(5)


def test_operations_of_an_interrupted_step_do_not_run_in_the_next(ensemble: Ensemble) -> None:
    """Asynchronous operations that were given and never waited for: neither started nor mixed up afterwards."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    values = [torch.ones(100_000) for _ in range(20)]
    finished = [threading.Event() for _ in values]
    for value, event in zip(values, finished, strict=True):
        fold = reduction(dist.ReduceOp.SUM, torch.float32, 2)
        endpoints[0].submit(Op("all_reduce", outputs=[value], reduction=fold), event.set)
    following = roster.successor({}, fresh=True)
    prepare(following, fabrics)
    fabrics[0].interrupt("a test")
    for fabric in fabrics:
        fabric.switch(2)
    assert sums(endpoints) == [11.0, 11.0]
    assert all(event.wait(5) for event in finished)
    assert fabrics[0].fault is None
    assert fabrics[1].fault is None


# -- after a failure between the vote and the switch -------------------------------------------------------------------


def test_half_of_the_workers_have_switched(ensemble: Ensemble) -> None:
    """The leaver dies when some have switched and some have not: the next roster is fresh and joins them again."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1", "m2", "m3")
    new = joiner(ensemble, "m9", 0, 4)
    second = roster.successor({0: new.worker})
    prepare(second, [*fabrics, new])
    for fabric in (fabrics[1], fabrics[3], new):
        fabric.switch(2)
    kill(fabrics[0])
    fault_of(fabrics[2])
    with pytest.raises(SwitchRefused):
        fabrics[2].switch(2)
    enter(second.successor({}, fresh=True), [fabrics[1], fabrics[2], fabrics[3], new])
    assert sums([endpoint_of(new), *endpoints[1:]]) == [1111.0] * 4


@pytest.mark.parametrize("first", [0, 1])
def test_half_of_a_new_machine_has_switched(ensemble: Ensemble, first: int) -> None:
    """The two workers of the new machine share an arena, although only one of them has switched."""
    roster, fabrics, endpoints = ensemble.start("m0", "m0", "m1", "m1")
    new = [joiner(ensemble, "m9", role, 4) for role in (2, 3)]
    second = roster.successor({2: new[0].worker, 3: new[1].worker})
    prepare(second, [*fabrics, *new])
    new[first].switch(2)
    fabrics[0].switch(2)
    enter(second.successor({}, fresh=True), [fabrics[0], fabrics[1], *new])
    assert sums([endpoints[0], endpoints[1], *map(endpoint_of, new)]) == [1111.0] * 4


def test_a_worker_outside_the_roster_cannot_touch_the_arena(ensemble: Ensemble) -> None:
    """A worker is stopped, replaced on the same machine and continued: no worker reads what it still writes."""
    roster, fabrics, endpoints = ensemble.start("m0", "m0")
    assert sums(endpoints) == [11.0, 11.0]
    zombie = endpoints[1].transport._seat.arena  # type: ignore[attr-defined]
    fabrics[0].interrupt("the other one hangs")
    new = joiner(ensemble, "m0", 1, 2)
    enter(roster.successor({1: new.worker}, fresh=True), [fabrics[0], new])
    assert sums([endpoints[0], endpoint_of(new)]) == [11.0, 11.0]
    results = []

    def go_on() -> None:
        results.append(sums([endpoints[0], endpoint_of(new)], elements=200_000))

    thread = threading.Thread(target=go_on)
    thread.start()
    while thread.is_alive():
        for area in (area for buffer in zombie.arena.areas for area in buffer):
            area.fill_(0x55)
    thread.join()
    assert results == [[11.0, 11.0]]


# -- rehearsing --------------------------------------------------------------------------------------------------------


def test_one_role_after_the_other_is_rehearsed(ensemble: Ensemble) -> None:
    """A standby takes a role, then another one, and plays that: its groups are those of the others."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1", "m2")
    (standby,) = ensemble.hire("m9")
    for role in (0, 2, 1):
        standby.assume(role, Echo())
        end = standby.group(range(3))
        assert end.name == endpoints[0].name
        assert all_reduce(end, torch.ones(1)).item() == 3.0
    enter(roster.successor({1: standby.worker}), [*fabrics, standby])
    assert sums([endpoints[0], end, endpoints[2]]) == [111.0] * 3


def test_what_was_prepared_is_given_up_when_another_role_is_assumed(ensemble: Ensemble) -> None:
    roster, fabrics, _ = ensemble.start("m0", "m1")
    new = joiner(ensemble, "m9", 1, 2)
    future = new.prepare(roster.successor({1: new.worker}))
    new.assume(0, Echo())
    with pytest.raises(PrepareFailed):
        future.result(timeout=20)
    assert new.prepared == 0
    new.group(range(2))
    enter(roster.successor({0: new.worker}, generation=3), [*fabrics, new])
    assert new.role == 0


def test_a_worker_has_its_prepared_role_only_after_the_switch(ensemble: Ensemble) -> None:
    (a,) = ensemble.hire("m0")
    future = a.prepare(first_roster([a]))
    future.result(5)
    assert a.role is None
    with pytest.raises(RuntimeError, match="w0 has no role yet"):
        a.group((0,))
    a.switch(1)
    assert a.role == 0


# -- news --------------------------------------------------------------------------------------------------------------


def test_a_long_reason_reaches_all_workers(ensemble: Ensemble) -> None:
    _, fabrics, _ = ensemble.start("m0", "m1", "m2")
    fabrics[1].interrupt("long " * 100_000)
    for fabric in fabrics:
        fault = fault_of(fabric)
        assert fault.how == "interrupt"
        assert fault.noticed_by == "w1"


def test_the_news_of_a_failed_preparation_travels(ensemble: Ensemble) -> None:
    """w2 waits for a dial that will not come, and gets the reason from the workers that failed."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1", "m2")
    new = joiner(ensemble, "m9", 1, 3)
    following = roster.successor({1: new.worker})
    new.close()
    futures = [fabric.prepare(following) for fabric in fabrics]
    for number in (0, 2):
        with pytest.raises(PrepareFailed, match="w3 on m9"):
            futures[number].result(8)
    assert sums(endpoints) == [111.0] * 3
    assert [fabric.fault for fabric in fabrics] == [None] * 3


def test_nothing_is_left(ensemble: Ensemble) -> None:
    ensemble.start("m0", "m0", "m1")
    before, threads = descriptors(), threading.active_count()
    _whole_life()
    assert threading.active_count() == threads
    assert descriptors() == before


def _whole_life() -> None:
    with Ensemble() as ensemble:
        roster, fabrics, endpoints = ensemble.start("m0", "m0", "m1")
        exchange(endpoints[0], endpoints[2])
        assert sums(endpoints) == [111.0] * 3
        fabrics[0].interrupt("a test")
        enter(roster.successor({}, fresh=True), fabrics)
        prepare(roster.successor({}, generation=3), fabrics)
