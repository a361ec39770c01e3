"""Joiners that rehearse together: operations among them are real, and then they enter the job like other joiners."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.comm.helpers import (
    Ensemble,
    all_gather,
    all_reduce,
    at_once,
    endpoint_of,
    enter,
    eventually,
    expected,
    kill,
    receive,
    send,
    streams,
    sums,
)
from understudy.comm.endpoint import Endpoint
from understudy.comm.network import NetworkFabric
from understudy.comm.ops import Op, reduction
from understudy.comm.sandbox import Echo
from understudy.protocol.roster import Roster


def gather(mates: Sequence[NetworkFabric], first: int, generation: int, roles: int, *others: NetworkFabric) -> Roster:
    """All of them rehearse roles from `first` on; others would, but do not come."""
    everybody = [*mates, *others]
    seats = [(first + number, fabric.uid) for number, fabric in enumerate(everybody)]
    roster = Roster.of(generation, seats, [fabric.worker for fabric in everybody], roles=roles)
    at_once(*[partial(fabric.assume, first + n, Echo(), roster) for n, fabric in enumerate(mates)])
    return roster


def groups(mates: Sequence[NetworkFabric], *roles: int) -> list[Endpoint]:
    return at_once(*[partial(fabric.group, roles) for fabric in mates if fabric.role in roles])


def async_sum(endpoint: Endpoint, value: torch.Tensor, done: Callable[[], None]) -> None:
    op = Op("all_reduce", outputs=[value], reduction=reduction(dist.ReduceOp.SUM, value.dtype, endpoint.size))
    endpoint.submit(op, done)


def test_joiners_rehearse_together_and_enter_the_job(ensemble: Ensemble) -> None:
    """Two of one machine and one of another take three of four roles."""
    roster, fabrics, endpoints = ensemble.start("m0", "m1", "m1", "m2")
    inner = groups(fabrics[1:3], 1, 2)
    (alone,) = ensemble.hire("m9")
    mates = ensemble.hire("m8", "m8", "m9")
    gather(mates, 1, 2, 4)
    everybody = groups(mates, 0, 1, 2, 3)
    pair = groups(mates[:2], 1, 2)
    trio = groups(mates, 1, 2, 3)
    itself = mates[0].group((1,))
    for _ in range(2):
        assert sums(pair) == [11.0, 11.0]
        assert sums(trio) == sums(trio, elements=200_000) == [111.0] * 3
        assert sums(everybody) == [40.0, 400.0, 4000.0]  # as though all others gave the same
        assert sums([itself]) == [1.0]
    got = torch.zeros(3)
    at_once(partial(send, trio[0], torch.full((3,), 5.0), 2), partial(receive, trio[2], got, 0))
    assert got.tolist() == [5.0] * 3
    assert [float(part[0]) for part in at_once(*[partial(gathered, end) for end in trio])[0]] == [0.0, 1.0, 2.0]
    assert sums(endpoints) == [1111.0] * 4  # the job goes on meanwhile

    for fabric in mates:
        fabric.end_rehearsal()
    assert sums(pair) == [2.0, 20.0]
    assert sums(trio) == [3.0, 30.0, 300.0]
    assert receive(trio[2], torch.zeros(2), 0).tolist() == [1.0, 1.0]
    assert [fabric.generation for fabric in mates] == [0] * 3

    for fabric in mates:
        fabric.forget(endpoint_of(fabric, trio[0].name))
    following = roster.successor({role: mates[role - 1].worker for role in (1, 2, 3)}, generation=3)
    enter(following, [*fabrics, *mates])
    assert sums([endpoints[0], *everybody]) == [1111.0] * 4
    assert sums(pair) == [11.0, 11.0]
    assert [fabric.fault for fabric in (fabrics[0], *mates)] == [None] * 4
    assert (alone.generation, inner[0].name) == (0, pair[0].name)


def gathered(endpoint: Endpoint) -> list[torch.Tensor]:
    return all_gather(endpoint, torch.full((2,), float(endpoint.rank)))


def test_nothing_is_left_of_it(ensemble: Ensemble) -> None:
    mates = ensemble.hire("m8", "m8", "m9")
    before = streams()
    for generation in (1, 2):
        gather(mates, 0, generation, 4)
        ends = groups(mates, 0, 1, 2)
        assert sums(ends) == [111.0] * 3
        for fabric in mates:
            fabric.end_rehearsal()
            fabric.end_rehearsal()
        eventually(lambda: streams() == before)
        assert all(expected(fabric, generation) == 0 for fabric in mates)


def test_a_role_after_the_other_with_other_mates(ensemble: Ensemble) -> None:
    """A worker that assumes another role leaves the mates of its earlier rehearsal."""
    mates = ensemble.hire("m8", "m8")
    before = streams()
    gather(mates, 0, 1, 4)
    first = groups(mates, 0, 1)
    assert sums(first) == [11.0, 11.0]
    gather(mates, 2, 2, 4)
    second = groups(mates, 2, 3)
    assert sums(second) == [11.0, 11.0]
    with pytest.raises(RuntimeError, match="has gone on to role"):
        all_reduce(first[0], torch.ones(1))
    for fabric in mates:
        fabric.assume(0, Echo())
    eventually(lambda: streams() == before)


def test_one_is_done_before_the_other(ensemble: Ensemble) -> None:
    """What it has given arrives; what it would have to give is no longer waited for."""
    a, b = ensemble.hire("m8", "m9")
    gather([a, b], 0, 1, 4)
    ends = groups([a, b], 0, 1)
    got = torch.zeros(4)
    send(ends[0], torch.full((4,), 5.0), 1)
    at_once(partial(receive, ends[1], got, 0))
    assert got.tolist() == [5.0] * 4
    a.end_rehearsal()
    eventually(lambda: b._membership.rehearsal is not None and b._membership.rehearsal.poison.gone == {a.uid})
    late = b.group((0, 1))
    assert all_reduce(late, torch.ones(1)).item() == 2.0
    at_once(partial(all_reduce, ends[1], torch.ones(3)), limit=8)
    b.end_rehearsal()


def test_an_operation_that_a_mate_never_calls_ends_with_the_rehearsal(ensemble: Ensemble) -> None:
    mates = ensemble.hire("m8", "m8")
    gather(mates, 0, 1, 4)
    ends = groups(mates, 0, 1)
    done = threading.Event()
    async_sum(ends[0], torch.ones(3), done.set)
    eventually(lambda: ends[0].doing is not None)
    mates[0].end_rehearsal()
    assert done.wait(5)
    assert all_reduce(ends[0], torch.ones(1)).item() == 2.0


@pytest.mark.parametrize("machines", [("m8", "m8"), ("m8", "m9")], ids=str)
@pytest.mark.parametrize("end", [NetworkFabric.close, kill], ids=["closed", "killed"])
def test_a_mate_dies(ensemble: Ensemble, machines: tuple[str, ...], end: Callable[[NetworkFabric], None]) -> None:
    """No worker waits for the dead mate, neither in the current operation nor in later ones."""
    a, b = ensemble.hire(*machines)
    gather([a, b], 0, 1, 4)
    ends = groups([a, b], 0, 1)
    whole = a.group(range(4))
    assert sums(ends) == [11.0, 11.0]
    done = threading.Event()
    async_sum(ends[0], torch.ones(3), done.set)
    eventually(lambda: ends[0].doing is not None)
    end(b)
    assert done.wait(5)
    at_once(partial(all_reduce, ends[0], torch.ones(3)), limit=8)
    at_once(partial(receive, ends[0], torch.ones(3), 1), limit=8)
    assert a.lost_mates
    assert all_reduce(ends[0], torch.ones(1)).item() == 2.0  # the sandbox answers: no script sees what is undefined
    assert receive(ends[0], torch.full((2,), 7.0), 1).tolist() == [1.0, 1.0]
    late = a.group((0, 1))
    assert all_reduce(late, torch.ones(1)).item() == 2.0
    assert all_reduce(whole, torch.ones(1)).item() == 4.0
    a.end_rehearsal()
    assert all_reduce(ends[0], torch.ones(1)).item() == 2.0

    (other,) = ensemble.hire("m7")
    other.assume(1, Echo())
    ends = [ends[0], other.group((0, 1))]
    a.forget(late)
    a.forget(whole)
    enter(Roster.of(2, [(0, a.uid), (1, other.uid)], [a.worker, other.worker]), [a, other])
    assert sums(ends) == [11.0, 11.0]


def test_a_fabric_that_is_closed_in_a_rehearsal_leaves_no_links_or_threads(ensemble: Ensemble) -> None:
    before, threads = streams(), threading.active_count()
    mates = ensemble.hire("m8", "m8", "m9")
    gather(mates, 0, 1, 4)
    assert sums(groups(mates, 0, 1, 2)) == [111.0] * 3
    for fabric in mates:
        fabric.close()
    eventually(lambda: streams() == before)
    eventually(lambda: threading.active_count() == threads)


def test_a_mate_that_does_not_come(ensemble: Ensemble, caplog: pytest.LogCaptureFixture) -> None:
    """After the time limit the worker rehearses without any mates."""
    a, absent = ensemble.hire("m8", "m9", setup_limit=0.3)
    gather([a], 0, 1, 2, absent)
    (record,) = [record for record in caplog.records if "rehearses without its mates" in record.message]
    assert record.levelname == "WARNING"
    assert record.message.startswith("w0 rehearses without its mates: generation 1 could not be prepared by w0: ")
    end = a.group((0, 1))
    assert all_reduce(end, torch.ones(1)).item() == 2.0
    a.end_rehearsal()

    absent.assume(1, Echo())
    ends = [end, absent.group((0, 1))]
    enter(Roster.of(2, [(0, a.uid), (1, absent.uid)], [a.worker, absent.worker]), [a, absent])
    assert sums(ends) == [11.0, 11.0]


def test_a_mate_that_makes_no_group(ensemble: Ensemble) -> None:
    """It rehearses something else: its mate waits for the group once, for as long as setting up may take."""
    a, b = ensemble.hire("m8", "m9", setup_limit=0.5)
    gather([a, b], 0, 1, 4)
    ends = [a.group((0, 1)), a.group((0, 1))]
    assert [all_reduce(end, torch.ones(1)).item() for end in ends] == [2.0, 2.0]


def test_a_roster_that_is_not_its_own(ensemble: Ensemble, caplog: pytest.LogCaptureFixture) -> None:
    a, b = ensemble.hire("m8", "m9")
    roster = Roster.of(1, [(0, a.uid), (1, b.uid)], [a.worker, b.worker])
    a.assume(1, Echo(), roster)
    assert "w0 rehearses without its mates: roster of generation 1 gives role 0 to w0, which has role 1" in caplog.text
    assert all_reduce(a.group((0, 1)), torch.ones(1)).item() == 2.0
