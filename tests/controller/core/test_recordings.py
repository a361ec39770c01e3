"""Each recording is on two machines, and joiners are told of a machine that is live."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.controller.core.rig import Rig
from understudy.controller.core.recordings import Place, Recordings
from understudy.controller.core.standbys import recording
from understudy.protocol.frames import KeepCopy, KeptCopy, Order
from understudy.protocol.messages import Recorded, Rehearse

M0, M1, M2, M3 = ((f"m{number}", f"m{number}-a") for number in range(4))


def recorded(role: int = 0, at: Place = M0, digest: str = "abc") -> Recorded:
    return Recorded(role, digest, 100, 3, f"http://{at[0]}/recordings/{digest}")


def gone(*places: Place) -> Callable[[Place], bool]:
    return lambda place: place not in places


def to_copy(
    recordings: Recordings, standbys: Sequence[Place], others: Sequence[Place], *dead: Place
) -> dict[Place, Recorded]:
    return dict(recordings.to_copy(standbys, others, gone(*dead)))


def test_a_standby_keeps_the_copy_or_else_a_machine_with_a_role() -> None:
    recordings = Recordings()
    recordings.made(M0, recorded())
    assert to_copy(recordings, [], [M0]) == {}
    assert to_copy(recordings, [M2], [M0, M1]) == {M2: recorded()}
    recordings = Recordings()
    recordings.made(M0, recorded())
    assert to_copy(recordings, [], [M0, M1]) == {M1: recorded()}


def test_no_machine_is_asked_twice_and_another_one_follows_if_it_cannot() -> None:
    recordings = Recordings()
    recordings.made(M0, recorded())
    assert list(to_copy(recordings, [M2], [M0, M1])) == [M2]
    assert to_copy(recordings, [M2], [M0, M1]) == {}  # it has not answered yet
    recordings.copied(M2, Recorded(0, "abc", 100, 3))
    assert list(to_copy(recordings, [M2], [M0, M1])) == [M1]
    recordings.copied(M1, Recorded(0, "abc", 100, 3))
    assert to_copy(recordings, [M2], [M0, M1]) == {}


def test_if_one_of_two_holders_is_gone_another_machine_fetches_a_copy() -> None:
    recordings = Recordings()
    recordings.made(M0, recorded())
    to_copy(recordings, [], [M0, M1, M2])
    recordings.copied(M1, recorded(at=M1))
    assert to_copy(recordings, [], [M0, M1, M2]) == {}
    assert to_copy(recordings, [], [M1, M2], M0) == {M2: recorded(at=M1)}


def test_a_leaving_machine_is_read_from_and_not_counted() -> None:
    recordings = Recordings()
    recordings.made(M0, recorded())
    assert to_copy(recordings, [], [M1, M2]) == {M1: recorded(), M2: recorded()}


def test_a_recording_without_a_live_holder_cannot_be_copied() -> None:
    recordings = Recordings()
    recordings.made(M0, recorded())
    recordings.made(M1, Recorded(1, "", 0, 0))
    assert 1 in recordings
    assert 2 not in recordings
    assert to_copy(recordings, [M2], [M1], M0) == {}
    assert recordings.found(0, gone(M0), M2) is None
    assert recordings.found(1, gone(), M2) is None
    assert recordings.found(2, gone(), M2) is None


def test_copies_of_many_roles_are_spread() -> None:
    recordings = Recordings()
    for role in range(4):
        recordings.made(M0, recorded(role))
    asked = [place for place, _ in recordings.to_copy([M2, M3], [M0, M1], gone())]
    assert sorted(asked) == [M2, M2, M3, M3]


def test_the_nearest_is_told() -> None:
    recordings = Recordings()
    recordings.made(M0, recorded())
    recordings.copied(M2, recorded(at=M2))
    assert recordings.found(0, gone(), M2) == recorded(at=M2)
    assert recordings.found(0, gone(), M3) == recorded(at=M0)
    assert recordings.found(0, gone(M0), M3) == recorded(at=M2)


def test_a_copy_of_something_else_is_not_told() -> None:
    recordings = Recordings()
    recordings.made(M0, recorded())
    recordings.copied(M1, recorded(at=M1, digest="older"))
    assert recordings.found(0, gone(M0), M1) is None


def test_a_copy_of_an_unknown_recording_does_not_count() -> None:
    recordings = Recordings()
    recordings.copied(M1, recorded(at=M1))
    assert 0 not in recordings
    assert not recordings
    assert recordings.found(0, gone(), M1) is None


# -- in a job ----------------------------------------------------------------------------------------------------------


def copies(rig: Rig) -> dict[str, list[Order]]:
    found = {name: [order for order in orders if isinstance(order, KeepCopy)] for name, orders in rig.orders().items()}
    return {name: list(orders) for name, orders in found.items() if orders}


def test_a_recording_outlives_its_machine() -> None:
    """A standby's agent is asked for a copy. When the machine with the recording is lost, the next standby is told of
    the copy, and a machine with a role keeps the second one."""
    rig = Rig.training(machines=2, standbys=1)
    rig.say("w0", recorded())
    assert copies(rig) == {"m2": [KeepCopy(recorded())]}
    rig.report("m2", KeptCopy(recorded(at=M2)))
    rig.lose("m0")
    rig.halted("w1")
    assert rig.change.joiners == {0: "w2"}
    assert rig.heard()["w2"][-1] == Rehearse(0, recorded(at=M2))


def test_no_machine_fetches_a_copy_during_a_replacement() -> None:
    rig = Rig.training(machines=2, standbys=1)
    rig.replace("m1", until="prepare")
    rig.say("w0", recorded())
    assert copies(rig) == {}
    for scene in (rig.prepared, rig.first_switches, rig.all_switch, rig.settled):
        scene()
    assert copies(rig) == {"m2": [KeepCopy(recorded())]}


def test_an_agent_that_was_started_again_has_nothing_any_more() -> None:
    rig = Rig.training(machines=2, standbys=1, warm=1)
    rig.say("w0", recorded())
    rig.report("m2", KeptCopy(recorded(at=M2)))
    rig.come("m2", standby=True, incarnation="m2-b")
    assert copies(rig) == {"m2": [KeepCopy(recorded())]}
    assert recording(rig.job, 0, rig.job.workers["w0"]) == recorded()
