"""Drains: in turns, the earliest deadline first, refused or told to be late as early as that is known; and machines
that must go by themselves."""

from __future__ import annotations

from collections import deque

import pytest

from tests.controller.core.rig import STAGES, Rig, Stage
from understudy.controller.core.events import AddStandby, Overdue, Replace, Slipping, TakeBack
from understudy.controller.core.turns import usual_duration
from understudy.controller.server.views import queue_view
from understudy.protocol.frames import Dismiss, StartWorker
from understudy.protocol.messages import Cancelled, Halt, Rehearse, Settled


def drain(*machines: str, by: float | None = None, why: str = "") -> Replace:
    return Replace(machines, by=by, in_turns=True, why=why)


def going(rig: Rig) -> tuple[str, ...]:
    """The leavers of the change under way."""
    return rig.change.leaving


def turns(rig: Rig) -> list[str]:
    return rig.told("change")


# -- turns -------------------------------------------------------------------------------------------------------------


def test_all_machines_of_a_request_go_together() -> None:
    rig = Rig.training(machines=3, standbys=2)
    assert rig.ask("r1", drain("m1", "m2", why="new firmware")) is None
    assert rig.told("asked") == ["drain m1, m2: new firmware"]
    assert going(rig) == ("m1", "m2")
    rig.go_on("settled")
    assert rig.reply().text == "training lost 0.250 s"


def test_no_more_at_once_than_the_job_allows() -> None:
    rig = Rig.training(machines=3, standbys=3, at_once=2)
    rig.ask("r1", drain("m0", "m1", "m2"))
    assert going(rig) == ("m0", "m1")
    rig.go_on("settled")
    assert "r1" not in rig.job.answers
    assert going(rig) == ("m2",)
    rig.go_on("settled")
    reply = rig.reply()
    assert (reply.ok, reply.text) == (True, "2 of 2 turns done, training lost 0.500 s")
    assert turns(rig) == ["m0 → m3, m1 → m4 (2 of 3: no more than 2 at once)", "m2 → m5"]
    assert rig.states() == dict.fromkeys(("m0", "m1", "m2"), "gone") | dict.fromkeys(("m3", "m4", "m5"), "active")


def test_what_is_asked_for_at_one_boundary_is_done_at_one() -> None:
    rig = Rig.training(machines=3, standbys=2, at_once=1)
    rig.ask("r1", Replace(("m0", "m1")))
    assert going(rig) == ("m0", "m1")


def test_no_machine_is_drained_while_the_job_recovers() -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.lose("m2")
    rig.halted("w0", "w1")
    assert rig.ask("r1", drain("m0")) is None
    assert (rig.status(), going(rig)) == ("recovering", ())
    rig.rehearsed()
    rig.all_switch()
    assert rig.seats() == ["w0", "w1", "w3"]
    assert (rig.status(), going(rig)) == ("training", ("m0",))
    rig.go_on("settled")
    assert rig.reply().ok


def test_a_machine_goes_as_soon_as_a_standby_is_ready_for_it() -> None:
    rig = Rig.training(machines=3, standbys=1)
    rig.ask("r0", AddStandby())
    rig.ask("r1", drain("m1", "m2"))
    assert going(rig) == ("m1",)
    rig.go_on("settled")
    assert queue_view(rig.job)[0].state == "waits for a standby"
    rig.come("m9", standby=True)
    rig.here("m9")
    assert going(rig) == ("m2",)


def test_the_earliest_deadline_goes_first() -> None:
    rig = Rig.training(machines=3, standbys=3)
    rig.replace("m0", until="rehearse", id="r0")
    rig.ask("r1", drain("m1"))
    rig.ask("r2", drain("m2", by=500.0))
    rig.go_on("settled")
    assert going(rig) == ("m2",)


def test_a_machine_that_dies_meanwhile_is_left_out() -> None:
    rig = Rig.training(machines=3, standbys=3, at_once=1)
    rig.ask("r1", drain("m1", "m2"))
    rig.lose("m2")
    rig.halted("w0", "w1")
    rig.rehearsed()
    rig.all_switch()
    assert going(rig) == ("m1",)
    rig.go_on("settled")
    assert rig.reply().ok


def test_a_turn_that_comes_to_nothing_is_told_at_the_end() -> None:
    rig = Rig.training(machines=3, standbys=2, at_once=1)
    rig.ask("r1", drain("m1", "m2", by=900.0))
    rig.go_on("settled")
    assert going(rig) == ("m2",)
    rig.now = 900.0
    rig.feed(Overdue("r1"))
    rig.each(sorted(rig.job.change.waiting if rig.job.change else ()), Cancelled(rig.generation + 1))
    reply = rig.reply()
    assert not reply.ok
    assert reply.text.startswith("1 of 2 turns done, training lost 0.250 s; m2: it was not done in time")


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("standbys", "request_", "says"),
    [
        (0, drain("m1"), "a standby machine is needed and none is free; add one with: understudy standby add"),
        (1, drain("m0", "m1"), "2 standby machines are needed and there are 1; add one with: understudy standby add"),
        (0, drain("m0", "m1"), "2 standby machines are needed and there are 0; add some with: understudy standby add"),
        (1, drain("m1", by=2.0), "the deadline has passed 8 s ago; name a later one, or none"),
    ],
)
def test_what_cannot_be_met_is_refused_at_once(standbys: int, request_: Replace, says: str) -> None:
    rig = Rig.training(standbys=standbys)
    rig.now = 9.0
    rig.orders()
    assert rig.at_once("r1", request_) == (False, says)
    assert rig.orders() == {}
    assert rig.status() == "training"


def test_a_standby_that_another_request_waits_for_is_not_free() -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.replace("m0", until="rehearse", id="r0")
    rig.ask("r1", drain("m1"))
    assert rig.at_once("r2", drain("m2"))[1].startswith("a standby machine is needed and none is free")


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_a_drain_that_will_be_late_is_announced_before_its_deadline() -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.replace("m0", id="r0")
    took = usual_duration(rig.job)
    assert took is not None
    rig.ask("r1", AddStandby())
    rig.replace("m1", until="rehearse", id="r2")
    by = rig.now + 4 * took
    assert rig.ask("r3", drain("m2", by=by)) is None
    assert rig.told("late") == []
    ((moment, event),) = [(at, event) for at, event in rig.director.due() if isinstance(event, Slipping)]
    assert rig.now < moment < by
    rig.now = moment
    rig.feed(event)
    (late,) = rig.told("late")
    assert late.startswith("m2: waits for a standby, and will be late: a turn of about")
    assert [view.state for view in queue_view(rig.job)] == ["under way: rehearse", late.removeprefix("m2: ")]
    rig.feed(event)
    assert len(rig.told("late")) == 1


def test_a_deadline_that_no_replacement_has_ever_met_is_refused() -> None:
    rig = Rig.training(machines=3, standbys=3)
    rig.replace("m0", id="r0")
    took = usual_duration(rig.job)
    assert took is not None
    rig.orders()
    refused = rig.at_once("r1", drain("m1", by=rig.now + 1 + took / 2))
    assert refused == (
        False,
        f"it cannot be done in time: a turn of about {took:.2g} s ends {took / 2:.2g} s after the deadline; "
        "name a later deadline, or none",
    )
    assert (rig.orders(), rig.status(), rig.job.queue, rig.job.change) == (
        {},
        "training",
        deque(),
        None,
    )
    assert rig.ask("r2", drain("m1", by=rig.now + 1 + 2 * took)) is None
    assert rig.told("late") == []
    refused = rig.at_once("r3", drain("m2", by=rig.now + 1 + took))
    assert refused[1].startswith("it cannot be done in time"), "the one under way comes first"


def test_what_begins_at_once_and_will_be_late_is_told_as_well() -> None:
    rig = Rig.training(machines=3, standbys=3)
    rig.replace("m0", id="r0")
    soon = usual_duration(rig.job)
    assert soon is not None
    rig.replace("m1", until="rehearse", id="r1")
    rig.now += 9 * soon
    rig.go_on("settled")
    lately = usual_duration(rig.job)
    assert lately is not None
    assert lately > 2 * soon
    assert rig.ask("r2", drain("m2", by=rig.now + 1 + 2 * soon)) is None
    assert going(rig) == ("m2",)
    (late,) = rig.told("late")
    assert late.startswith("m2: waits for its turn, and will be late: a turn of about")


# -- taking back -------------------------------------------------------------------------------------------------------


def test_a_drain_that_waits_is_taken_back() -> None:
    rig = Rig.training(machines=3, standbys=3, at_once=1)
    rig.ask("r1", drain("m0", "m1", "m2"))
    assert rig.at_once("r2", TakeBack("m2")) == (True, "m2 stays")
    assert rig.at_once("r3", TakeBack("m0")) == (False, "m0 is being replaced already; that cannot be taken back")
    rig.go_on("settled")
    rig.go_on("settled")
    assert rig.answered() == (
        False,
        "2 of 3 turns done, training lost 0.500 s; m2: an operator has taken it back",
    )
    says = "m2 does not wait to be replaced; machines that do: none"
    assert rig.at_once("r4", TakeBack("m2")) == (False, says)


# -- kept leavers ------------------------------------------------------------------------------------------------------


def test_a_leaver_that_is_kept_becomes_a_standby() -> None:
    rig = Rig.training()
    rig.ask("r1", Replace(("m1",), ("m2",), keep=True))
    rig.go_on("seated")
    rig.orders()
    rig.settled()
    assert rig.reply().ok
    assert rig.states() == {"m0": "active", "m1": "standby", "m2": "active"}
    assert rig.told("released") == []
    assert isinstance(rig.orders()["m1"][-1], StartWorker)
    rig.here("m1")
    assert rig.ask("r2", Replace(("m2",), ("m1",), keep=True)) is None
    rig.go_on("settled")
    assert rig.states() == {"m0": "active", "m1": "active", "m2": "standby"}


def test_a_replacement_by_a_named_standby_fails_with_that_standby() -> None:
    rig = Rig.training(standbys=2)
    rig.ask("r1", Replace(("m1",), ("m2",), keep=True))
    rig.lose("m2")
    assert rig.answered() == (False, "standby m2 is gone; ask for another one")
    assert rig.states()["m1"] == "active"


# -- machines that must go ---------------------------------------------------------------------------------------------


def test_a_machine_that_must_go_is_drained() -> None:
    rig = Rig.training()
    rig.leaving("m1")
    assert rig.told("notice") == ["m1 goes in 30 s: preempted"]
    assert rig.heard() == {"w2": [Rehearse(1)]}
    rig.go_on("settled")
    assert rig.states() == {"m0": "active", "m1": "gone", "m2": "active"}
    assert rig.job.machines["m1"].history == []
    assert rig.orders()["m1"][-1] == Dismiss("it was replaced")


def test_a_standby_that_must_go_just_goes() -> None:
    rig = Rig.training()
    rig.leaving("m2")
    assert rig.orders() == {"m2": [Dismiss("preempted")]}
    assert rig.status() == "training"


@pytest.mark.parametrize("until", STAGES[:3])
def test_a_joiner_that_must_leave_is_followed_by_another_one(until: Stage) -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until=until)
    rig.leaving("m2")
    assert rig.states()["m2"] == "gone"
    if rig.phase() == "cancel":
        rig.each(sorted(rig.change.waiting), Cancelled(rig.change.generation))
    assert rig.change.joiners == {1: "w3"}


def test_a_joiner_that_must_leave_in_the_switch_is_drained_afterwards() -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until="switch")
    rig.leaving("m2")
    rig.all_switch()
    assert going(rig) == ("m2",)


@pytest.mark.parametrize(
    ("mask", "then"),
    [("", "training waits for one then"), ("anywhere", "its replica is given up then, and training goes on")],
)
def test_without_a_standby_the_operator_is_told_and_one_is_asked_for(mask: str, then: str) -> None:
    rig = Rig.training(standbys=0, mask=mask)
    rig.leaving("m1", 30.0)
    (late,) = rig.told("late")
    assert late.startswith(f"m1 goes, and no standby is free: without one, {then}")
    assert rig.told("wanted") == ["1 standby machine wanted"]
    deadline, event = next((at, event) for at, event in rig.director.due() if isinstance(event, Overdue))
    assert deadline == rig.now + 30.0
    rig.now = deadline
    rig.orders()
    rig.feed(event)
    assert rig.orders()["m1"] == [Dismiss("its time was up: preempted")]
    assert rig.told("lost") == ["m1 is gone: its time was up: preempted"]
    rig.halted("w0")
    if mask:
        assert rig.told("masked")
    else:
        assert "no standby is left for role 1" in rig.job.waiting


def test_one_that_comes_in_time_takes_over() -> None:
    rig = Rig.training(standbys=0)
    rig.leaving("m1")
    rig.come("m5", standby=True)
    rig.here("m5")
    assert going(rig) == ("m1",)
    rig.go_on("settled")
    assert rig.states() == {"m0": "active", "m1": "gone", "m5": "active"}


def test_a_leaver_out_of_time_in_the_rehearsal_is_replaced_by_a_recovery() -> None:
    """The failure does what was asked for."""
    rig = Rig.training()
    rig.leaving("m1")
    rig.orders()
    rig.feed(Overdue("notice-m1-a"))
    assert rig.heard() == {"w0": [Halt(1, "m1 is gone: its time was up: preempted")]}
    rig.halted("w0")
    assert rig.change.joiners == {1: "w2"}


def test_a_leaver_out_of_time_completes_its_hand_over() -> None:
    rig = Rig.training()
    rig.leaving("m1")
    rig.go_on("switch")
    rig.orders()
    rig.feed(Overdue("notice-m1-a"))
    assert rig.orders() == {}
    rig.all_switch()
    rig.each(rig.seats(), Settled(2, 6, 0.1))
    assert rig.states()["m1"] == "gone"


def test_a_machine_that_must_go_is_not_kept() -> None:
    rig = Rig.training()
    rig.ask("r1", Replace(("m1",), ("m2",), keep=True))
    rig.leaving("m1")
    rig.go_on("settled")
    assert rig.states()["m1"] == "gone"
    assert rig.reply().ok


def test_what_must_be_cannot_be_taken_back() -> None:
    rig = Rig.training()
    rig.leaving("m1")
    assert rig.at_once("r1", TakeBack("m1")) == (
        False,
        "m1 has to leave by itself; that cannot be taken back here",
    )
