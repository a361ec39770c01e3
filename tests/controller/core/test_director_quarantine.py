"""Machines that fail come back as standbys; machines that fail too often, or are faulty, are quarantined."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig, Stage
from understudy.controller.core.events import Readmit, ReportFault
from understudy.protocol.frames import EndWorker, StartWorker
from understudy.protocol.messages import Cancelled, Faulty, Halt, Rehearse


def recovers(rig: Rig, step: int = 5) -> None:
    rig.halted(*sorted(rig.job.unreported), step=step)
    rig.rehearsed()
    rig.all_switch(step)
    rig.settled()
    assert rig.status() == "training"


# -- repair ------------------------------------------------------------------------------------------------------------


def test_a_machine_that_lost_its_worker_is_a_standby_again() -> None:
    rig = Rig.training()
    rig.exits("w1")
    rig.orders()
    recovers(rig)
    assert rig.states() == {"m0": "active", "m1": "standby", "m2": "active"}
    assert rig.orders()["m1"] == [StartWorker("w3", 0)]
    assert rig.told("machine")[-1] == "m1 is a standby again"
    rig.here("m1")
    rig.orders()
    rig.exits("w2")
    rig.halted("w0")
    assert rig.heard() == {"w0": [Halt(2, "role 1 (w2 on m2) was killed by signal 9")], "w3": [Rehearse(1)]}


def test_all_workers_of_it_are_started_anew() -> None:
    """w2 gives its state to the joiner, and is not used afterwards."""
    rig = Rig.training(nproc=2)
    rig.exits("w3")
    rig.orders()
    rig.halted("w0", "w1", "w2")
    rig.rehearsed()
    rig.all_switch()
    assert not any(isinstance(order, StartWorker) for order in rig.orders()["m1"])  # the others make their first step
    rig.settled()
    assert rig.orders()["m1"][-3:] == [EndWorker("w2"), StartWorker("w6", 0), StartWorker("w7", 1)]
    assert rig.states()["m1"] == "standby"


def test_a_machine_that_was_lost_comes_back_with_its_history() -> None:
    rig = Rig.training()
    rig.lose("m1")
    recovers(rig)
    rig.come("m1", standby=True, incarnation="m1-b")
    assert rig.states()["m1"] == "standby"
    machine = rig.job.machines["m1"]
    assert [why for _, why in machine.history] == ["no heartbeat"]
    assert machine.failures == 1


# -- quarantine --------------------------------------------------------------------------------------------------------


def test_a_machine_that_fails_again_and_again_is_quarantined() -> None:
    rig = Rig.training(standbys=0)
    for uid in ("w1", "w2"):
        rig.exits(uid)
        rig.halted("w0")
        rig.here("m1")
        rig.rehearsed()
        rig.all_switch()
    rig.come("m2", standby=True)
    rig.here("m2")
    rig.exits("w3")
    rig.orders()
    recovers(rig)
    assert rig.states() == {"m0": "active", "m1": "quarantined", "m2": "active"}
    why = "3 failures, the last one: w3 was killed by signal 9"
    assert rig.told("quarantined") == [f"m1 is in quarantine: {why}"]
    assert rig.job.machines["m1"].why == why
    assert "m1" not in rig.orders()  # no worker is started on it
    rig.exits("w4")
    rig.halted("w0")
    assert rig.job.change is None  # it does not stand in, either


def quarantined() -> Rig:
    """m2 is a standby; its worker has died three times."""
    rig = Rig.training()
    for uid in ("w2", "w3", "w4"):
        assert rig.states()["m2"] == "standby"
        rig.exits(uid)
    assert rig.states()["m2"] == "quarantined"
    rig.orders()
    return rig


def test_a_machine_in_quarantine_that_comes_again_is_in_quarantine_again() -> None:
    rig = quarantined()
    rig.come("m2", standby=True, incarnation="m2-b")
    assert rig.states()["m2"] == "quarantined"
    assert rig.orders() == {}
    rig.lose("m2")
    assert (rig.states()["m2"], rig.status()) == ("gone", "training")
    rig.come("m2", standby=True, incarnation="m2-c")
    assert rig.states()["m2"] == "quarantined"


def test_a_machine_is_quarantined_if_its_agent_dies_again_and_again() -> None:
    rig = Rig.training()
    for life in "bcd":
        assert rig.states()["m2"] == "standby"
        rig.lose("m2")
        rig.come("m2", standby=True, incarnation=f"m2-{life}")
    assert rig.states()["m2"] == "quarantined"
    assert rig.job.machines["m2"].why == "3 failures, the last one: no heartbeat"


def test_a_machine_that_comes_into_quarantine_is_not_the_one_that_was_waited_for() -> None:
    rig = Rig.training(standbys=0, quarantine=1)
    rig.lose("m1")
    rig.halted("w0")
    rig.come("m1", standby=True, incarnation="m1-b")
    assert rig.states()["m1"] == "quarantined"
    assert rig.told("wanted") == ["1 standby machine wanted"] * 2
    rig.come("m2", standby=True)
    rig.here("m2")
    assert rig.change.joiners == {1: "w2"}


def test_readmission() -> None:
    rig = quarantined()
    assert rig.at_once("r0", Readmit("m2")) == (True, "m2 is a standby again")
    machine = rig.job.machines["m2"]
    assert (machine.state, machine.failures, len(machine.history), machine.why) == ("standby", 0, 3, "")
    assert rig.orders() == {"m2": [StartWorker("w5", 0)]}
    assert rig.told("machine")[-1] == "m2 is out of quarantine and a standby"
    rig.here("m2")
    rig.replace()
    assert rig.reply().ok
    assert rig.seats() == ["w0", "w5"]


def test_what_was_pardoned_is_pardoned_in_its_next_life_too() -> None:
    rig = quarantined()
    rig.ask("r1", Readmit("m2"))
    rig.come("m2", standby=True, incarnation="m2-b")
    machine = rig.job.machines["m2"]
    assert (machine.state, machine.failures, len(machine.history)) == ("standby", 1, 4)


@pytest.mark.parametrize("name", ["m0", "m1", "m9"])
def test_only_a_machine_in_quarantine_can_be_readmitted(name: str) -> None:
    rig = quarantined()
    rig.orders()
    says = f"{name} is not in quarantine; machines that are: m2"
    assert rig.at_once("r1", Readmit(name)) == (False, says)
    assert rig.orders() == {}


# -- ill machines ------------------------------------------------------------------------------------------------------


def test_a_standby_that_is_ill_is_put_into_quarantine() -> None:
    rig = Rig.training()
    assert rig.at_once("r1", ReportFault("m2", "ECC errors")) == (True, "m2 is a standby; it is in quarantine now")
    assert rig.orders() == {"m2": [EndWorker("w2")]}
    assert (rig.states()["m2"], rig.job.machines["m2"].why) == ("quarantined", "ECC errors")
    assert rig.status() == "training"
    rig.come("m2", standby=True, incarnation="m2-b")
    assert rig.states()["m2"] == "quarantined"
    rig.ask("r2", Readmit("m2"))
    assert rig.states()["m2"] == "standby"


def test_a_faulty_machine_with_a_role_is_replaced_at_a_boundary() -> None:
    rig = Rig.training()
    says = "it still works: a standby takes over at a boundary"
    assert rig.at_once("r1", ReportFault("m1", "ECC errors")) == (True, says)
    assert rig.reply("r1").data == {"act": "replace"}
    assert rig.signals() == [("checker", "replace")]
    assert rig.told("signal") == [f"m1 is ill: ECC errors: {says}"]
    assert (rig.status(), rig.change.leaving, rig.change.places) == ("training", ("m1",), {1: "m2"})
    rig.go_on("settled")
    assert rig.seats() == ["w0", "w2"]
    rig.come("m1", standby=True, incarnation="m1-b")
    assert rig.states()["m1"] == "quarantined"  # it was not readmitted


def test_a_standby_is_asked_for_if_there_is_none() -> None:
    rig = Rig.training(standbys=0)
    rig.ask("r1", ReportFault("m1", "ECC errors"))
    assert rig.told("wanted") == ["1 standby machine wanted"]
    rig.ask("r2", ReportFault("m1", "more ECC errors"))
    assert rig.told("wanted") == ["1 standby machine wanted"]
    assert len(rig.job.queue) == 1
    rig.come("m2", standby=True)
    rig.here("m2")
    rig.go_on("settled")
    assert rig.seats() == ["w0", "w2"]


def test_two_that_are_ill_need_two_standbys() -> None:
    rig = Rig.training(standbys=1)
    rig.ask("r1", ReportFault("m1", "ECC errors"))
    rig.ask("r2", ReportFault("m0", "ECC errors"))
    assert rig.told("wanted") == ["1 standby machine wanted"]
    rig.go_on("settled")
    rig.come("m3", standby=True)
    rig.here("m3")
    rig.go_on("settled")
    assert rig.seats() == ["w3", "w2"]


def test_what_a_machine_holds_that_is_not_trusted_is_not_used() -> None:
    rig = Rig.training()
    says = "it has a role: the step cannot be finished without it"
    assert rig.at_once("r1", ReportFault("m1", "silent data corruption", fatal=True)) == (True, says)
    assert rig.signals() == [("checker", "end"), ("checker", "halt")]
    assert rig.orders()["m1"] == [EndWorker("w1")]
    recovers(rig)
    assert rig.states() == {"m0": "active", "m1": "quarantined", "m2": "active"}


def test_a_machine_that_is_ill_does_not_go_on_by_itself() -> None:
    rig = Rig.training(standbys=0)
    rig.ask("r1", ReportFault("m1", "silent data corruption", fatal=True))
    rig.orders()
    rig.halted("w0")
    assert rig.orders() == {}
    assert rig.told("wanted") == ["1 standby machine wanted"]


@pytest.mark.parametrize("name", ["m9", "m2"])
def test_a_fault_of_an_absent_machine_is_refused(name: str) -> None:
    rig = Rig.training()
    rig.lose("m2")
    says = f"there is no machine {name}; machines with roles: m0, m1"
    assert rig.at_once("r1", ReportFault(name, "ECC errors")) == (False, says)


def test_a_script_that_says_its_worker_is_faulty_is_replaced_at_a_boundary() -> None:
    rig = Rig.training()
    rig.say("w1", Faulty("slow", fatal=False))
    assert rig.signals() == [("script", "replace")]
    assert rig.told("signal") == ["role 1 (w1 on m1): slow: it still works: a standby takes over at a boundary"]
    rig.go_on("settled")
    assert rig.seats() == ["w0", "w2"]


def test_a_script_that_does_not_trust_its_worker_ends_it() -> None:
    rig = Rig.training()
    rig.say("w1", Faulty("the loss is not a number", fatal=True))
    assert rig.signals() == [("script", "end"), ("script", "halt")]
    assert rig.orders()["m1"] == [EndWorker("w1")]
    recovers(rig)
    assert rig.states()["m1"] == "standby"


def test_a_standby_that_reports_a_fatal_fault_gets_a_new_worker() -> None:
    rig = Rig.training()
    rig.say("w2", Faulty("slow", fatal=False))
    assert rig.signals() == [("script", "nothing")]
    rig.say("w2", Faulty("broken", fatal=True))
    assert rig.signals()[1:] == [("script", "end"), ("script", "nothing")]
    assert rig.orders() == {"m2": [EndWorker("w2"), StartWorker("w3", 0)]}


# -- ill in the middle of something ------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", ["rehearse", "prepare", "armed"])
def test_a_faulty_joiner_is_followed_by_the_next_one(until: Stage) -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until=until)
    rig.ask("r2", ReportFault("m2", "ECC errors"))
    assert rig.reply("r2").ok
    assert rig.states()["m2"] == "quarantined"
    rig.each(sorted(rig.change.waiting) if rig.phase() == "cancel" else (), Cancelled(2))
    assert rig.change.places == {1: "m3"}
    rig.go_on("settled")
    assert rig.seats() == ["w0", "w3"]


def test_a_joiner_that_is_faulty_in_the_switch_is_replaced_afterwards() -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until="switch")
    rig.ask("r2", ReportFault("m2", "ECC errors"))
    assert rig.status() == "training"
    rig.all_switch()
    assert rig.seats() == ["w0", "w2"]
    assert (rig.change.leaving, rig.change.places) == (("m2",), {1: "m3"})


@pytest.mark.parametrize("name", ["m0", "m3"])
def test_a_machine_that_is_ill_while_the_job_recovers_is_replaced_afterwards(name: str) -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.lose("m2")
    rig.halted("w0", "w1")
    rig.ask("r1", ReportFault(name, "ECC errors"))
    assert rig.status() == "recovering"
    rig.rehearsed()
    rig.all_switch()
    assert rig.seats() == ["w0", "w1", "w3"]
    assert (rig.change.leaving, list(rig.change.places.values())) == ((name,), ["m4"])


def test_a_worker_that_is_faulty_while_the_job_recovers_is_replaced_afterwards() -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.lose("m2")
    rig.halted("w0", "w1")
    rig.say("w0", Faulty("slow"))
    rig.rehearsed()
    rig.all_switch()
    assert rig.change.leaving == ("m0",)


def test_a_machine_that_is_ill_before_the_start_is_replaced_afterwards() -> None:
    rig = Rig.opening(standbys=1)
    rig.ask("r1", ReportFault("m1", "ECC errors"))
    rig.all_switch(step=0)
    assert (rig.change.leaving, rig.change.places) == (("m1",), {1: "m2"})
