"""Which worker keeps the backup copy of which role."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy.comm.topology import backup_of
from understudy.protocol.roster import Roster, WorkerAddress


def roster_of(*machines: int, vacant: tuple[int, ...] = ()) -> Roster:
    """So many workers on each machine; worker w3 plays role 3."""
    homes = [f"m{machine}" for machine, count in enumerate(machines) for _ in range(count)]
    workers = [WorkerAddress(f"w{role}", home) for role, home in enumerate(homes)]
    seats = [(role, f"w{role}") for role in range(len(homes)) if role not in vacant]
    return Roster.of(1, seats, workers, roles=len(homes), cells=[int(home[1:]) for home in homes])


def buddies(roster: Roster) -> list[str | None]:
    return [backup_of(roster, role) for role in range(len(roster.seats))]


def wards(roster: Roster, uid: str) -> list[int]:
    """The roles that this worker keeps backup copies of."""
    return [role for role, buddy in enumerate(buddies(roster)) if buddy == uid]


def test_the_same_place_on_the_next_machine() -> None:
    assert buddies(roster_of(1, 1, 1)) == ["w1", "w2", "w0"]
    assert buddies(roster_of(2, 2)) == ["w2", "w3", "w0", "w1"]


def test_machines_of_different_sizes() -> None:
    assert buddies(roster_of(3, 1)) == ["w3", "w3", "w3", "w0"]


def test_on_one_machine_no_worker_keeps_a_copy() -> None:
    assert buddies(roster_of(3)) == [None] * 3


def test_vacant_roles_and_machines_are_passed_over() -> None:
    assert buddies(roster_of(1, 1, 1, vacant=(1,))) == ["w2", None, "w0"]
    assert buddies(roster_of(2, 2, vacant=(2,))) == ["w3", "w3", None, "w0"]


def test_a_twin_elsewhere_is_as_good_as_a_copy() -> None:
    roster = roster_of(2, 2, 2)
    assert backup_of(roster, 0, {0, 2}) is None
    assert backup_of(roster, 0, {0, 1}) == "w2", "a twin on the same machine dies with it"
    assert backup_of(roster_of(2, 2, 2, vacant=(2,)), 0, {0, 2}) == "w3", "a vacant role holds nothing"


@given(st.data())
def test_in_every_roster(data: st.DataObject) -> None:
    machines = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    roles = range(sum(machines))
    vacant = data.draw(st.sets(st.sampled_from(roles)))
    roster = roster_of(*machines, vacant=tuple(vacant))
    twins = data.draw(st.dictionaries(st.sampled_from(roles), st.sets(st.sampled_from(roles)), max_size=3))
    alive = {worker.machine for role in roles if (worker := roster.worker_of(role)) is not None}
    for role in roles:
        player, buddy = roster.worker_of(role), backup_of(roster, role, twins.get(role, ()))
        elsewhere = {twin.machine for other in twins.get(role, ()) if (twin := roster.worker_of(other)) is not None} - (
            {player.machine} if player is not None else set()
        )
        assert (buddy is None) == (player is None or len(alive) < 2 or bool(elsewhere))
        if buddy is not None and player is not None:
            keeper = roster.worker(buddy)
            assert keeper is not None
            assert keeper.machine != player.machine
            assert roster.role_of(buddy) is not None
    if len(set(machines)) == 1 and not vacant:
        assert all(len(wards(roster, uid)) == (len(machines) > 1) for uid in filter(None, roster.seats))
