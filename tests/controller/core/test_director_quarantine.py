"""Machines that fail come back as standbys; those that fail again and again, or are ill, are not used any more."""

from __future__ import annotations

import pytest

from tests.controller.core.play import Play, Stage
from understudy.controller.core.events import Readmit, ReportFault
from understudy.protocol.frames import EndWorker, StartWorker
from understudy.protocol.messages import Cancelled, Faulty, Halt, Rehearse


def recovers(play: Play, step: int = 5) -> None:
    play.halted(*sorted(play.job.unreported), step=step)
    play.rehearsed()
    play.all_switch(step)
    play.settled()
    assert play.status() == "training"


# -- repair ------------------------------------------------------------------------------------------------------------


def test_a_machine_that_lost_its_worker_is_a_standby_again() -> None:
    play = Play.training()
    play.exits("w1")
    play.orders()
    recovers(play)
    assert play.states() == {"m0": "active", "m1": "standby", "m2": "active"}
    assert play.orders()["m1"] == [StartWorker("w3", 0)]
    assert play.told("machine")[-1] == "m1 is a standby again"
    play.here("m1")
    play.orders()
    play.exits("w2")
    play.halted("w0")
    assert play.heard() == {"w0": [Halt(2, "role 1 (w2 on m2) was killed by signal 9")], "w3": [Rehearse(1)]}


def test_all_workers_of_it_are_started_anew() -> None:
    """w2 gives its state away, and then it is of no use to anybody any more."""
    play = Play.training(nproc=2)
    play.exits("w3")
    play.orders()
    play.halted("w0", "w1", "w2")
    play.rehearsed()
    play.all_switch()
    assert not any(isinstance(order, StartWorker) for order in play.orders()["m1"])  # the others make their first step
    play.settled()
    assert play.orders()["m1"][-3:] == [EndWorker("w2"), StartWorker("w6", 0), StartWorker("w7", 1)]
    assert play.states()["m1"] == "standby"


def test_a_machine_that_was_lost_comes_back_with_its_history() -> None:
    play = Play.training()
    play.lose("m1")
    recovers(play)
    play.come("m1", standby=True, incarnation="m1-b")
    assert play.states()["m1"] == "standby"
    machine = play.job.machines["m1"]
    assert [why for _, why in machine.history] == ["no heartbeat"]
    assert machine.failures == 1


# -- quarantine --------------------------------------------------------------------------------------------------------


def test_a_machine_that_fails_again_and_again_is_quarantined() -> None:
    play = Play.training(standbys=0)
    for uid in ("w1", "w2"):
        play.exits(uid)
        play.halted("w0")
        play.here("m1")
        play.rehearsed()
        play.all_switch()
    play.come("m2", standby=True)
    play.here("m2")
    play.exits("w3")
    play.orders()
    recovers(play)
    assert play.states() == {"m0": "active", "m1": "quarantined", "m2": "active"}
    why = "3 failures, the last one: w3 was killed by signal 9"
    assert play.told("quarantined") == [f"m1 is in quarantine: {why}"]
    assert play.job.machines["m1"].why == why
    assert "m1" not in play.orders()  # no worker is started on it
    play.exits("w4")
    play.halted("w0")
    assert play.job.change is None  # it does not stand in, either


def quarantined() -> Play:
    """m2, a standby whose worker has died three times."""
    play = Play.training()
    for uid in ("w2", "w3", "w4"):
        assert play.states()["m2"] == "standby"
        play.exits(uid)
    assert play.states()["m2"] == "quarantined"
    play.orders()
    return play


def test_a_machine_in_quarantine_that_comes_again_is_in_quarantine_again() -> None:
    play = quarantined()
    play.come("m2", standby=True, incarnation="m2-b")
    assert play.states()["m2"] == "quarantined"
    assert play.orders() == {}
    play.lose("m2")
    assert (play.states()["m2"], play.status()) == ("gone", "training")
    play.come("m2", standby=True, incarnation="m2-c")
    assert play.states()["m2"] == "quarantined"


def test_a_machine_whose_agent_dies_again_and_again_is_quarantined() -> None:
    play = Play.training()
    for life in "bcd":
        assert play.states()["m2"] == "standby"
        play.lose("m2")
        play.come("m2", standby=True, incarnation=f"m2-{life}")
    assert play.states()["m2"] == "quarantined"
    assert play.job.machines["m2"].why == "3 failures, the last one: no heartbeat"


def test_a_machine_that_comes_into_quarantine_is_not_the_one_that_was_waited_for() -> None:
    play = Play.training(standbys=0, quarantine=1)
    play.lose("m1")
    play.halted("w0")
    play.come("m1", standby=True, incarnation="m1-b")
    assert play.states()["m1"] == "quarantined"
    assert play.told("wanted") == ["1 standby machine wanted"] * 2
    play.come("m2", standby=True)
    play.here("m2")
    assert play.change.joiners == {1: "w2"}


def test_readmission() -> None:
    play = quarantined()
    assert play.at_once("r0", Readmit("m2")) == (True, "m2 is a standby again")
    machine = play.job.machines["m2"]
    assert (machine.state, machine.failures, len(machine.history), machine.why) == ("standby", 0, 3, "")
    assert play.orders() == {"m2": [StartWorker("w5", 0)]}
    assert play.told("machine")[-1] == "m2 is out of quarantine and a standby"
    play.here("m2")
    play.replace()
    assert play.reply().ok
    assert play.seats() == ["w0", "w5"]


def test_what_was_pardoned_is_pardoned_in_its_next_life_too() -> None:
    play = quarantined()
    play.ask("r1", Readmit("m2"))
    play.come("m2", standby=True, incarnation="m2-b")
    machine = play.job.machines["m2"]
    assert (machine.state, machine.failures, len(machine.history)) == ("standby", 1, 4)


@pytest.mark.parametrize("name", ["m0", "m1", "m9"])
def test_only_who_is_in_quarantine_can_be_readmitted(name: str) -> None:
    play = quarantined()
    play.orders()
    says = f"{name} is not in quarantine; machines that are: m2"
    assert play.at_once("r1", Readmit(name)) == (False, says)
    assert play.orders() == {}


# -- ill machines ------------------------------------------------------------------------------------------------------


def test_a_standby_that_is_ill_is_put_into_quarantine() -> None:
    play = Play.training()
    assert play.at_once("r1", ReportFault("m2", "ECC errors")) == (True, "m2 is a standby; it is in quarantine now")
    assert play.orders() == {"m2": [EndWorker("w2")]}
    assert (play.states()["m2"], play.job.machines["m2"].why) == ("quarantined", "ECC errors")
    assert play.status() == "training"
    play.come("m2", standby=True, incarnation="m2-b")
    assert play.states()["m2"] == "quarantined"
    play.ask("r2", Readmit("m2"))
    assert play.states()["m2"] == "standby"


def test_a_machine_that_plays_and_is_ill_is_replaced_at_a_boundary() -> None:
    play = Play.training()
    says = "it still works: a standby takes over at a boundary"
    assert play.at_once("r1", ReportFault("m1", "ECC errors")) == (True, says)
    assert play.reply("r1").data == {"act": "replace"}
    assert play.signals() == [("checker", "replace")]
    assert play.told("signal") == [f"m1 is ill: ECC errors: {says}"]
    assert (play.status(), play.change.leaving, play.change.places) == ("training", ("m1",), {1: "m2"})
    play.go_on("settled")
    assert play.seats() == ["w0", "w2"]
    play.come("m1", standby=True, incarnation="m1-b")
    assert play.states()["m1"] == "quarantined"  # nobody has said that it is well again


def test_a_standby_is_asked_for_where_there_is_none() -> None:
    play = Play.training(standbys=0)
    play.ask("r1", ReportFault("m1", "ECC errors"))
    assert play.told("wanted") == ["1 standby machine wanted"]
    play.ask("r2", ReportFault("m1", "more ECC errors"))
    assert play.told("wanted") == ["1 standby machine wanted"]
    assert len(play.job.queue) == 1
    play.come("m2", standby=True)
    play.here("m2")
    play.go_on("settled")
    assert play.seats() == ["w0", "w2"]


def test_two_that_are_ill_need_two_standbys() -> None:
    play = Play.training(standbys=1)
    play.ask("r1", ReportFault("m1", "ECC errors"))
    play.ask("r2", ReportFault("m0", "ECC errors"))
    assert play.told("wanted") == ["1 standby machine wanted"]
    play.go_on("settled")
    play.come("m3", standby=True)
    play.here("m3")
    play.go_on("settled")
    assert play.seats() == ["w3", "w2"]


def test_what_a_machine_holds_that_is_not_trusted_is_not_used() -> None:
    play = Play.training()
    says = "it has a role: the step cannot be finished without it"
    assert play.at_once("r1", ReportFault("m1", "silent data corruption", fatal=True)) == (True, says)
    assert play.signals() == [("checker", "end"), ("checker", "halt")]
    assert play.orders()["m1"] == [EndWorker("w1")]
    recovers(play)
    assert play.states() == {"m0": "active", "m1": "quarantined", "m2": "active"}


def test_a_machine_that_is_ill_does_not_go_on_by_itself() -> None:
    play = Play.training(standbys=0)
    play.ask("r1", ReportFault("m1", "silent data corruption", fatal=True))
    play.orders()
    play.halted("w0")
    assert play.orders() == {}
    assert play.told("wanted") == ["1 standby machine wanted"]


@pytest.mark.parametrize("name", ["m9", "m2"])
def test_nobody_can_be_ill_who_is_not_there(name: str) -> None:
    play = Play.training()
    play.lose("m2")
    says = f"there is no machine {name}; machines with roles: m0, m1"
    assert play.at_once("r1", ReportFault(name, "ECC errors")) == (False, says)


def test_a_script_that_says_its_worker_is_faulty_is_replaced_at_a_boundary() -> None:
    play = Play.training()
    play.say("w1", Faulty("slow", fatal=False))
    assert play.signals() == [("script", "replace")]
    assert play.told("signal") == ["role 1 (w1 on m1): slow: it still works: a standby takes over at a boundary"]
    play.go_on("settled")
    assert play.seats() == ["w0", "w2"]


def test_a_script_that_does_not_trust_its_worker_ends_it() -> None:
    play = Play.training()
    play.say("w1", Faulty("the loss is not a number", fatal=True))
    assert play.signals() == [("script", "end"), ("script", "halt")]
    assert play.orders()["m1"] == [EndWorker("w1")]
    recovers(play)
    assert play.states()["m1"] == "standby"


def test_a_standby_that_says_it_is_faulty_is_nobodys_loss() -> None:
    play = Play.training()
    play.say("w2", Faulty("slow", fatal=False))
    assert play.signals() == [("script", "nothing")]
    play.say("w2", Faulty("broken", fatal=True))
    assert play.signals()[1:] == [("script", "end"), ("script", "nothing")]
    assert play.orders() == {"m2": [EndWorker("w2"), StartWorker("w3", 0)]}


# -- ill in the middle of something ------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", ["rehearse", "prepare", "armed"])
def test_a_newcomer_that_is_ill_is_followed_by_the_next_one(until: Stage) -> None:
    play = Play.training(standbys=2)
    play.replace(until=until)
    play.ask("r2", ReportFault("m2", "ECC errors"))
    assert play.reply("r2").ok
    assert play.states()["m2"] == "quarantined"
    play.each(sorted(play.change.waiting) if play.phase() == "cancel" else (), Cancelled(2))
    assert play.change.places == {1: "m3"}
    play.go_on("settled")
    assert play.seats() == ["w0", "w3"]


def test_a_newcomer_that_is_ill_in_the_switch_is_replaced_afterwards() -> None:
    play = Play.training(standbys=2)
    play.replace(until="switch")
    play.ask("r2", ReportFault("m2", "ECC errors"))
    assert play.status() == "training"
    play.all_switch()
    assert play.seats() == ["w0", "w2"]
    assert (play.change.leaving, play.change.places) == (("m2",), {1: "m3"})


@pytest.mark.parametrize("name", ["m0", "m3"])
def test_a_machine_that_is_ill_while_the_job_recovers_is_replaced_afterwards(name: str) -> None:
    play = Play.training(machines=3, standbys=2)
    play.lose("m2")
    play.halted("w0", "w1")
    play.ask("r1", ReportFault(name, "ECC errors"))
    assert play.status() == "recovering"
    play.rehearsed()
    play.all_switch()
    assert play.seats() == ["w0", "w1", "w3"]
    assert (play.change.leaving, list(play.change.places.values())) == ((name,), ["m4"])


def test_a_worker_that_is_faulty_while_the_job_recovers_is_replaced_afterwards() -> None:
    play = Play.training(machines=3, standbys=2)
    play.lose("m2")
    play.halted("w0", "w1")
    play.say("w0", Faulty("slow"))
    play.rehearsed()
    play.all_switch()
    assert play.change.leaving == ("m0",)


def test_a_machine_that_is_ill_before_the_start_is_replaced_afterwards() -> None:
    play = Play.opening(standbys=1)
    play.ask("r1", ReportFault("m1", "ECC errors"))
    play.all_switch(step=0)
    assert (play.change.leaving, play.change.places) == (("m1",), {1: "m2"})
