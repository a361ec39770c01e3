"""Machines are replaced under running all-reduces: no sum is ever wrong, and nobody notices but the machine itself."""

from __future__ import annotations

import time

import pytest

from tests.comm.parts import Census, Company, hear_of, kill, lives, result_of, wait_for, wait_for_census
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
        company = Company(local, machines, elements=SIZES)
        for _ in range(3):
            ended = company.replace(roles)
            assert {end.generation for end in ended} == {company.roster.generation}
        assert len({(end.steps, end.generation) for end in company.stop()}) == 1


def test_several_groups_at_once() -> None:
    groups = [(0, 1, 2, 3), (0, 2), (3, 1), (2, 1, 0), (0, 1, 2, 3), (1, 2)]
    with LocalWorkers(limit=20.0) as local:
        company = Company(local, [2, 1, 1], groups, elements=(1, 100_000))
        for roles in ([2], [0, 1], [3]):
            company.replace(roles)
        assert len({end.steps for end in company.stop()}) == 1


def test_a_generation_is_given_up_and_another_one_entered() -> None:
    with LocalWorkers(limit=20.0) as local:
        company = Company(local, [1, 1, 1], elements=SIZES)
        stayers, generation = list(company.live), 1
        for _ in range(3):
            newcomers: dict[int, WorkerHandle | None] = dict(company.hire([1]))
            (newcomer,) = newcomers.values()
            assert newcomer is not None
            for hand in stayers:  # the newcomer hears of it last: nobody can be ready before the rest has given up
                hand.tell(company.roster.successor({1: newcomer.worker}, generation=generation + 1))
            for hand in stayers:
                hand.tell(("cancel", generation + 1))
            for hand in stayers:
                kind, why = hear_of(hand, generation + 1)
                assert kind == "prepared" or "it was cancelled" in why, why
            roster = company.propose(newcomers, number=generation + 2)
            company.follow(roster, newcomers)
            stayers, generation = list(company.live), generation + 2
        assert {end.generation for end in company.stop()} == {7}


@pytest.mark.parametrize("machines", [[1, 1, 1], [2, 1, 1]], ids=str)
def test_a_newcomer_dies_while_it_is_brought_in(machines: list[int]) -> None:
    """It is killed once before it has done anything and once when it has prepared."""
    with LocalWorkers(limit=20.0) as local:
        company = Company(local, machines, elements=SIZES)
        role = sum(machines) - 1
        number = 1
        for prepared in (False, True, False):
            (newcomer,) = company.hire([role]).values()
            number += 1
            if prepared:
                newcomer.tell(company.roster.successor({role: newcomer.worker}, generation=number))
                for hand in company.live[:-1]:
                    hand.tell(company.roster.successor({role: newcomer.worker}, generation=number))
                wait_for(newcomer, "prepared", number)
                kill(newcomer)
            else:
                kill(newcomer)
                for hand in company.live:
                    hand.tell(company.roster.successor({role: newcomer.worker}, generation=number))
            failed = 0
            for hand in company.live if not prepared else company.live[:-1]:
                kind, why = hear_of(hand, number, 5)
                failed += kind == "failed"
                assert kind == "prepared" or f"{newcomer.uid} on {newcomer.worker.machine}" in why, why
            assert prepared or failed
            for hand in company.live:
                hand.tell(("cancel", number))
            changes: dict[int, WorkerHandle | None] = dict(company.hire([role]))
            number += 1
            company.follow(company.propose(changes, number=number), changes)
        assert {end.generation for end in company.stop()} == {number}


def test_a_role_is_vacated_and_filled_again() -> None:
    with LocalWorkers(limit=20.0) as local:
        company = Company(local, [1, 1, 2], elements=SIZES)
        for role in (1, 0, 2):
            gone: dict[int, WorkerHandle | None] = {role: None}
            (leaver,) = company.follow(company.propose(gone), gone)
            assert leaver.generation == company.roster.generation
            if role == 2:
                continue  # its machine lives on; a newcomer would have to be there
            filled: dict[int, WorkerHandle | None] = dict(company.hire([role]))
            company.follow(company.propose(filled), filled)
        assert len({end.steps for end in company.stop()}) == 1


def test_a_whole_machine_is_vacated_and_filled_again() -> None:
    with LocalWorkers(limit=20.0) as local:
        company = Company(local, [2, 1, 1], [(0, 1, 2, 3), (1, 0), (0, 2)], elements=SIZES)
        for roles in ([2], [3]):
            gone: dict[int, WorkerHandle | None] = dict.fromkeys(roles)
            company.follow(company.propose(gone), gone)
        filled: dict[int, WorkerHandle | None] = {**company.hire([2]), **company.hire([3])}
        company.follow(company.propose(filled), filled)
        assert len(company.stop()) == 4


@pytest.mark.job
@pytest.mark.timeout(150)
def test_two_hundred_replacements_leave_nothing_behind() -> None:
    """One machine is replaced over and over; the other, with two workers, stays and holds no more at the end than
    after the first few. The newcomers' processes live on, too, and hold no more after their last part than after an
    early one."""
    with LocalWorkers(limit=20.0) as local:
        company = Company(local, [1, 2], [(0, 1, 2), (2, 0)], elements=(1, 20_000))
        pool = local.start("pool", 2, lives, company.groups, company.elements)
        early: dict[str, Census] = {}
        for number in range(200):
            newcomer = pool.pop(0)
            newcomer.tell(0)
            newcomer.worker = newcomer.hear()
            assert newcomer.hear() == "rehearsed"
            leaver = company.hands[0]
            assert leaver is not None
            company.hands[0] = newcomer
            company.roster = company.roster.successor({0: newcomer.worker})
            for hand in (*company.live, leaver):
                hand.tell(company.roster)
            for hand in company.live:
                wait_for(hand, "switched", company.roster.generation)
            assert result_of(leaver).generation == company.roster.generation
            if number:
                pool.append(leaver)
            if number == 19:
                for _ in range(5):  # some steps later the newcomer has opened its pairs, too
                    early = census_of([*company.live[1:], *pool])
        deadline = time.monotonic() + 10
        while grown := more(census_of([*company.live[1:], *pool]), early):  # the last links may be closing just now
            assert time.monotonic() < deadline, grown
        company.live[0].tell("stop")
        assert {result_of(hand).generation for hand in company.live} == {201}


def more(late: dict[str, Census], early: dict[str, Census]) -> dict[str, tuple[Census, Census]]:
    """Whose holdings have grown."""
    return {
        uid: (early[uid], census)
        for uid, census in late.items()
        if any(now > then for now, then in zip(census, early[uid], strict=True))
    }


def census_of(hands: list[WorkerHandle]) -> dict[str, Census]:
    for hand in hands:
        hand.tell("census")
    return {hand.uid: wait_for_census(hand) for hand in hands}
