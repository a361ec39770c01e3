"""No standby is left: the machine itself, a machine that is asked for, or the end with a checkpoint."""

from __future__ import annotations

import pytest

from tests.controller.core.play import Play
from understudy.controller.core.events import AddStandby, Expired, Lost
from understudy.controller.core.state import ATTEMPTS
from understudy.protocol.frames import EndWorker, StartWorker
from understudy.protocol.messages import Conclude, Done, Rehearse, Resume, Saved, Switched

WHY = "m1 is gone: no heartbeat; no standby is left for role 1"


# -- its own machine ---------------------------------------------------------------------------------------------------


def test_a_machine_whose_worker_died_starts_it_again_and_goes_on() -> None:
    play = Play.training(standbys=0)
    play.exits("w1")
    play.orders()
    play.halted("w0")
    assert play.orders() == {"m1": [StartWorker("w2", 0)]}
    assert (play.status(), play.job.wanted) == ("halting", 0)
    play.here("m1")
    assert play.heard() == {"w2": [Rehearse(1)]}
    play.rehearsed()
    play.all_switch()
    assert play.seats() == ["w0", "w2"]
    assert play.states() == {"m0": "active", "m1": "active"}


def test_the_dead_workers_neighbour_on_the_machine_keeps_its_process_and_state() -> None:
    play = Play.training(nproc=2, standbys=0)
    play.exits("w3")
    play.orders()
    play.halted("w0", "w1", "w2")
    assert play.orders() == {"m1": [StartWorker("w4", 1)]}
    play.here("m1")
    assert play.heard() == {"w4": [Rehearse(3)]}
    play.rehearsed()
    (resume,) = play.heard()["w4"]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == ("w0", "w1", "w2", "w4")
    assert {(move.role, move.taker.uid) for move in resume.moves} == {(3, "w4")}
    assert [(move.part, move.parts) for move in resume.moves] == [(0, 3), (1, 3), (2, 3)]


def test_a_neighbour_that_has_not_come_to_a_boundary_is_started_again_too() -> None:
    play = Play.training(nproc=2, standbys=0)
    play.exits("w3")
    play.orders()
    play.halted("w0", "w1")
    play.halted("w2", holds=False)
    assert play.orders() == {"m1": [EndWorker("w2"), StartWorker("w4", 0), StartWorker("w5", 1)]}


def test_a_standby_comes_before_the_own_machine() -> None:
    play = Play.training(standbys=1)
    play.exits("w1")
    play.halted("w0")
    assert play.change.joiners == {1: "w2"}


def test_a_machine_that_fails_too_often_does_not_go_on_by_itself() -> None:
    play = Play.training(standbys=0, quarantine=2)
    play.exits("w1")
    play.halted("w0")
    play.orders()
    play.exits("w2")  # the one that was started again
    assert play.orders() == {}
    assert play.job.waiting.endswith("no standby is left for role 1")
    assert play.job.wanted == 1


def test_a_worker_that_is_started_again_and_does_not_come_is_started_once_more() -> None:
    play = Play.training(standbys=0)
    play.exits("w1")
    play.halted("w0")
    play.orders()
    play.expires("start")
    assert play.orders() == {"m1": [EndWorker("w2"), StartWorker("w3", 0)]}


# -- a machine is asked for --------------------------------------------------------------------------------------------


def waiting(machines: int = 2) -> Play:
    """m1 is gone, and there is nobody in its place."""
    play = Play.training(machines, standbys=0)
    play.orders()
    play.lose("m1")
    play.halted(*sorted(play.job.unreported))
    return play


def test_a_machine_is_asked_for_and_waited_for() -> None:
    play = waiting()
    assert (play.status(), play.job.waiting) == ("halting", WHY)
    assert play.told("waiting") == [f"{WHY}: training waits for one; add one with: understudy standby add"]
    assert play.told("wanted") == ["1 standby machine wanted"]
    play.come("m5", standby=True)
    play.orders()
    play.here("m5")
    assert play.heard() == {"w2": [Rehearse(1)]}
    assert play.job.waiting == ""
    play.rehearsed()
    play.all_switch()
    assert play.seats() == ["w0", "w2"]
    assert (play.job.wanted, play.told("wanted")) == (0, ["1 standby machine wanted"])


def test_the_machine_itself_may_come_back() -> None:
    play = waiting()
    play.come("m1", standby=True, incarnation="m1-b")
    play.here("m1")
    play.rehearsed()
    play.all_switch()
    assert play.seats() == ["w0", "w2"]
    assert play.job.machines["m1"].failures == 1


def test_two_machines_are_asked_for_at_once() -> None:
    play = Play.training(machines=3, standbys=0)
    play.lose("m1")
    play.lose("m2")
    play.halted("w0")
    assert play.told("wanted") == ["2 standby machines wanted"]
    assert play.job.waiting == "m2 is gone: no heartbeat; no standby is left for role 1 and role 2"
    for name in ("m5", "m6"):
        assert play.status() == "halting"
        play.come(name, standby=True)
        play.here(name)
    assert play.change.joiners == {1: "w3", 2: "w4"}


def test_what_is_waited_for_is_named_without_those_who_go_on_by_themselves() -> None:
    """m1 is gone; of m2 only a worker has died."""
    play = Play.training(machines=3, standbys=0)
    play.exits("w2")
    play.lose("m1")
    play.halted("w0")
    assert play.job.waiting == "m1 is gone: no heartbeat; no standby is left for role 1"
    assert play.told("wanted") == ["1 standby machine wanted"]


def test_one_that_was_asked_for_before_is_enough() -> None:
    play = Play.training(standbys=0)
    play.ask("r1", AddStandby())
    play.lose("m1")
    play.halted("w0")
    assert play.told("wanted") == ["1 standby machine wanted"]


def test_a_machine_that_cannot_come_is_asked_for_again_a_few_times() -> None:
    play = waiting()
    for attempt in range(ATTEMPTS):
        assert len(play.told("wanted")) == attempt + 1
        play.feed(Lost(f"m{7 + attempt}", "", "out of quota"))
    assert play.status() == "halting"
    assert len(play.told("wanted")) == ATTEMPTS
    assert len(play.told("waiting")) == 1


def test_another_death_while_all_wait() -> None:
    play = waiting(machines=3)
    play.lose("m2")
    assert play.status() == "halting"
    play.come("m5", standby=True)
    play.here("m5")
    assert play.status() == "halting"
    play.come("m6", standby=True)
    play.here("m6")
    assert play.change.joiners == {1: "w3", 2: "w4"}


# -- the end -----------------------------------------------------------------------------------------------------------


def test_the_job_stops_with_a_checkpoint_where_that_is_what_its_user_wants() -> None:
    play = Play.training(standbys=0, no_standby="stop")
    play.lose("m1")
    play.orders()
    play.halted("w0", step=5)
    assert play.status() == "closing"
    assert play.told("wanted") == []
    assert play.heard() == {"w0": [Conclude(5, (0, 1))]}  # role 1's copy is its own
    play.say("w0", Saved(0, 5), Saved(1, 5))
    assert play.status() == "closing"
    play.say("w0", Done(5, stopped=True))
    assert play.status() == "failed"
    assert play.job.reason == f"{WHY}; step 5 is in the checkpoint: the same command goes on from there"


def test_each_survivor_writes_its_own_role_and_one_those_of_the_dead() -> None:
    play = Play.training(machines=4, standbys=0, no_standby="stop")
    play.lose("m3")
    play.orders()
    play.halted("w0", "w1", step=6)
    play.halted("w2", step=5, voted=True)
    heard = play.heard()
    assert list(heard) == ["w0", "w1", "w2"]
    roles: list[int] = []
    for role, (conclude,) in enumerate(heard.values()):
        assert isinstance(conclude, Conclude)
        assert (conclude.step, conclude.roles[0]) == (6, role)  # w2 applies step 5 first
        roles += conclude.roles
    assert sorted(roles) == [0, 1, 2, 3]


def test_nothing_could_be_written() -> None:
    play = Play.training(standbys=0, no_standby="stop")
    play.lose("m1")
    play.halted("w0")
    play.say("w0", Saved(0, 5), Done(5, stopped=True))
    assert play.job.reason == f"{WHY}; no checkpoint could be written"


def test_who_should_write_dies() -> None:
    play = Play.training(standbys=0, no_standby="stop")
    play.lose("m1")
    play.halted("w0")
    play.lose("m0")
    assert play.job.reason == f"{WHY}; no checkpoint could be written"


def test_who_should_write_takes_too_long() -> None:
    play = Play.training(standbys=0, no_standby="stop")
    play.lose("m1")
    play.halted("w0")
    play.expires("end")
    assert play.job.reason == f"{WHY}; no checkpoint could be written"


def test_what_is_lost_cannot_be_written() -> None:
    """All would have to go back: what there is is in the checkpoint already."""
    play = Play.training(standbys=0, copies=False, no_standby="stop")
    play.say("w0", Saved(0, 3))
    play.say("w1", Saved(1, 3))
    play.lose("m1")
    play.halted("w0")
    says = "role 1: no live replica holds its state; step 3 is in the checkpoint: the same command goes on from there"
    assert play.job.reason == f"{WHY}; {says}"


def test_patience_has_an_end() -> None:
    play = waiting()
    play.orders()
    play.expires("patience")
    assert play.heard() == {"w0": [Conclude(5, (0, 1))]}
    play.say("w0", Saved(0, 5), Saved(1, 5), Done(5, stopped=True))
    says = f"{WHY}, and none has come in 600 s; step 5 is in the checkpoint: the same command goes on from there"
    assert play.job.reason == says


def test_patience_that_was_rewarded() -> None:
    play = waiting()
    late = play.due("patience")
    play.come("m5", standby=True)
    play.here("m5")
    play.orders()
    play.feed(late)
    assert play.orders() == {}
    assert play.status() == "recovering"


def test_who_holds_no_state_is_not_waited_for_at_the_end() -> None:
    """m1's worker was started again and has no state yet when m2 is lost: w0 writes everything."""
    play = Play.training(machines=3, standbys=0, no_standby="stop")
    play.exits("w1")
    play.halted("w0", "w2")
    play.here("m1")
    play.rehearsed()
    play.say("w0", Switched(2, 5))
    assert play.seats() == ["w0", "w3", "w2"]
    play.lose("m2")
    play.orders()
    play.halted("w0")
    play.halted("w3", step=0, holds=False, able=True)
    assert play.heard() == {"w0": [Conclude(5, (0, 1, 2))]}
    play.say("w0", Saved(0, 5), Saved(1, 5), Saved(2, 5))
    assert play.status() == "closing"
    play.say("w0", Done(5, stopped=True))
    assert play.status() == "failed"
    assert play.job.reason.endswith("step 5 is in the checkpoint: the same command goes on from there")


def test_who_has_nothing_to_write_is_not_asked() -> None:
    """m1 has given its role away and is a step behind when m0 dies."""
    play = Play.training(standbys=1, no_standby="stop")
    play.replace(until="seated")
    play.lose("m0")
    play.orders()
    play.halted("w1", step=5)
    play.halted("w2", step=6)
    assert play.heard() == {"w2": [Conclude(6, (1, 0))]}


@pytest.mark.parametrize("number", [0, 7])
def test_the_patience_of_another_halt_ends_nothing(number: int) -> None:
    play = waiting()
    play.orders()
    play.feed(Expired("patience", number))
    assert play.orders() == {}
    assert play.status() == "halting"
