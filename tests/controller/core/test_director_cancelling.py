"""Replacements that are cancelled, tried again with another standby, or not done in time."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import STAGES, Rig, Stage
from understudy.controller.core.events import Overdue, Replace
from understudy.controller.core.state import ATTEMPTS
from understudy.protocol.frames import StartWorker, Tell
from understudy.protocol.messages import Cancel, Cancelled, Halt, Rehearse, Switched, Unprepared


def dies(rig: Rig, how: str) -> str:
    """The standby m2 or its worker; what is said about it."""
    if how == "machine":
        rig.lose("m2")
        return "m2 is gone: no heartbeat"
    role = "role 1 (w2 on m2)" if rig.change.roster is not None else "w2 on m2 (rehearsing role 1)"
    rig.exits("w2")
    return f"{role} was killed by signal 9"


@pytest.mark.parametrize("until", ["rehearse", "prepare", "armed"])
@pytest.mark.parametrize("how", ["machine", "worker"])
def test_if_the_joiner_dies_the_next_standby_takes_its_place(until: Stage, how: str) -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until=until)
    generation = rig.change.generation
    rig.orders()
    why = dies(rig, how)
    if until != "rehearse":
        assert rig.heard() == {"w0": [Cancel(2)], "w1": [Cancel(2)]}
        rig.say("w1", Cancelled(generation))
        assert rig.heard() == {}
        rig.say("w0", Cancelled(generation))
    assert rig.heard()["w3"] == [Rehearse(1)]
    assert rig.told("cancelled") == [why]
    assert rig.status() == "training"
    assert rig.states()["m1"] == "leaving"
    assert rig.job.answers == {}
    rig.go_on("settled")
    assert rig.reply().ok
    assert rig.seats() == ["w0", "w3"]
    assert rig.generation == (2 if until == "rehearse" else 3)


@pytest.mark.parametrize("until", ["rehearse", "prepare", "armed"])
def test_if_the_joiner_dies_and_no_standby_is_left_training_continues_as_before(until: Stage) -> None:
    rig = Rig.training(standbys=1)
    rig.replace(until=until)
    dies(rig, "machine")
    for uid in ("w0", "w1") if until != "rehearse" else ():
        assert rig.states()["m1"] == "leaving"
        rig.say(uid, Cancelled(2))
    assert rig.answered() == (False, "m2 is gone: no heartbeat; training goes on as before")
    assert rig.states() == {"m0": "active", "m1": "active", "m2": "gone"}
    assert rig.status() == "training"
    assert not rig.phase()
    assert rig.seats() == ["w0", "w1"]


def test_a_standby_rehearses_again_with_a_new_worker_a_few_times() -> None:
    rig = Rig.training(standbys=1, quarantine=ATTEMPTS + 1)
    rig.replace(until="rehearse")
    rig.orders()
    for attempt in range(ATTEMPTS):
        assert "r1" not in rig.job.answers
        rig.exits(f"w{2 + attempt}")
        assert rig.orders() == {"m2": [StartWorker(f"w{3 + attempt}", 0)]}
        rig.here("m2")
        orders = rig.orders()
        assert orders == ({"m2": [Tell(f"w{3 + attempt}", Rehearse(1))]} if attempt < ATTEMPTS - 1 else {})
    says = "w4 on m2 (rehearsing role 1) was killed by signal 9; training goes on as before"
    assert rig.answered() == (False, says)
    rig.exits("w5")
    assert rig.orders() == {}
    assert rig.states()["m2"] == "quarantined"


def test_a_standby_in_quarantine_is_not_tried_again() -> None:
    rig = Rig.training(standbys=1, quarantine=2)
    rig.replace(until="rehearse")
    rig.exits("w2")
    rig.here("m2")
    rig.orders()
    rig.exits("w3")
    assert rig.orders() == {}
    assert rig.states() == {"m0": "active", "m1": "active", "m2": "quarantined"}
    assert rig.answered()[0] is False


def test_a_worker_that_ends_with_its_machine_need_not_confirm_the_cancellation() -> None:
    """w4 dies, and m2 is put into quarantine with w5, which was told to give the generation up."""
    rig = Rig.training(nproc=2, standbys=1, quarantine=1)
    rig.replace(until="prepare")
    rig.exits("w4")
    assert rig.states()["m2"] == "quarantined"
    rig.each(("w0", "w1", "w2", "w3"), Cancelled(rig.change.generation))
    assert not rig.phase()
    assert rig.answered()[0] is False


def test_links_that_cannot_be_opened_cancel_the_change() -> None:
    rig = Rig.training(standbys=1)
    rig.replace(until="prepare")
    rig.orders()
    rig.say("w0", Unprepared(2, "no route to w2"))
    assert rig.heard() == {"w0": [Cancel(2)], "w1": [Cancel(2)], "w2": [Cancel(2)]}
    rig.each(("w0", "w1", "w2"), Cancelled(2))
    assert rig.told("cancelled") == ["role 0 (w0 on m0): no route to w2"]
    assert rig.change.joiners == {1: "w2"}  # the same joiner, once more
    assert rig.states()["m1"] == "leaving"


WARM = "_advance looks for finished rehearsals before _next begins a change: it waits for an event that may never come"


def test_a_joiner_that_has_rehearsed_prepares_at_once_in_the_next_attempt() -> None:
    rig = Rig.training(standbys=1)
    rig.replace(until="prepare")
    rig.say("w0", Unprepared(2, "no route to w2"))
    rig.orders()
    rig.each(("w0", "w1", "w2"), Cancelled(2))
    assert list(rig.heard()) == ["w0", "w1", "w2"]
    assert rig.phase() == "prepare"


def test_a_joiner_that_has_rehearsed_prepares_at_once_in_the_next_request() -> None:
    """A second request of the operator is served without any event in between."""
    rig = Rig.training(standbys=1)
    rig.replace(until="prepare", by=50.0)
    rig.feed(Overdue("r1"))
    rig.each(("w0", "w1", "w2"), Cancelled(2))
    rig.orders()
    assert rig.ask("r2", Replace(("m1",))) is None
    assert list(rig.heard()) == ["w0", "w1", "w2"]


def test_a_cancel_that_comes_after_the_vote_is_too_late() -> None:
    """The vote agreed before the cancellation came: a worker reports its switch, and the change goes through."""
    rig = Rig.training()
    rig.replace(until="armed")
    rig.say("w0", Unprepared(2, "a link broke"))
    assert rig.phase() == "cancel"
    rig.say("w1", Switched(2, 5))
    assert rig.phase() == "switch"
    rig.all_switch()
    rig.settled()
    assert rig.reply().ok
    assert rig.seats() == ["w0", "w2"]
    assert rig.told("cancelled") == []


def test_if_the_joiner_dies_before_a_vote_that_agrees_the_job_recovers() -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until="armed")
    rig.lose("m2")
    rig.orders()
    rig.say("w0", Switched(2, 5))
    assert rig.status() == "halting"
    assert rig.heard() == {"w0": [Halt(1, "m2 is gone: no heartbeat")], "w1": [Halt(1, "m2 is gone: no heartbeat")]}
    rig.halted("w0", "w1")
    rig.all_switch()
    assert rig.seats() == ["w0", "w1"]  # the leaver has the only copy of the state, and keeps its role
    assert rig.change.places == {1: "m3"}  # and is replaced by the next one
    rig.go_on("settled")
    assert rig.reply().ok


def test_if_the_joiner_dies_in_the_switch_the_leaver_keeps_its_role() -> None:
    rig = Rig.training(standbys=1)
    rig.replace(until="switch")
    rig.orders()
    rig.exits("w2")
    assert rig.status() == "halting"
    assert list(rig.heard()) == ["w0", "w1"]
    rig.halted("w0", "w1")
    rig.all_switch()
    assert rig.seats() == ["w0", "w1"]
    assert rig.status() == "training"


# -- deadlines ---------------------------------------------------------------------------------------------------------


def deadlines(rig: Rig) -> list[tuple[float, object]]:
    """Of requests, the earliest first."""
    return sorted(
        ((at, event) for at, event in rig.director.due() if isinstance(event, Overdue)), key=lambda due: due[0]
    )


def test_a_deadline_is_kept_an_eye_on_until_the_request_is_answered() -> None:
    rig = Rig.training(standbys=2)
    assert rig.director.due() == []
    rig.replace("m1", until="rehearse", id="r1", by=100.0)
    rig.ask("r2", Replace(("m0",), by=50.0))
    assert deadlines(rig) == [(50.0, Overdue("r2")), (100.0, Overdue("r1"))]
    rig.go_on("settled")
    assert deadlines(rig) == [(50.0, Overdue("r2"))]
    rig.go_on("settled")
    assert rig.director.due() == []


@pytest.mark.parametrize("until", ["rehearse", "prepare"])
def test_a_deadline_before_the_vote_cancels_the_change_for_good(until: Stage) -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until=until, by=50.0)
    rig.orders()
    rig.feed(Overdue("r1"))
    rig.each(rig.heard(), Cancelled(2))
    assert rig.answered() == (False, "it was not done in time; training goes on as before")
    assert not rig.phase()
    assert rig.states() == {"m0": "active", "m1": "active", "m2": "standby", "m3": "standby"}


@pytest.mark.parametrize("until", ["armed", "switch", "seated"])
def test_a_deadline_that_comes_when_the_change_is_being_made_changes_nothing(until: Stage) -> None:
    rig = Rig.training()
    rig.replace(until=until, by=50.0)
    rig.orders()
    rig.feed(Overdue("r1"))
    assert rig.orders() == {}
    assert "r1" not in rig.job.answers
    for step in [rig.first_switches, rig.all_switch, rig.settled][STAGES.index(until) - 2 :]:
        step()
    assert rig.reply().ok


def test_a_deadline_of_a_request_that_waits() -> None:
    rig = Rig.training(standbys=2)
    rig.replace("m1", until="rehearse", id="r1")
    rig.ask("r2", Replace(("m0",), by=50.0))
    rig.feed(Overdue("r2"))
    assert rig.reply("r2").text == "no standby was ready in time; training goes on as before"
    rig.go_on("settled")
    assert rig.reply("r1").ok
    assert not rig.phase()


def test_a_deadline_of_what_is_long_done() -> None:
    rig = Rig.training(standbys=2)
    rig.replace(by=50.0)
    before = rig.reply()
    assert rig.feed(Overdue("r1")) == []
    assert rig.reply() == before


def test_a_deadline_outlives_the_first_attempt() -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until="rehearse", by=50.0)
    rig.lose("m2")
    assert rig.change.places == {1: "m3"}
    assert deadlines(rig) == [(50.0, Overdue("r1"))]
