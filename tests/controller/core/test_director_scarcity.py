"""No standby is left: the machine restarts its worker, the job asks for a machine, or it ends with a checkpoint."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig
from understudy.controller.core.events import AddStandby, Expired, Lost
from understudy.controller.core.state import ATTEMPTS
from understudy.protocol.frames import EndWorker, StartWorker
from understudy.protocol.messages import Conclude, Done, Rehearse, Resume, Saved, Switched

WHY = "m1 is gone: no heartbeat; no standby is left for role 1"


# -- its own machine ---------------------------------------------------------------------------------------------------


def test_a_machine_starts_a_dead_worker_again_and_keeps_its_role() -> None:
    rig = Rig.training(standbys=0)
    rig.exits("w1")
    rig.orders()
    rig.halted("w0")
    assert rig.orders() == {"m1": [StartWorker("w2", 0)]}
    assert (rig.status(), rig.job.wanted) == ("halting", 0)
    rig.here("m1")
    assert rig.heard() == {"w2": [Rehearse(1)]}
    rig.rehearsed()
    rig.all_switch()
    assert rig.seats() == ["w0", "w2"]
    assert rig.states() == {"m0": "active", "m1": "active"}


def test_the_dead_workers_neighbour_on_the_machine_keeps_its_process_and_state() -> None:
    rig = Rig.training(nproc=2, standbys=0)
    rig.exits("w3")
    rig.orders()
    rig.halted("w0", "w1", "w2")
    assert rig.orders() == {"m1": [StartWorker("w4", 1)]}
    rig.here("m1")
    assert rig.heard() == {"w4": [Rehearse(3)]}
    rig.rehearsed()
    (resume,) = rig.heard()["w4"]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == ("w0", "w1", "w2", "w4")
    assert {(move.role, move.taker.uid) for move in resume.moves} == {(3, "w4")}
    assert [(move.part, move.parts) for move in resume.moves] == [(0, 3), (1, 3), (2, 3)]


def test_a_neighbour_that_has_not_come_to_a_boundary_is_started_again_too() -> None:
    rig = Rig.training(nproc=2, standbys=0)
    rig.exits("w3")
    rig.orders()
    rig.halted("w0", "w1")
    rig.halted("w2", holds=False)
    assert rig.orders() == {"m1": [EndWorker("w2"), StartWorker("w4", 0), StartWorker("w5", 1)]}


def test_a_standby_comes_before_the_own_machine() -> None:
    rig = Rig.training(standbys=1)
    rig.exits("w1")
    rig.halted("w0")
    assert rig.change.joiners == {1: "w2"}


def test_a_machine_that_fails_too_often_does_not_go_on_by_itself() -> None:
    rig = Rig.training(standbys=0, quarantine=2)
    rig.exits("w1")
    rig.halted("w0")
    rig.orders()
    rig.exits("w2")  # the one that was started again
    assert rig.orders() == {}
    assert rig.job.waiting.endswith("no standby is left for role 1")
    assert rig.job.wanted == 1


def test_a_worker_that_is_started_again_and_does_not_come_is_started_once_more() -> None:
    rig = Rig.training(standbys=0)
    rig.exits("w1")
    rig.halted("w0")
    rig.orders()
    rig.expires("start")
    assert rig.orders() == {"m1": [EndWorker("w2"), StartWorker("w3", 0)]}


# -- a machine is asked for --------------------------------------------------------------------------------------------


def waiting(machines: int = 2) -> Rig:
    """m1 is gone, and no standby takes its role."""
    rig = Rig.training(machines, standbys=0)
    rig.orders()
    rig.lose("m1")
    rig.halted(*sorted(rig.job.unreported))
    return rig


def test_a_machine_is_asked_for_and_waited_for() -> None:
    rig = waiting()
    assert (rig.status(), rig.job.waiting) == ("halting", WHY)
    assert rig.told("waiting") == [f"{WHY}: training waits for one; add one with: understudy standby add"]
    assert rig.told("wanted") == ["1 standby machine wanted"]
    rig.come("m5", standby=True)
    rig.orders()
    rig.here("m5")
    assert rig.heard() == {"w2": [Rehearse(1)]}
    assert rig.job.waiting == ""
    rig.rehearsed()
    rig.all_switch()
    assert rig.seats() == ["w0", "w2"]
    assert (rig.job.wanted, rig.told("wanted")) == (0, ["1 standby machine wanted"])


def test_the_machine_itself_may_come_back() -> None:
    rig = waiting()
    rig.come("m1", standby=True, incarnation="m1-b")
    rig.here("m1")
    rig.rehearsed()
    rig.all_switch()
    assert rig.seats() == ["w0", "w2"]
    assert rig.job.machines["m1"].failures == 1


def test_two_machines_are_asked_for_at_once() -> None:
    rig = Rig.training(machines=3, standbys=0)
    rig.lose("m1")
    rig.lose("m2")
    rig.halted("w0")
    assert rig.told("wanted") == ["2 standby machines wanted"]
    assert rig.job.waiting == "m2 is gone: no heartbeat; no standby is left for role 1 and role 2"
    for name in ("m5", "m6"):
        assert rig.status() == "halting"
        rig.come(name, standby=True)
        rig.here(name)
    assert rig.change.joiners == {1: "w3", 2: "w4"}


def test_the_reason_for_waiting_omits_machines_that_restart_their_workers() -> None:
    """m1 is gone; of m2 only a worker has died."""
    rig = Rig.training(machines=3, standbys=0)
    rig.exits("w2")
    rig.lose("m1")
    rig.halted("w0")
    assert rig.job.waiting == "m1 is gone: no heartbeat; no standby is left for role 1"
    assert rig.told("wanted") == ["1 standby machine wanted"]


def test_one_that_was_asked_for_before_is_enough() -> None:
    rig = Rig.training(standbys=0)
    rig.ask("r1", AddStandby())
    rig.lose("m1")
    rig.halted("w0")
    assert rig.told("wanted") == ["1 standby machine wanted"]


def test_a_machine_that_cannot_come_is_asked_for_again_a_few_times() -> None:
    rig = waiting()
    for attempt in range(ATTEMPTS):
        assert len(rig.told("wanted")) == attempt + 1
        rig.feed(Lost(f"m{7 + attempt}", "", "out of quota"))
    assert rig.status() == "halting"
    assert len(rig.told("wanted")) == ATTEMPTS
    assert len(rig.told("waiting")) == 1


def test_another_death_while_all_wait() -> None:
    rig = waiting(machines=3)
    rig.lose("m2")
    assert rig.status() == "halting"
    rig.come("m5", standby=True)
    rig.here("m5")
    assert rig.status() == "halting"
    rig.come("m6", standby=True)
    rig.here("m6")
    assert rig.change.joiners == {1: "w3", 2: "w4"}


# -- the end -----------------------------------------------------------------------------------------------------------


def test_without_a_standby_a_job_may_stop_with_a_checkpoint() -> None:
    rig = Rig.training(standbys=0, no_standby="stop")
    rig.lose("m1")
    rig.orders()
    rig.halted("w0", step=5)
    assert rig.status() == "closing"
    assert rig.told("wanted") == []
    assert rig.heard() == {"w0": [Conclude(5, (0, 1))]}  # role 1's copy is its own
    rig.say("w0", Saved(0, 5), Saved(1, 5))
    assert rig.status() == "closing"
    rig.say("w0", Done(5, stopped=True))
    assert rig.status() == "failed"
    assert rig.job.reason == f"{WHY}; step 5 is in the checkpoint: the same command goes on from there"


def test_each_survivor_writes_its_own_role_and_one_those_of_the_dead() -> None:
    rig = Rig.training(machines=4, standbys=0, no_standby="stop")
    rig.lose("m3")
    rig.orders()
    rig.halted("w0", "w1", step=6)
    rig.halted("w2", step=5, voted=True)
    heard = rig.heard()
    assert list(heard) == ["w0", "w1", "w2"]
    roles: list[int] = []
    for role, (conclude,) in enumerate(heard.values()):
        assert isinstance(conclude, Conclude)
        assert (conclude.step, conclude.roles[0]) == (6, role)  # w2 applies step 5 first
        roles += conclude.roles
    assert sorted(roles) == [0, 1, 2, 3]


def test_nothing_could_be_written() -> None:
    rig = Rig.training(standbys=0, no_standby="stop")
    rig.lose("m1")
    rig.halted("w0")
    rig.say("w0", Saved(0, 5), Done(5, stopped=True))
    assert rig.job.reason == f"{WHY}; no checkpoint could be written"


def test_no_checkpoint_is_written_if_the_writer_dies() -> None:
    rig = Rig.training(standbys=0, no_standby="stop")
    rig.lose("m1")
    rig.halted("w0")
    rig.lose("m0")
    assert rig.job.reason == f"{WHY}; no checkpoint could be written"


def test_no_checkpoint_is_written_if_the_writer_takes_too_long() -> None:
    rig = Rig.training(standbys=0, no_standby="stop")
    rig.lose("m1")
    rig.halted("w0")
    rig.expires("end")
    assert rig.job.reason == f"{WHY}; no checkpoint could be written"


def test_what_is_lost_cannot_be_written() -> None:
    """All would have to go back: what there is is in the checkpoint already."""
    rig = Rig.training(standbys=0, copies=False, no_standby="stop")
    rig.say("w0", Saved(0, 3))
    rig.say("w1", Saved(1, 3))
    rig.lose("m1")
    rig.halted("w0")
    says = "role 1: no live replica holds its state; step 3 is in the checkpoint: the same command goes on from there"
    assert rig.job.reason == f"{WHY}; {says}"


def test_patience_has_an_end() -> None:
    rig = waiting()
    rig.orders()
    rig.expires("patience")
    assert rig.heard() == {"w0": [Conclude(5, (0, 1))]}
    rig.say("w0", Saved(0, 5), Saved(1, 5), Done(5, stopped=True))
    says = f"{WHY}, and none has come in 600 s; step 5 is in the checkpoint: the same command goes on from there"
    assert rig.job.reason == says


def test_patience_that_was_rewarded() -> None:
    rig = waiting()
    late = rig.due("patience")
    rig.come("m5", standby=True)
    rig.here("m5")
    rig.orders()
    rig.feed(late)
    assert rig.orders() == {}
    assert rig.status() == "recovering"


def test_the_last_checkpoint_does_not_wait_for_a_worker_without_state() -> None:
    """m1's worker was started again and has no state yet when m2 is lost: w0 writes everything."""
    rig = Rig.training(machines=3, standbys=0, no_standby="stop")
    rig.exits("w1")
    rig.halted("w0", "w2")
    rig.here("m1")
    rig.rehearsed()
    rig.say("w0", Switched(2, 5))
    assert rig.seats() == ["w0", "w3", "w2"]
    rig.lose("m2")
    rig.orders()
    rig.halted("w0")
    rig.halted("w3", step=0, holds=False, able=True)
    assert rig.heard() == {"w0": [Conclude(5, (0, 1, 2))]}
    rig.say("w0", Saved(0, 5), Saved(1, 5), Saved(2, 5))
    assert rig.status() == "closing"
    rig.say("w0", Done(5, stopped=True))
    assert rig.status() == "failed"
    assert rig.job.reason.endswith("step 5 is in the checkpoint: the same command goes on from there")


def test_a_worker_without_a_role_to_write_is_not_asked() -> None:
    """m1 has given its role away and is a step behind when m0 dies."""
    rig = Rig.training(standbys=1, no_standby="stop")
    rig.replace(until="seated")
    rig.lose("m0")
    rig.orders()
    rig.halted("w1", step=5)
    rig.halted("w2", step=6)
    assert rig.heard() == {"w2": [Conclude(6, (1, 0))]}


@pytest.mark.parametrize("number", [0, 7])
def test_the_patience_of_another_halt_ends_nothing(number: int) -> None:
    rig = waiting()
    rig.orders()
    rig.feed(Expired("patience", number))
    assert rig.orders() == {}
    assert rig.status() == "halting"
