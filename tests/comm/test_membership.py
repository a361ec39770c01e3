"""Machines are replaced under running all-reduces: no sum is ever wrong, and the stayers are not disturbed."""

from __future__ import annotations

import time

import pytest

from tests.comm.stepping import Census, SteppingWorkers, hear_of, kill, lives, result_of, wait_for, wait_for_census
from understudy.testing.local_workers import LocalWorkers, WorkerHandle

SIZES = (1, 30_000, 300_000)
"""Elements, so that every algorithm has its turn."""


@pytest.mark.parametrize(
    ("machines", "roles"),
    [([1, 1], [0]), ([1, 1, 1], [1]), ([1, 1, 1, 1], [0]), ([2, 2], [0, 1]), ([2, 2], [2, 3]), ([2, 1], [2])],
    ids=str,
)
def test_a_machine_is_replaced(machines: list[int], roles: list[int]) -> None:
    with LocalWorkers(limit=20.0) as local:
        workers = SteppingWorkers(local, machines, elements=SIZES)
        for _ in range(3):
            ended = workers.replace(roles)
            assert {end.generation for end in ended} == {workers.roster.generation}
        assert len({(end.steps, end.generation) for end in workers.stop()}) == 1


def test_several_groups_at_once() -> None:
    groups = [(0, 1, 2, 3), (0, 2), (3, 1), (2, 1, 0), (0, 1, 2, 3), (1, 2)]
    with LocalWorkers(limit=20.0) as local:
        workers = SteppingWorkers(local, [2, 1, 1], groups, elements=(1, 100_000))
        for roles in ([2], [0, 1], [3]):
            workers.replace(roles)
        assert len({end.steps for end in workers.stop()}) == 1


def test_a_generation_is_given_up_and_another_one_entered() -> None:
    with LocalWorkers(limit=20.0) as local:
        workers = SteppingWorkers(local, [1, 1, 1], elements=SIZES)
        stayers, generation = list(workers.live), 1
        for _ in range(3):
            joiners: dict[int, WorkerHandle | None] = dict(workers.hire([1]))
            (joiner,) = joiners.values()
            assert joiner is not None
            for handle in stayers:  # the joiner is told last: no worker is prepared before the cancellation
                handle.tell(workers.roster.successor({1: joiner.worker}, generation=generation + 1))
            for handle in stayers:
                handle.tell(("cancel", generation + 1))
            for handle in stayers:
                kind, why = hear_of(handle, generation + 1)
                assert kind == "prepared" or "it was cancelled" in why, why
            roster = workers.propose(joiners, number=generation + 2)
            workers.follow(roster, joiners)
            stayers, generation = list(workers.live), generation + 2
        assert {end.generation for end in workers.stop()} == {7}


@pytest.mark.parametrize("machines", [[1, 1, 1], [2, 1, 1]], ids=str)
def test_a_joiner_dies_while_it_is_brought_in(machines: list[int]) -> None:
    """It is killed once before it has done anything and once when it has prepared."""
    with LocalWorkers(limit=20.0) as local:
        workers = SteppingWorkers(local, machines, elements=SIZES)
        role = sum(machines) - 1
        number = 1
        for prepared in (False, True, False):
            (joiner,) = workers.hire([role]).values()
            number += 1
            if prepared:
                joiner.tell(workers.roster.successor({role: joiner.worker}, generation=number))
                for handle in workers.live[:-1]:
                    handle.tell(workers.roster.successor({role: joiner.worker}, generation=number))
                wait_for(joiner, "prepared", number)
                kill(joiner)
            else:
                kill(joiner)
                for handle in workers.live:
                    handle.tell(workers.roster.successor({role: joiner.worker}, generation=number))
            failed = 0
            for handle in workers.live if not prepared else workers.live[:-1]:
                kind, why = hear_of(handle, number, 5)
                failed += kind == "failed"
                assert kind == "prepared" or f"{joiner.uid} on {joiner.worker.machine}" in why, why
            assert prepared or failed
            for handle in workers.live:
                handle.tell(("cancel", number))
            changes: dict[int, WorkerHandle | None] = dict(workers.hire([role]))
            number += 1
            workers.follow(workers.propose(changes, number=number), changes)
        assert {end.generation for end in workers.stop()} == {number}


def test_a_role_is_vacated_and_filled_again() -> None:
    with LocalWorkers(limit=20.0) as local:
        workers = SteppingWorkers(local, [1, 1, 2], elements=SIZES)
        for role in (1, 0, 2):
            gone: dict[int, WorkerHandle | None] = {role: None}
            (leaver,) = workers.follow(workers.propose(gone), gone)
            assert leaver.generation == workers.roster.generation
            if role == 2:
                continue  # its machine lives on; a joiner would have to be there
            filled: dict[int, WorkerHandle | None] = dict(workers.hire([role]))
            workers.follow(workers.propose(filled), filled)
        assert len({end.steps for end in workers.stop()}) == 1


def test_a_whole_machine_is_vacated_and_filled_again() -> None:
    with LocalWorkers(limit=20.0) as local:
        workers = SteppingWorkers(local, [2, 1, 1], [(0, 1, 2, 3), (1, 0), (0, 2)], elements=SIZES)
        for roles in ([2], [3]):
            gone: dict[int, WorkerHandle | None] = dict.fromkeys(roles)
            workers.follow(workers.propose(gone), gone)
        filled: dict[int, WorkerHandle | None] = {**workers.hire([2]), **workers.hire([3])}
        workers.follow(workers.propose(filled), filled)
        assert len(workers.stop()) == 4


@pytest.mark.job
@pytest.mark.timeout(150)
def test_two_hundred_replacements_leave_nothing_behind() -> None:
    """One machine is replaced over and over; the other, with two workers, stays and holds no more at the end than
    after the first few. The joiners' processes live on, too, and hold no more after their last part than after an
    early one."""
    with LocalWorkers(limit=20.0) as local:
        workers = SteppingWorkers(local, [1, 2], [(0, 1, 2), (2, 0)], elements=(1, 20_000))
        pool = local.start("pool", 2, lives, workers.groups, workers.elements)
        early: dict[str, Census] = {}
        for number in range(200):
            joiner = pool.pop(0)
            joiner.tell(0)
            joiner.worker = joiner.hear()
            assert joiner.hear() == "rehearsed"
            leaver = workers.handles[0]
            assert leaver is not None
            workers.handles[0] = joiner
            workers.roster = workers.roster.successor({0: joiner.worker})
            for handle in (*workers.live, leaver):
                handle.tell(workers.roster)
            for handle in workers.live:
                wait_for(handle, "switched", workers.roster.generation)
            assert result_of(leaver).generation == workers.roster.generation
            if number:
                pool.append(leaver)
            if number == 19:
                for _ in range(5):  # some steps later the joiner has opened its pairs, too
                    early = census_of([*workers.live[1:], *pool])
        deadline = time.monotonic() + 10
        while grown := more(census_of([*workers.live[1:], *pool]), early):  # the last links may be closing just now
            assert time.monotonic() < deadline, grown
        workers.live[0].tell("stop")
        assert {result_of(handle).generation for handle in workers.live} == {201}


def more(late: dict[str, Census], early: dict[str, Census]) -> dict[str, tuple[Census, Census]]:
    """The workers that hold more than before."""
    return {
        uid: (early[uid], census)
        for uid, census in late.items()
        if any(now > then for now, then in zip(census, early[uid], strict=True))
    }


def census_of(handles: list[WorkerHandle]) -> dict[str, Census]:
    for handle in handles:
        handle.tell("census")
    return {handle.uid: wait_for_census(handle) for handle in handles}
