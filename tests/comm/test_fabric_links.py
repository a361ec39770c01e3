"""Groups, pairs and copy links that are opened late, during a change of the roster, or with a vacant role."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.comm.helpers import (
    Ensemble,
    all_gather,
    all_reduce,
    at_once,
    broadcast,
    endpoint_of,
    enter,
    eventually,
    exchange,
    fault_of,
    first_roster,
    joiner,
    prepare,
    receive,
    send,
    streams,
    sums,
)
from understudy.comm.endpoint import Endpoint
from understudy.comm.faults import LinkFailed, PrepareFailed
from understudy.comm.group import RoleGroup
from understudy.comm.links.link import Link
from understudy.comm.network import NetworkFabric
from understudy.protocol.roster import Roster

# -- groups that come late ---------------------------------------------------------------------------------------------


def test_a_group_made_in_a_running_generation(ensemble: Ensemble) -> None:
    roster, fabrics, _ = ensemble.start("m0", "m0", "m1")
    late = at_once(*[partial(fabric.group, (0, 2, 1)) for fabric in fabrics])
    assert sums(late) == [111.0] * 3
    enter(roster.successor({}), fabrics)
    assert sums(late) == [111.0] * 3
    enter(roster.successor({}, generation=3, fresh=True), fabrics)
    assert sums(late) == [111.0] * 3


def test_a_group_made_after_the_next_generation_was_prepared(ensemble: Ensemble) -> None:
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    prepare(roster.successor({}), fabrics)
    late = at_once(*[partial(fabric.group, (0, 1)) for fabric in fabrics])
    assert sums(late) == [11.0, 11.0]
    for fabric in fabrics:
        fabric.switch(2)
    assert sums(late) == [11.0, 11.0]
    assert sums(endpoints) == [11.0, 11.0]


def test_messages_first_in_a_group_that_comes_late(ensemble: Ensemble) -> None:
    roster, fabrics, _ = ensemble.start("m0", "m1")
    prepare(roster.successor({}), fabrics)
    late = at_once(*[partial(fabric.group, (0, 1)) for fabric in fabrics])
    for fabric in fabrics:
        fabric.switch(2)
    exchange(*late)
    assert sums(late) == [11.0, 11.0]


def test_a_group_that_cannot_be_opened(ensemble: Ensemble) -> None:
    """The worker that opens the group waits for an absent peer: an interrupt ends the wait; the group opens later."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    made: list[Endpoint] = []
    thread = threading.Thread(target=lambda: made.append(fabrics[0].group((0, 1))), daemon=True)
    thread.start()
    eventually(lambda: bool(fabrics[0]._membership.current and fabrics[0]._membership.current.openings))
    fabrics[1].interrupt("a test")
    thread.join(5)
    assert made
    assert fabrics[0].fault is not None
    all_reduce(made[0], torch.ones(3))
    send(made[0], torch.ones(3), 1)
    made.append(fabrics[1].group((0, 1)))
    enter(roster.successor({}, fresh=True), fabrics)
    assert sums(made) == [11.0, 11.0]
    assert sums(endpoints) == [11.0, 11.0]


def test_a_late_group_with_a_vacant_role(ensemble: Ensemble) -> None:
    roster, fabrics, _ = ensemble.start("m0", "m1", "m2")
    vacated = roster.successor({1: None})
    prepare(vacated, fabrics)
    late = at_once(*[partial(fabric.group, (0, 1, 2)) for fabric in fabrics])
    for fabric in fabrics:
        fabric.switch(2)
    ends = [late[0], late[2]]
    assert sums(ends) == [101.0, 101.0]
    at_once(*[partial(all_gather, end, torch.ones(3)) for end in ends])
    for fabric in (fabrics[0], fabrics[2]):
        fault = fault_of(fabric)
        assert fault.how == "vacant"
        assert "all_gather in group g1[0-2] needs role 1, which is vacant" in fault.reason


def test_a_group_is_closed_while_the_next_generation_is_prepared(ensemble: Ensemble) -> None:
    roster, fabrics, endpoints = ensemble.start("m0", "m1", "m2")
    before = streams()
    late = at_once(*[partial(fabric.group, (0, 1, 2)) for fabric in fabrics])
    new = joiner(ensemble, "m9", 1, 3)
    new.group(range(3))
    prepare(roster.successor({1: new.worker}), [*fabrics, new])
    for fabric, end in zip(fabrics, late, strict=True):
        fabric.forget(end)
    for fabric in (*fabrics, new):
        fabric.switch(2)
    new.forget(endpoint_of(new, late[0].name))
    fabrics[1].close()
    assert sums([endpoints[0], endpoint_of(new), endpoints[2]]) == [111.0] * 3
    late.clear()
    eventually(lambda: streams() == before)


def test_arenas_of_different_sizes(ensemble: Ensemble) -> None:
    a, b = ensemble.hire("m0")[0], ensemble.hire("m0", slot_bytes=1 << 16)[0]
    for role, fabric in enumerate((a, b)):
        fabric.assume(role)
        fabric.group((0, 1))
    before = streams()
    futures = [fabric.prepare(first_roster([a, b])) for fabric in (a, b)]
    with pytest.raises(PrepareFailed, match=r"arena of g0\[0-1\] from role 0 \(w0 on m0\): .* different settings"):
        futures[1].result(5)
    a._membership.cancel(1)
    futures.clear()
    eventually(lambda: streams() == before)


# -- vacant roles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machines", [("m0", "m1", "m2"), ("m0", "m0", "m0"), ("m0", "m0", "m1")], ids=str)
def test_a_vacant_role(ensemble: Ensemble, machines: tuple[str, ...]) -> None:
    """Sums do without it, whatever needs it fails the step, and a joiner fills it."""
    roster, fabrics, endpoints = ensemble.start(*machines)
    group = RoleGroup(endpoints[0])
    enter(roster.successor({1: None}), fabrics)
    ends, live = [endpoints[0], endpoints[2]], [fabrics[0], fabrics[2]]
    assert sums(ends) == sums(ends, elements=200_000) == [101.0, 101.0]
    assert group.size() == 3
    averages = at_once(*[partial(all_reduce, end, torch.full((1,), 3.0), dist.ReduceOp.AVG) for end in ends])
    assert [float(average) for average in averages] == [2.0, 2.0]
    needing: dict[str, Callable[[Endpoint], object]] = {
        "all_gather in group g0[0-2] needs role 1, which is vacant": lambda end: all_gather(end, torch.ones(3)),
        "broadcast in group g0[0-2] needs role 1, which is vacant": lambda end: broadcast(end, torch.ones(3), 1),
        "a message in group g0[0-2] is for role 1, which is vacant": lambda end: send(end, torch.ones(3), 1),
    }
    for reason, call in needing.items():
        at_once(*[partial(call, end) for end in ends])
        for fabric in live:
            assert (fault_of(fabric).how, fault_of(fabric).reason) == ("vacant", reason)
        roster = fabrics[0].roster or roster
        enter(roster.successor({}, fresh=True), live)
        assert sums(ends) == [101.0, 101.0]
    for fabric in live:  # as while a job is set up
        fabric.vouch(True)
    gathered = at_once(*[partial(all_gather, end, torch.full((2,), float(end.rank))) for end in ends])
    assert [[float(part[0]) for part in parts] for parts in gathered] == [[0.0, 0.0, 2.0], [0.0, 2.0, 2.0]]
    for fabric in live:
        fabric.vouch(False)
    new = joiner(ensemble, machines[1], 1, 3)
    roster = fabrics[0].roster or roster
    enter(roster.successor({1: new.worker}), [*live, new])
    assert sums([endpoints[0], endpoint_of(new), endpoints[2]]) == [111.0] * 3


# -- pairs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("lower_first", [True, False])
def test_a_pair_that_begins_while_a_generation_is_prepared(ensemble: Ensemble, lower_first: bool, fresh: bool) -> None:
    """One side has prepared before they began to talk, the other after."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    following = roster.successor({}, fresh=fresh)
    first, second = fabrics if lower_first else reversed(fabrics)
    early = first.prepare(following)
    if not fresh:
        early.result(5)
    exchange(*endpoints)
    second.prepare(following).result(5)
    early.result(5)
    for fabric in fabrics:
        fabric.switch(2)
    exchange(*endpoints)
    exchange(*endpoints)
    assert [fabric.fault for fabric in fabrics] == [None, None]


@pytest.mark.parametrize("role", [0, 1, 2])
@pytest.mark.parametrize("fresh", [False, True])
def test_pairs_with_a_joiner(ensemble: Ensemble, role: int, fresh: bool) -> None:
    """The pairs of a role work with the next worker of the role, in any order of the switches."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1", "m2")
    for a, b in ((0, 1), (0, 2), (1, 2)):
        exchange(endpoints[a], endpoints[b])
    for order in (1, -1):
        new = joiner(ensemble, "m9", role, 3)
        roster = roster.successor({role: new.worker}, fresh=fresh)
        if fresh:
            fabrics[(role + 1) % 3].interrupt("a test")
        prepare(roster, [*fabrics, new])
        seated = [fabric if place != role else new for place, fabric in enumerate(fabrics)]
        ends = [endpoint_of(fabric) for fabric in seated]
        talks = [partial(exchange, ends[a], ends[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
        for fabric in [new, *fabrics][::order]:
            fabric.switch(roster.generation)
        at_once(*talks)
        fabrics = seated
    assert [fabric.fault for fabric in fabrics] == [None] * 3


def test_a_joiner_talks_before_the_others_are_there(ensemble: Ensemble) -> None:
    """After an interruption there is no vote: each worker enters the fresh roster when it is ready."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1")
    exchange(*endpoints)
    for _ in range(10):
        new = joiner(ensemble, "m9", 0, 2)
        fabrics[0].interrupt("a test")
        fault_of(fabrics[1])
        roster = roster.successor({0: new.worker}, fresh=True)

        def come(fabric: NetworkFabric, end: Endpoint, roster: Roster = roster) -> float:
            fabric.prepare(roster).result(5)
            fabric.switch(roster.generation)
            other = 1 - end.rank
            got = torch.zeros(1)
            at_once(partial(send, end, torch.full((1,), 7.0 + end.rank), other), partial(receive, end, got, other))
            return got.item()

        fabrics[0].close()
        assert at_once(partial(come, new, endpoint_of(new)), partial(come, fabrics[1], endpoints[1])) == [8.0, 7.0]
        assert fabrics[1].fault is None
        fabrics[0] = new


# -- links for copies --------------------------------------------------------------------------------------------------


def test_copy_links_are_opened_in_the_current_generation(ensemble: Ensemble) -> None:
    """Copy links can be opened any number of times; an early dial waits. They survive an interruption."""
    roster, fabrics, _ = ensemble.start("m0", "m1", "m2")
    early = fabrics[0].dial_copy(roster, "w1", 2)
    taken: list[Link] = []
    fabrics[1].expect_copy(1, taken.append)
    links = early.result(10)
    eventually(lambda: len(taken) == 2)
    fabrics[0].interrupt("a test")
    fault_of(fabrics[1])
    links[1].sock.send(b"still there")
    (other,) = [link for link in taken if link.id == links[1].id]
    eventually(lambda: other.peek(20) == b"still there")
    links += fabrics[0].dial_copy(roster, "w1", 2, attempt=1).result(10)
    links += fabrics[2].dial_copy(roster, "w1", 2).result(10)
    eventually(lambda: len(taken) == 6)
    assert [link.id.rail for link in links] == [0, 1, 2, 3, 0, 1]
    assert {link.id for link in taken} == {link.id for link in links}
    assert {(link.id.kind, link.peer) for link in taken} == {("copy", "w0"), ("copy", "w2")}
    for link in (*links, *taken):
        link.close()


def test_copy_links_of_another_generation_are_refused(ensemble: Ensemble) -> None:
    """The copy links of a leaver are refused, and so are those of an earlier generation."""
    roster, fabrics, _ = ensemble.start("m0", "m1")
    new = joiner(ensemble, "m9", 1, 2)
    following = roster.successor({1: new.worker})
    waits = fabrics[1].dial_copy(roster, "w0", 1)  # its generation ends before a copy is expected
    enter(following, [*fabrics, new])
    fabrics[0].expect_copy(2, lambda link: link.close())
    with pytest.raises(
        LinkFailed, match=r"copy link with role 0 \(w0 on m0\): (this worker expects no|generation 1 is stale)"
    ):
        waits.result(10)
    with pytest.raises(LinkFailed, match="generation 1 is stale"):
        fabrics[1].dial_copy(roster, "w0", 1).result(10)
    with pytest.raises(LinkFailed, match="w1 is not in the roster of generation 2"):
        fabrics[1].dial_copy(following, "w0", 1).result(10)
    new.dial_copy(following, "w0", 1).result(10)[0].close()
