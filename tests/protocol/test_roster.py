"""A roster that no job can run with is refused, in words that name the role, the worker and the way out."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.comm.strategies import rosters, seated
from understudy.protocol.roster import Roster, RosterError, WorkerAddress

A, B, C = (WorkerAddress(uid, machine) for uid, machine in (("a", "m0"), ("b", "m1"), ("c", "m1")))


def test_a_role_for_an_unknown_worker() -> None:
    with pytest.raises(RosterError, match=r"generation 3: role 1 is given to x, .* add that worker or leave the role"):
        Roster.of(3, [(0, "a"), (1, "x")], [A])


def test_two_workers_for_a_role() -> None:
    with pytest.raises(RosterError, match=r"generation 1: role 0 is given to both a and b; a role has one worker"):
        Roster.of(1, [(0, "a"), (0, "b")], [A, B])


def test_two_roles_for_a_worker() -> None:
    with pytest.raises(RosterError, match=r"generation 2: a is given both role 0 and role 2; a worker has one"):
        Roster.of(2, [(0, "a"), (1, "b"), (2, "a")], [A, B], cells=[0, 1, 2])


def test_a_cell_on_two_machines() -> None:
    with pytest.raises(RosterError, match=r"role 1 on m1 and role 0 on m0 are of one cell; roles of a cell move toge"):
        Roster.of(1, [(0, "a"), (1, "b")], [A, B], cells=[0, 0])


def test_a_cell_half_of_which_would_move() -> None:
    roster = Roster.of(1, [(0, "a"), (1, "b"), (2, "c")], [A, B, C])
    with pytest.raises(RosterError, match=r"role 2 on m9 and role 1 on m1 are of one cell"):
        roster.successor({2: WorkerAddress("d", "m9")})


def test_cells_may_share_a_machine() -> None:
    roster = Roster.of(1, [(0, "b"), (1, "c")], [B, C], cells=[0, 1])
    assert roster.cells == (0, 1)


@pytest.mark.parametrize("generation", [0, -1])
def test_generations_count_from_one(generation: int) -> None:
    with pytest.raises(RosterError, match=f"generation {generation}: generations count from 1"):
        Roster.of(generation, [(0, "a")], [A])


def test_a_roster_without_roles_is_refused() -> None:
    with pytest.raises(RosterError, match="it has no roles; give it at least one"):
        Roster.of(1, [], [A])


@pytest.mark.parametrize(("cells", "since", "what"), [((0, 0), (1,), "2 cell"), ((0,), (), "0 seating")])
def test_one_number_per_role(cells: tuple[int, ...], since: tuple[int, ...], what: str) -> None:
    with pytest.raises(RosterError, match=f"1 roles but {what} .*; give one per role"):
        Roster(1, ("a",), (A,), cells, since)


def test_a_uid_listed_twice() -> None:
    with pytest.raises(RosterError, match=r"uid is listed twice .*; every worker needs its own"):
        Roster.of(1, [(0, "a")], [A, WorkerAddress("a", "m5")])


@pytest.mark.parametrize("role", [-1, 2])
def test_a_role_that_is_not_there(role: int) -> None:
    with pytest.raises(RosterError, match=f"there is no role {role}; roles are 0 to 1"):
        Roster.of(1, [(role, "a")], [A], roles=2)
    with pytest.raises(RosterError, match=f"there is no role {role}; roles are 0 to 1"):
        Roster.of(1, [(0, "a"), (1, "b")], [A, B]).successor({role: None})


@pytest.mark.parametrize("generation", [4, 3, 0])
def test_a_successor_comes_later(generation: int) -> None:
    roster = Roster.of(4, [(0, "a")], [A])
    with pytest.raises(RosterError, match=f"generation {generation} cannot follow generation 4"):
        roster.successor({}, generation=generation)


def test_a_uid_is_never_used_again() -> None:
    roster = Roster.of(1, [(0, "a"), (1, "b")], [A, B])
    with pytest.raises(RosterError, match=r"role 0 is given to a new worker a, .* a uid is never used again"):
        roster.successor({0: WorkerAddress("a", "m0", port=77)})


def test_a_worker_moves_to_a_second_role() -> None:
    roster = Roster.of(1, [(0, "a"), (1, "b")], [A, B])
    with pytest.raises(RosterError, match="a is given both role 0 and role 1"):
        roster.successor({1: A})


def test_names() -> None:
    roster = Roster.of(1, [(1, "b")], [A, B], roles=3)
    assert roster.names("b") == "role 1 (b on m1)"
    assert roster.names("a") == "a on m0"
    assert roster.names("zz") == "zz"


def test_vacant_roles_have_cells_of_their_own() -> None:
    roster = Roster.of(1, [(1, "b"), (2, "c")], [B, C], roles=4)
    assert roster.cells == (0, 1, 1, 2)
    assert [roster.worker_of(role) for role in range(4)] == [None, B, C, None]
    assert roster.worker("b") == B
    assert roster.role_of("a") is None


def test_a_roster_survives_the_wire() -> None:
    roster = Roster.of(7, [(1, "b"), (2, "c")], [B, C], roles=4).successor({1: None}, fresh=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(roster), type=Roster) == roster


@given(rosters(), st.data())
def test_a_successor_keeps_what_it_does_not_change(roster: Roster, data: st.DataObject) -> None:
    machines = sorted(set(roster.cells))
    chosen = data.draw(st.sets(st.sampled_from(machines)))
    vacated = data.draw(st.sets(st.sampled_from(machines)))
    changes: dict[int, WorkerAddress | None] = {
        role: None if cell in vacated else WorkerAddress(f"n{role}", f"new{cell}")
        for role, cell in enumerate(roster.cells)
        if cell in chosen
    }
    number = roster.generation + data.draw(st.integers(1, 5))
    following = roster.successor(changes, generation=number, fresh=data.draw(st.booleans()))
    assert following.generation == number
    assert following.cells == roster.cells
    for role, (uid, old) in enumerate(zip(following.seats, roster.seats, strict=True)):
        if role in changes:
            worker = changes[role]
            assert uid == (None if worker is None else worker.uid)
        else:
            assert uid == old
        assert following.since[role] == (roster.since[role] if uid == old else number)
    assert {worker.uid for worker in following.workers} == seated(following)
