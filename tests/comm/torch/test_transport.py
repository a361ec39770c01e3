"""A torch backend as transport, rebuilt for every generation: Gloo here, by the same code NCCL where there are GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

from tests.comm.helpers import Ensemble, all_reduce, broadcast, eventually, sums
from understudy.comm.endpoint import Endpoint
from understudy.comm.faults import Fault, PrepareFailed
from understudy.comm.group import install, uninstall
from understudy.comm.links.pairs import Receive, Send
from understudy.comm.ops import Op, reduction
from understudy.comm.torch.transport import TorchTransport
from understudy.protocol.roster import Roster
from understudy.testing.local_workers import LocalWorker, LocalWorkers, WorkerHandle, first_roster, run_workers

GLOO = "torch:gloo"
SUM_OF_ALL = 111.0
"""The sum of what three roles give when role r gives 10 to the power of r."""


def join(worker: LocalWorker, role: int, roles: int) -> Endpoint:
    worker.fabric.assume(role)
    group = worker.fabric.group(range(roles))
    worker.enter(worker.hear())
    return group


def total(group: Endpoint, elements: int = 1000) -> float:
    value = all_reduce(group, torch.full((elements,), 10.0**group.rank))
    return float(value[elements // 2])


def workers_of(*machines: str, body: Callable[..., Any], **options: Any) -> tuple[LocalWorkers, list[WorkerHandle]]:
    """One worker per machine; each knows its role and how many there are."""
    local = LocalWorkers(transport=GLOO, **{"limit": 20.0, "setup_limit": 30.0} | options)
    return local, [local.start(machine, 1, body, role, len(machines))[0] for role, machine in enumerate(machines)]


# -- what it computes --------------------------------------------------------------------------------------------------


def every_collective(worker: LocalWorker) -> None:
    install(worker.fabric, 3)
    rank, ranks = dist.get_rank(), range(3)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int16, torch.bool, torch.complex64):
        given = [((torch.arange(1003) + r) % 5).to(dtype) for r in ranks]
        outs = [torch.zeros_like(given[0]) for _ in ranks]
        dist.all_gather(outs, given[rank])
        assert all(map(torch.equal, outs, given))
        value = given[rank].clone()
        dist.broadcast(value, 1)
        assert torch.equal(value, given[1])
        dist.gather(given[rank], outs if rank == 2 else None, dst=2)
        dist.scatter(value, given if rank == 0 else None, src=0)
        assert torch.equal(value, given[rank])
        value = given[rank].clone()
        dist.all_reduce(value)
        expected = given[0] + given[1] + given[2]
        assert torch.equal(value, expected)
        value = given[rank].clone()
        dist.reduce(value, 1)
        assert torch.equal(value, expected if rank == 1 else given[rank])
        dist.reduce_scatter(value, [given[(r + rank) % 3] for r in ranks])
        assert torch.equal(value, expected)
        mine = [given[rank][: 7 * r] for r in ranks]
        back = [torch.zeros(7 * rank, dtype=dtype) for _ in ranks]
        dist.all_to_all(back, mine)
        assert all(torch.equal(block, given[r][: 7 * rank]) for r, block in enumerate(back))
    for how, right in ((dist.ReduceOp.MAX, 2.0), (dist.ReduceOp.AVG, 1.0), (dist.ReduceOp.PRODUCT, 0.0)):
        value = torch.full((9,), float(rank))
        dist.all_reduce(value, how)
        assert bool((value == right).all())
    value = torch.ones(9)
    dist.all_reduce(value, _make_nccl_premul_sum(float(rank)))
    assert bool((value == 3.0).all())
    dist.barrier()
    assert worker.fabric.fault is None, worker.fabric.fault
    uninstall()


def test_every_collective_on_three_machines() -> None:
    run_workers(every_collective, [1, 1, 1], transport=GLOO, limit=20.0)


def many_messages(worker: LocalWorker) -> None:
    """More than fit into any buffer, both ways at once, with tags taken out of order; the waits in any order."""
    group = worker.fabric.group(range(3))
    others = [rank for rank in range(3) if rank != group.rank]
    jobs: list[Send | Receive] = []
    for tag in range(8):
        jobs += [Send(peer, tag, torch.full((200_000,), float(10 * group.rank + tag))) for peer in others]
    for tag in reversed(range(8)):
        jobs += [Receive(peer, tag, torch.zeros(200_000)) for peer in others]
    for job in jobs:
        group.message(job)
    for job in jobs:
        assert job.done.wait(20)
        if isinstance(job, Receive):
            assert job.peer is not None
            assert bool((job.tensor == float(10 * job.peer + job.tag)).all())
    anybody = [Receive(None, 9, torch.zeros(1)) for _ in others]
    jobs += [*anybody, *(Send(peer, 9, torch.full((1,), float(group.rank))) for peer in others)]
    for job in jobs[32:]:
        group.message(job)
    assert all(job.done.wait(20) for job in jobs)
    assert sorted(job.peer for job in anybody if job.peer is not None) == others
    assert all(job.tensor[0] == job.peer for job in anybody)
    assert worker.fabric.fault is None, worker.fabric.fault
    total(group)


def test_messages_cross_in_any_order() -> None:
    run_workers(many_messages, [1, 1, 1], transport=GLOO, limit=20.0)


def without_the_middle(worker: LocalWorker, role: int) -> list[float]:
    group = join(worker, role, 3)
    given = torch.full((5,), 3.0 + 3 * role)
    blocks = [torch.full((4,), float(10 * role + rank)) for rank in range(3)]
    part = torch.empty(4)
    fold = reduction(dist.ReduceOp.SUM, torch.float32, 3)
    group.run(Op("reduce_scatter", blocks, [part], fold))
    found = [
        float(all_reduce(group, given.clone())[0]),
        float(all_reduce(group, given.clone(), dist.ReduceOp.AVG)[0]),
        float(broadcast(group, given.clone(), 2)[0]),
        float(part[0]),
    ]
    assert worker.fabric.fault is None, worker.fabric.fault
    return found


def test_a_vacant_role_is_left_out_and_an_average_still_counts_it() -> None:
    with LocalWorkers(transport=GLOO, limit=20.0) as local:
        handles = [local.start(f"m{role}", 1, without_the_middle, role)[0] for role in (0, 2)]
        workers = [handle.worker for handle in handles]
        roster = Roster.of(1, [(0, workers[0].uid), (2, workers[1].uid)], workers, roles=3)
        for handle in handles:
            handle.tell(roster)
        assert handles[0].result() == [12.0, 4.0, 9.0, 20.0]
        assert handles[1].result() == [12.0, 4.0, 9.0, 24.0]


def disagree(worker: LocalWorker) -> Fault | None:
    group = worker.fabric.group(range(3))
    all_reduce(group, torch.ones(3))
    all_reduce(group, torch.ones(10 if group.rank else 7))
    return worker.fabric.fault


def test_roles_that_disagree_about_a_new_operation_are_told() -> None:
    for fault in run_workers(disagree, [1, 1, 1], transport=GLOO, limit=20.0):
        assert fault.how == "mismatch", fault
        assert "all_reduce(sum) of 7 float32" in fault.reason
        assert "all_reduce(sum) of 10 float32" in fault.reason


def alone(worker: LocalWorker, role: int, roles: int) -> Fault | None:
    """Role 0 sums what the others do not."""
    group = join(worker, role, roles)
    total(group)
    if role == 0:
        total(group)
    eventually(lambda: worker.fabric.fault is not None, 10.0)
    worker.tell("over")
    worker.hear()
    return worker.fabric.fault


def test_an_operation_without_peers_ends_at_its_time_limit() -> None:
    local, handles = workers_of("m0", "m1", body=alone, limit=1.0)
    with local:
        for handle in handles:
            handle.tell(first_roster(handles))
        assert [handle.hear() for handle in handles] == ["over"] * 2
        for handle in handles:
            handle.tell("enough")
        for fault in [handle.result() for handle in handles]:
            assert fault.how == "timeout", fault


# -- replacement -------------------------------------------------------------------------------------------------------


def train(worker: LocalWorker, role: int, roles: int) -> list[tuple[int, float]]:
    """Sum without a pause; at the boundary at which all have prepared the next roster, go on in that one."""
    fabric = worker.fabric
    group = join(worker, role, roles)
    done, going = [], 1
    while True:
        done.append((fabric.generation, total(group)))
        if len(done) == 3:
            worker.tell("playing")
        vote = all_reduce(group, torch.tensor([fabric.prepared, going]), dist.ReduceOp.MIN).tolist()
        assert fabric.fault is None, fabric.fault
        if vote[1] == 0:
            return done
        if vote[0] > fabric.generation:
            fabric.switch(vote[0])
            if fabric.role is None:
                with pytest.raises(RuntimeError, match="was released"):
                    total(group)
                return done
            worker.tell("switched")
        elif worker.told():
            word = worker.hear()
            if isinstance(word, Roster):
                fabric.prepare(word)
            else:
                going = 0


def test_a_worker_is_replaced_while_the_others_go_on() -> None:
    local, handles = workers_of("m0", "m1", "m2", body=train)
    with local:
        roster = first_roster(handles)
        for handle in handles:
            handle.tell(roster)
        assert [handle.hear() for handle in handles] == ["playing"] * 3
        (joiner,) = local.start("m3", 1, train, 1, 3)
        roster = roster.successor({1: joiner.worker})
        for handle in [*handles, joiner]:
            handle.tell(roster)
        assert [handle.hear() for handle in (handles[0], handles[2], joiner)] == ["switched", "switched", "playing"]
        leaver = handles[1].result()
        for handle in (handles[0], handles[2], joiner):
            handle.tell("enough")
        results = [handle.result() for handle in (handles[0], handles[2], joiner)]
    assert {what for result in [leaver, *results] for _, what in result} == {SUM_OF_ALL}
    assert {generation for generation, _ in leaver} == {1}
    assert {generation for generation, _ in results[0]} == {1, 2}
    assert {generation for generation, _ in results[2]} == {2}


def prepare_in_vain(worker: LocalWorker, role: int) -> float:
    group = join(worker, role, 3)
    with pytest.raises(PrepareFailed) as failed:
        worker.fabric.prepare(worker.hear()).result(20)
    worker.tell(str(failed.value))
    return total(group)


def test_a_joiner_that_dies_before_it_enters_stops_no_worker() -> None:
    with LocalWorkers(transport=GLOO, limit=20.0, setup_limit=10.0) as local:
        *handles, joiner = [local.start(f"m{role}", 1, prepare_in_vain, role)[0] for role in range(3)]
        joiner.kill()
        roster = first_roster(handles, roles=3)
        for word in (roster, roster.successor({2: joiner.worker})):
            for handle in handles:
                handle.tell(word)
        for handle in handles:
            assert f"role 2 ({joiner.uid} on m2)" in handle.hear()
        assert [handle.result() for handle in handles] == [11.0, 11.0]


def resources() -> tuple[int, int]:
    descriptors, threads = (len(list(Path(f"/proc/self/{what}").iterdir())) for what in ("fd", "task"))
    return descriptors, threads


def stay(worker: LocalWorker, role: int, roles: int) -> list[float]:
    """Follow the parent from roster to roster. Returns what was found in each."""
    group = join(worker, role, roles)
    found, first = [total(group)], (0, 0)
    while isinstance(word := worker.hear(), Roster):
        worker.enter(word)
        found.append(total(group))
        if len(found) == 3:
            first = resources()
        worker.tell("there")
    eventually(lambda: all(now <= then for now, then in zip(resources(), first, strict=True)))
    return found


def come_and_go(worker: LocalWorker, role: int, roles: int) -> float:
    group = join(worker, role, roles)
    found = total(group)
    roster = worker.hear()
    worker.enter(roster)
    return found


def test_replacements_leave_nothing_behind() -> None:
    local = LocalWorkers(transport=GLOO, limit=20.0)
    with local:
        stayers = [local.start(f"m{role}", 1, stay, role, 3)[0] for role in (0, 1)]
        guests = local.start("m2", 23, come_and_go, 2, 3)
        guest = guests.pop()
        roster = first_roster([*stayers, guest])
        for handle in (*stayers, guest):
            handle.tell(roster)
        for joiner in guests:
            roster = roster.successor({2: joiner.worker})
            for handle in (*stayers, guest, joiner):
                handle.tell(roster)
            assert [handle.hear() for handle in stayers] == ["there", "there"]
            assert guest.result() == SUM_OF_ALL
            guest = joiner
        for handle in stayers:
            handle.tell("enough")
        for handle in stayers:
            assert handle.result() == [SUM_OF_ALL] * 23


# -- failure -----------------------------------------------------------------------------------------------------------


def fail_and_recover(worker: LocalWorker, role: int, roles: int) -> tuple[Fault | None, float]:
    """Sum until something goes wrong; then go on in the next roster."""
    group = join(worker, role, roles)
    worker.tell("playing")
    while worker.fabric.fault is None:
        total(group, 300_000)
    fault = worker.fabric.fault
    worker.enter(worker.hear())
    return fault, total(group)


def test_a_killed_worker_is_noticed_and_replaced() -> None:
    local, handles = workers_of("m0", "m1", "m2", body=fail_and_recover)
    with local:
        roster = first_roster(handles)
        for handle in handles:
            handle.tell(roster)
        assert [handle.hear() for handle in handles] == ["playing"] * 3
        handles[1].kill()
        (joiner,) = local.start("m3", 1, joiner_in_a_failed_job, 1, 3)
        roster = roster.successor({1: joiner.worker}, fresh=True)
        for handle in (handles[0], handles[2], joiner):
            handle.tell(roster)
        assert joiner.result() == SUM_OF_ALL
        for handle in (handles[0], handles[2]):
            fault, found = handle.result()
            assert fault.how == "eof", fault
            assert found == SUM_OF_ALL


def joiner_in_a_failed_job(worker: LocalWorker, role: int, roles: int) -> float:
    return total(join(worker, role, roles))


def wait_for_an_absent_peer(worker: LocalWorker, role: int, roles: int) -> tuple[Fault | None, float]:
    """Roles 0 and 1 wait for role 2: in a collective, and for a message. It interrupts instead."""
    group = join(worker, role, roles)
    total(group)
    ended, message = threading.Event(), Receive((role + 1) % 2, 5, torch.zeros(10))
    if role < 2:
        fold = reduction(dist.ReduceOp.SUM, torch.float32, roles)
        group.submit(Op("all_reduce", outputs=[torch.ones(1000)], reduction=fold), ended.set)
        group.message(message)
        transport: Any = group.transport
        eventually(lambda: len(transport._inner._under_way) == 2)
        worker.tell("waiting")
        assert message.done.wait(20)
        assert ended.wait(20)
    else:
        worker.hear()
        worker.fabric.interrupt("enough of this")
    fault = worker.fabric.fault
    worker.enter(worker.hear())
    return fault, total(group)


def test_an_interrupt_ends_what_waits() -> None:
    local, handles = workers_of("m0", "m1", "m2", body=wait_for_an_absent_peer)
    with local:
        roster = first_roster(handles)
        for handle in handles:
            handle.tell(roster)
        assert [handle.hear() for handle in handles[:2]] == ["waiting"] * 2
        handles[2].tell("now")
        for handle in handles:
            handle.tell(roster.successor({}, fresh=True))
        for fault, found in [handle.result() for handle in handles][:2]:
            assert fault.how == "interrupt", fault
            assert fault.reason == "enough of this"
            assert found == SUM_OF_ALL


def leave(worker: LocalWorker, role: int, roles: int) -> None:
    """Close the fabric while a collective and a message wait for a peer that never comes."""
    before = resources()
    group = join(worker, role, roles)
    total(group)
    ended, message = threading.Event(), Receive(1 - role, 5, torch.zeros(10))
    fold = reduction(dist.ReduceOp.SUM, torch.float32, roles)
    if role == 0:
        group.submit(Op("all_reduce", outputs=[torch.ones(1000)], reduction=fold), ended.set)
        group.message(message)
    worker.tell("ready")
    worker.hear()
    worker.fabric.close()
    assert role or (ended.wait(1) and message.done.wait(1))
    eventually(lambda: all(now <= then for now, then in zip(resources(), before, strict=True)))
    assert not [thread.name for thread in threading.enumerate() if "understudy" in thread.name]


def test_closing_ends_what_waits_and_leaves_nothing_behind() -> None:
    local, handles = workers_of("m0", "m1", body=leave)
    with local:
        for handle in handles:
            handle.tell(first_roster(handles))
        assert [handle.hear() for handle in handles] == ["ready"] * 2
        for handle in handles:
            handle.tell("leave")
            handle.result()


# -- other backends ----------------------------------------------------------------------------------------------------


def own_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return gloo(store, rank, size, options)


def test_a_backend_that_torch_was_given_by_others() -> None:
    if "TWIN" not in dist.Backend._plugins:
        dist.Backend.register_backend("twin", own_gloo, devices=["cpu"])
    with Ensemble(transport=TorchTransport("twin")) as ensemble:
        _, _, endpoints = ensemble.start("m0", "m1", "m2")
        assert sums(endpoints) == [SUM_OF_ALL] * 3


def test_a_backend_that_torch_has_not() -> None:
    with pytest.raises(ValueError, match="no backend 'none'"):
        TorchTransport("none")
