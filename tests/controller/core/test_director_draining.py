"""Drains: in turns, the earliest deadline first, refused or told to be late as early as that is known; and machines
that must go by themselves."""

from __future__ import annotations

from collections import deque

import pytest

from tests.controller.core.play import STAGES, Play, Stage
from understudy.controller.core.events import AddStandby, Overdue, Replace, Slipping, TakeBack
from understudy.controller.core.turns import usual_duration
from understudy.controller.server.views import queue_view
from understudy.protocol.frames import Dismiss, StartWorker
from understudy.protocol.messages import Cancelled, Halt, Rehearse, Settled


def drain(*machines: str, by: float | None = None, why: str = "") -> Replace:
    return Replace(machines, by=by, in_turns=True, why=why)


def going(play: Play) -> tuple[str, ...]:
    """Who leaves with the change under way."""
    return play.change.leaving


def turns(play: Play) -> list[str]:
    return play.told("change")


# -- turns -------------------------------------------------------------------------------------------------------------


def test_all_machines_of_a_request_go_together() -> None:
    play = Play.training(machines=3, standbys=2)
    assert play.ask("r1", drain("m1", "m2", why="new firmware")) is None
    assert play.told("asked") == ["drain m1, m2: new firmware"]
    assert going(play) == ("m1", "m2")
    play.go_on("settled")
    assert play.reply().text == "training lost 0.250 s"


def test_no_more_at_once_than_the_job_allows() -> None:
    play = Play.training(machines=3, standbys=3, at_once=2)
    play.ask("r1", drain("m0", "m1", "m2"))
    assert going(play) == ("m0", "m1")
    play.go_on("settled")
    assert "r1" not in play.job.answers
    assert going(play) == ("m2",)
    play.go_on("settled")
    reply = play.reply()
    assert (reply.ok, reply.text) == (True, "2 of 2 turns done, training lost 0.500 s")
    assert turns(play) == ["m0 → m3, m1 → m4 (2 of 3: no more than 2 at once)", "m2 → m5"]
    assert play.states() == dict.fromkeys(("m0", "m1", "m2"), "gone") | dict.fromkeys(("m3", "m4", "m5"), "active")


def test_what_is_asked_for_at_one_boundary_is_done_at_one() -> None:
    play = Play.training(machines=3, standbys=2, at_once=1)
    play.ask("r1", Replace(("m0", "m1")))
    assert going(play) == ("m0", "m1")


def test_nobody_goes_by_plan_while_the_job_recovers() -> None:
    play = Play.training(machines=3, standbys=2)
    play.lose("m2")
    play.halted("w0", "w1")
    assert play.ask("r1", drain("m0")) is None
    assert (play.status(), going(play)) == ("recovering", ())
    play.rehearsed()
    play.all_switch()
    assert play.seats() == ["w0", "w1", "w3"]
    assert (play.status(), going(play)) == ("training", ("m0",))
    play.go_on("settled")
    assert play.reply().ok


def test_a_machine_goes_as_soon_as_a_standby_is_ready_for_it() -> None:
    play = Play.training(machines=3, standbys=1)
    play.ask("r0", AddStandby())
    play.ask("r1", drain("m1", "m2"))
    assert going(play) == ("m1",)
    play.go_on("settled")
    assert queue_view(play.job)[0].state == "waits for a standby"
    play.come("m9", standby=True)
    play.here("m9")
    assert going(play) == ("m2",)


def test_the_earliest_deadline_goes_first() -> None:
    play = Play.training(machines=3, standbys=3)
    play.replace("m0", until="rehearse", id="r0")
    play.ask("r1", drain("m1"))
    play.ask("r2", drain("m2", by=500.0))
    play.go_on("settled")
    assert going(play) == ("m2",)


def test_a_machine_that_dies_meanwhile_is_left_out() -> None:
    play = Play.training(machines=3, standbys=3, at_once=1)
    play.ask("r1", drain("m1", "m2"))
    play.lose("m2")
    play.halted("w0", "w1")
    play.rehearsed()
    play.all_switch()
    assert going(play) == ("m1",)
    play.go_on("settled")
    assert play.reply().ok


def test_a_turn_that_comes_to_nothing_is_told_at_the_end() -> None:
    play = Play.training(machines=3, standbys=2, at_once=1)
    play.ask("r1", drain("m1", "m2", by=900.0))
    play.go_on("settled")
    assert going(play) == ("m2",)
    play.now = 900.0
    play.feed(Overdue("r1"))
    play.each(sorted(play.job.change.waiting if play.job.change else ()), Cancelled(play.generation + 1))
    reply = play.reply()
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
    play = Play.training(standbys=standbys)
    play.now = 9.0
    play.orders()
    assert play.at_once("r1", request_) == (False, says)
    assert play.orders() == {}
    assert play.status() == "training"


def test_a_standby_that_somebody_else_waits_for_is_not_free() -> None:
    play = Play.training(machines=3, standbys=2)
    play.replace("m0", until="rehearse", id="r0")
    play.ask("r1", drain("m1"))
    assert play.at_once("r2", drain("m2"))[1].startswith("a standby machine is needed and none is free")


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_who_will_be_late_is_told_before_the_deadline() -> None:
    play = Play.training(machines=3, standbys=2)
    play.replace("m0", id="r0")
    took = usual_duration(play.job)
    assert took is not None
    play.ask("r1", AddStandby())
    play.replace("m1", until="rehearse", id="r2")
    by = play.now + 4 * took
    assert play.ask("r3", drain("m2", by=by)) is None
    assert play.told("late") == []
    ((moment, event),) = [(at, event) for at, event in play.director.due() if isinstance(event, Slipping)]
    assert play.now < moment < by
    play.now = moment
    play.feed(event)
    (late,) = play.told("late")
    assert late.startswith("m2: waits for a standby, and will be late: a turn of about")
    assert [view.state for view in queue_view(play.job)] == ["under way: rehearse", late.removeprefix("m2: ")]
    play.feed(event)
    assert len(play.told("late")) == 1


def test_a_deadline_that_no_replacement_has_ever_met_is_refused() -> None:
    play = Play.training(machines=3, standbys=3)
    play.replace("m0", id="r0")
    took = usual_duration(play.job)
    assert took is not None
    play.orders()
    refused = play.at_once("r1", drain("m1", by=play.now + 1 + took / 2))
    assert refused == (
        False,
        f"it cannot be done in time: a turn of about {took:.2g} s ends {took / 2:.2g} s after the deadline; "
        "name a later deadline, or none",
    )
    assert (play.orders(), play.status(), play.job.queue, play.job.change) == (
        {},
        "training",
        deque(),
        None,
    )
    assert play.ask("r2", drain("m1", by=play.now + 1 + 2 * took)) is None
    assert play.told("late") == []
    refused = play.at_once("r3", drain("m2", by=play.now + 1 + took))
    assert refused[1].startswith("it cannot be done in time"), "the one under way comes first"


def test_what_begins_at_once_and_will_be_late_is_told_as_well() -> None:
    play = Play.training(machines=3, standbys=3)
    play.replace("m0", id="r0")
    soon = usual_duration(play.job)
    assert soon is not None
    play.replace("m1", until="rehearse", id="r1")
    play.now += 9 * soon
    play.go_on("settled")
    lately = usual_duration(play.job)
    assert lately is not None
    assert lately > 2 * soon
    assert play.ask("r2", drain("m2", by=play.now + 1 + 2 * soon)) is None
    assert going(play) == ("m2",)
    (late,) = play.told("late")
    assert late.startswith("m2: waits for its turn, and will be late: a turn of about")


# -- taking back -------------------------------------------------------------------------------------------------------


def test_a_drain_that_waits_is_taken_back() -> None:
    play = Play.training(machines=3, standbys=3, at_once=1)
    play.ask("r1", drain("m0", "m1", "m2"))
    assert play.at_once("r2", TakeBack("m2")) == (True, "m2 stays")
    assert play.at_once("r3", TakeBack("m0")) == (False, "m0 is being replaced already; that cannot be taken back")
    play.go_on("settled")
    play.go_on("settled")
    assert play.answered() == (
        False,
        "2 of 3 turns done, training lost 0.500 s; m2: an operator has taken it back",
    )
    says = "m2 does not wait to be replaced; machines that do: none"
    assert play.at_once("r4", TakeBack("m2")) == (False, says)


# -- kept leavers ------------------------------------------------------------------------------------------------------


def test_a_leaver_that_is_kept_becomes_a_standby() -> None:
    play = Play.training()
    play.ask("r1", Replace(("m1",), ("m2",), keep=True))
    play.go_on("seated")
    play.orders()
    play.settled()
    assert play.reply().ok
    assert play.states() == {"m0": "active", "m1": "standby", "m2": "active"}
    assert play.told("released") == []
    assert isinstance(play.orders()["m1"][-1], StartWorker)
    play.here("m1")
    assert play.ask("r2", Replace(("m2",), ("m1",), keep=True)) is None
    play.go_on("settled")
    assert play.states() == {"m0": "active", "m1": "active", "m2": "standby"}


def test_who_is_to_go_where_is_not_left_to_chance_after_a_mishap() -> None:
    play = Play.training(standbys=2)
    play.ask("r1", Replace(("m1",), ("m2",), keep=True))
    play.lose("m2")
    assert play.answered() == (False, "standby m2 is gone; ask for another one")
    assert play.states()["m1"] == "active"


# -- machines that must go ---------------------------------------------------------------------------------------------


def test_a_machine_that_must_go_is_drained() -> None:
    play = Play.training()
    play.leaving("m1")
    assert play.told("notice") == ["m1 goes in 30 s: preempted"]
    assert play.heard() == {"w2": [Rehearse(1)]}
    play.go_on("settled")
    assert play.states() == {"m0": "active", "m1": "gone", "m2": "active"}
    assert play.job.machines["m1"].history == []
    assert play.orders()["m1"][-1] == Dismiss("it was replaced")


def test_a_standby_that_must_go_just_goes() -> None:
    play = Play.training()
    play.leaving("m2")
    assert play.orders() == {"m2": [Dismiss("preempted")]}
    assert play.status() == "training"


@pytest.mark.parametrize("until", STAGES[:3])
def test_a_newcomer_that_must_go_is_followed_by_another_one(until: Stage) -> None:
    play = Play.training(standbys=2)
    play.replace(until=until)
    play.leaving("m2")
    assert play.states()["m2"] == "gone"
    if play.phase() == "cancel":
        play.each(sorted(play.change.waiting), Cancelled(play.change.generation))
    assert play.change.joiners == {1: "w3"}


def test_a_newcomer_that_must_go_when_it_has_come_is_drained() -> None:
    play = Play.training(standbys=2)
    play.replace(until="switch")
    play.leaving("m2")
    play.all_switch()
    assert going(play) == ("m2",)


@pytest.mark.parametrize(
    ("mask", "then"),
    [("", "training waits for one then"), ("anywhere", "its replica is given up then, and training goes on")],
)
def test_without_a_standby_the_operator_is_told_and_one_is_asked_for(mask: str, then: str) -> None:
    play = Play.training(standbys=0, mask=mask)
    play.leaving("m1", 30.0)
    (late,) = play.told("late")
    assert late.startswith(f"m1 goes, and no standby is free: without one, {then}")
    assert play.told("wanted") == ["1 standby machine wanted"]
    deadline, event = next((at, event) for at, event in play.director.due() if isinstance(event, Overdue))
    assert deadline == play.now + 30.0
    play.now = deadline
    play.orders()
    play.feed(event)
    assert play.orders()["m1"] == [Dismiss("its time was up: preempted")]
    assert play.told("lost") == ["m1 is gone: its time was up: preempted"]
    play.halted("w0")
    if mask:
        assert play.told("masked")
    else:
        assert "no standby is left for role 1" in play.job.waiting


def test_one_that_comes_in_time_takes_over() -> None:
    play = Play.training(standbys=0)
    play.leaving("m1")
    play.come("m5", standby=True)
    play.here("m5")
    assert going(play) == ("m1",)
    play.go_on("settled")
    assert play.states() == {"m0": "active", "m1": "gone", "m5": "active"}


def test_its_time_is_up_while_the_newcomer_rehearses() -> None:
    """The failure does what was asked for."""
    play = Play.training()
    play.leaving("m1")
    play.orders()
    play.feed(Overdue("notice-m1-a"))
    assert play.heard() == {"w0": [Halt(1, "m1 is gone: its time was up: preempted")]}
    play.halted("w0")
    assert play.change.joiners == {1: "w2"}


def test_its_time_is_up_while_it_hands_over() -> None:
    play = Play.training()
    play.leaving("m1")
    play.go_on("switch")
    play.orders()
    play.feed(Overdue("notice-m1-a"))
    assert play.orders() == {}
    play.all_switch()
    play.each(play.seats(), Settled(2, 6, 0.1))
    assert play.states()["m1"] == "gone"


def test_a_machine_that_must_go_is_not_kept() -> None:
    play = Play.training()
    play.ask("r1", Replace(("m1",), ("m2",), keep=True))
    play.leaving("m1")
    play.go_on("settled")
    assert play.states()["m1"] == "gone"
    assert play.reply().ok


def test_what_must_be_cannot_be_taken_back() -> None:
    play = Play.training()
    play.leaving("m1")
    assert play.at_once("r1", TakeBack("m1")) == (
        False,
        "m1 has to leave by itself; that cannot be taken back here",
    )
