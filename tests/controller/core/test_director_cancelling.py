"""Replacements that are given up, tried again with somebody else, or not done in time."""

from __future__ import annotations

import pytest

from tests.controller.core.play import STAGES, Play, Stage
from understudy.controller.core.events import Overdue, Replace
from understudy.controller.core.state import ATTEMPTS
from understudy.protocol.frames import StartWorker, Tell
from understudy.protocol.messages import Cancel, Cancelled, Halt, Rehearse, Switched, Unprepared


def dies(play: Play, how: str) -> str:
    """The standby m2 or its worker; what is said about it."""
    if how == "machine":
        play.lose("m2")
        return "m2 is gone: no heartbeat"
    role = "role 1 (w2 on m2)" if play.change.roster is not None else "w2 on m2 (rehearsing role 1)"
    play.exits("w2")
    return f"{role} was killed by signal 9"


@pytest.mark.parametrize("until", ["rehearse", "prepare", "armed"])
@pytest.mark.parametrize("how", ["machine", "worker"])
def test_a_newcomer_that_dies_is_followed_by_the_next_one(until: Stage, how: str) -> None:
    play = Play.training(standbys=2)
    play.replace(until=until)
    generation = play.change.generation
    play.orders()
    why = dies(play, how)
    if until != "rehearse":
        assert play.heard() == {"w0": [Cancel(2)], "w1": [Cancel(2)]}
        play.say("w1", Cancelled(generation))
        assert play.heard() == {}
        play.say("w0", Cancelled(generation))
    assert play.heard()["w3"] == [Rehearse(1)]
    assert play.told("cancelled") == [why]
    assert play.status() == "training"
    assert play.states()["m1"] == "leaving"
    assert play.job.answers == {}
    play.go_on("settled")
    assert play.reply().ok
    assert play.seats() == ["w0", "w3"]
    assert play.generation == (2 if until == "rehearse" else 3)


@pytest.mark.parametrize("until", ["rehearse", "prepare", "armed"])
def test_a_newcomer_that_dies_and_nobody_is_left(until: Stage) -> None:
    play = Play.training(standbys=1)
    play.replace(until=until)
    dies(play, "machine")
    for uid in ("w0", "w1") if until != "rehearse" else ():
        assert play.states()["m1"] == "leaving"
        play.say(uid, Cancelled(2))
    assert play.answered() == (False, "m2 is gone: no heartbeat; training goes on as before")
    assert play.states() == {"m0": "active", "m1": "active", "m2": "gone"}
    assert play.status() == "training"
    assert not play.phase()
    assert play.seats() == ["w0", "w1"]


def test_a_standby_whose_worker_died_tries_again_with_a_new_one_a_few_times() -> None:
    play = Play.training(standbys=1, quarantine=ATTEMPTS + 1)
    play.replace(until="rehearse")
    play.orders()
    for attempt in range(ATTEMPTS):
        assert "r1" not in play.job.answers
        play.exits(f"w{2 + attempt}")
        assert play.orders() == {"m2": [StartWorker(f"w{3 + attempt}", 0)]}
        play.here("m2")
        orders = play.orders()
        assert orders == ({"m2": [Tell(f"w{3 + attempt}", Rehearse(1))]} if attempt < ATTEMPTS - 1 else {})
    says = "w4 on m2 (rehearsing role 1) was killed by signal 9; training goes on as before"
    assert play.answered() == (False, says)
    play.exits("w5")
    assert play.orders() == {}
    assert play.states()["m2"] == "quarantined"


def test_a_standby_in_quarantine_is_not_tried_again() -> None:
    play = Play.training(standbys=1, quarantine=2)
    play.replace(until="rehearse")
    play.exits("w2")
    play.here("m2")
    play.orders()
    play.exits("w3")
    assert play.orders() == {}
    assert play.states() == {"m0": "active", "m1": "active", "m2": "quarantined"}
    assert play.answered()[0] is False


def test_who_is_ended_with_its_machine_need_not_say_that_it_has_given_up() -> None:
    """w4 dies, and m2 is put into quarantine with w5, which was told to give the generation up."""
    play = Play.training(nproc=2, standbys=1, quarantine=1)
    play.replace(until="prepare")
    play.exits("w4")
    assert play.states()["m2"] == "quarantined"
    play.each(("w0", "w1", "w2", "w3"), Cancelled(play.change.generation))
    assert not play.phase()
    assert play.answered()[0] is False


def test_links_that_cannot_be_opened_cancel_the_change() -> None:
    play = Play.training(standbys=1)
    play.replace(until="prepare")
    play.orders()
    play.say("w0", Unprepared(2, "no route to w2"))
    assert play.heard() == {"w0": [Cancel(2)], "w1": [Cancel(2)], "w2": [Cancel(2)]}
    play.each(("w0", "w1", "w2"), Cancelled(2))
    assert play.told("cancelled") == ["role 0 (w0 on m0): no route to w2"]
    assert play.change.joiners == {1: "w2"}  # who is tried once more
    assert play.states()["m1"] == "leaving"


WARM = "_advance looks for finished rehearsals before _next begins a change: it waits for an event that may never come"


def test_who_has_rehearsed_already_prepares_at_once_in_the_next_attempt() -> None:
    play = Play.training(standbys=1)
    play.replace(until="prepare")
    play.say("w0", Unprepared(2, "no route to w2"))
    play.orders()
    play.each(("w0", "w1", "w2"), Cancelled(2))
    assert list(play.heard()) == ["w0", "w1", "w2"]
    assert play.phase() == "prepare"


def test_who_has_rehearsed_already_prepares_at_once_in_the_next_request() -> None:
    """Nothing has to happen in between for an operator who asks again to be heard."""
    play = Play.training(standbys=1)
    play.replace(until="prepare", by=50.0)
    play.feed(Overdue("r1"))
    play.each(("w0", "w1", "w2"), Cancelled(2))
    play.orders()
    assert play.ask("r2", Replace(("m1",))) is None
    assert list(play.heard()) == ["w0", "w1", "w2"]


def test_a_cancel_that_comes_after_the_vote_is_too_late() -> None:
    """The vote agreed before the word came: whoever has switched says so, and the change goes through."""
    play = Play.training()
    play.replace(until="armed")
    play.say("w0", Unprepared(2, "a link broke"))
    assert play.phase() == "cancel"
    play.say("w1", Switched(2, 5))
    assert play.phase() == "switch"
    play.all_switch()
    play.settled()
    assert play.reply().ok
    assert play.seats() == ["w0", "w2"]
    assert play.told("cancelled") == []


def test_a_newcomer_that_dies_before_a_vote_that_agreed_is_a_failure() -> None:
    play = Play.training(standbys=2)
    play.replace(until="armed")
    play.lose("m2")
    play.orders()
    play.say("w0", Switched(2, 5))
    assert play.status() == "halting"
    assert play.heard() == {"w0": [Halt(1, "m2 is gone: no heartbeat")], "w1": [Halt(1, "m2 is gone: no heartbeat")]}
    play.halted("w0", "w1")
    play.all_switch()
    assert play.seats() == ["w0", "w1"]  # the leaver holds what nobody else does, and goes on
    assert play.change.places == {1: "m3"}  # and is replaced by the next one
    play.go_on("settled")
    assert play.reply().ok


def test_the_newcomer_dies_in_the_switch() -> None:
    play = Play.training(standbys=1)
    play.replace(until="switch")
    play.orders()
    play.exits("w2")
    assert play.status() == "halting"
    assert list(play.heard()) == ["w0", "w1"]
    play.halted("w0", "w1")
    play.all_switch()
    assert play.seats() == ["w0", "w1"]
    assert play.status() == "training"


# -- deadlines ---------------------------------------------------------------------------------------------------------


def deadlines(play: Play) -> list[tuple[float, object]]:
    """Of requests, the earliest first."""
    return sorted(
        ((at, event) for at, event in play.director.due() if isinstance(event, Overdue)), key=lambda due: due[0]
    )


def test_a_deadline_is_kept_an_eye_on_until_the_request_is_answered() -> None:
    play = Play.training(standbys=2)
    assert play.director.due() == []
    play.replace("m1", until="rehearse", id="r1", by=100.0)
    play.ask("r2", Replace(("m0",), by=50.0))
    assert deadlines(play) == [(50.0, Overdue("r2")), (100.0, Overdue("r1"))]
    play.go_on("settled")
    assert deadlines(play) == [(50.0, Overdue("r2"))]
    play.go_on("settled")
    assert play.director.due() == []


@pytest.mark.parametrize("until", ["rehearse", "prepare"])
def test_a_deadline_before_the_vote_cancels_the_change_for_good(until: Stage) -> None:
    play = Play.training(standbys=2)
    play.replace(until=until, by=50.0)
    play.orders()
    play.feed(Overdue("r1"))
    play.each(play.heard(), Cancelled(2))
    assert play.answered() == (False, "it was not done in time; training goes on as before")
    assert not play.phase()
    assert play.states() == {"m0": "active", "m1": "active", "m2": "standby", "m3": "standby"}


@pytest.mark.parametrize("until", ["armed", "switch", "seated"])
def test_a_deadline_that_comes_when_the_change_is_being_made_changes_nothing(until: Stage) -> None:
    play = Play.training()
    play.replace(until=until, by=50.0)
    play.orders()
    play.feed(Overdue("r1"))
    assert play.orders() == {}
    assert "r1" not in play.job.answers
    for step in [play.first_switches, play.all_switch, play.settled][STAGES.index(until) - 2 :]:
        step()
    assert play.reply().ok


def test_a_deadline_of_a_request_that_waits() -> None:
    play = Play.training(standbys=2)
    play.replace("m1", until="rehearse", id="r1")
    play.ask("r2", Replace(("m0",), by=50.0))
    play.feed(Overdue("r2"))
    assert play.reply("r2").text == "no standby was ready in time; training goes on as before"
    play.go_on("settled")
    assert play.reply("r1").ok
    assert not play.phase()


def test_a_deadline_of_what_is_long_done() -> None:
    play = Play.training(standbys=2)
    play.replace(by=50.0)
    before = play.reply()
    assert play.feed(Overdue("r1")) == []
    assert play.reply() == before


def test_a_deadline_outlives_the_first_attempt() -> None:
    play = Play.training(standbys=2)
    play.replace(until="rehearse", by=50.0)
    play.lose("m2")
    assert play.change.places == {1: "m3"}
    assert deadlines(play) == [(50.0, Overdue("r1"))]
