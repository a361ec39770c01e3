"""Somebody who plays is lost: everybody halts, the survivors' reports decide, and a standby takes the roles."""

from __future__ import annotations

import pytest

from tests.controller.core.play import Play, worker
from understudy.protocol.frames import Dismiss
from understudy.protocol.messages import Halt, Halted, Move, Prepared, Rehearse, Rehearsed, Resume, Switched, Unprepared
from understudy.protocol.roster import Roster


@pytest.mark.parametrize("how", ["machine", "worker"])
def test_a_standby_takes_the_roles_of_the_dead(how: str) -> None:
    play = Play.training()
    if how == "machine":
        play.lose("m1")
        why = "m1 is gone: no heartbeat"
    else:
        play.exits("w1")
        why = "role 1 (w1 on m1) was killed by signal 9"
    assert play.heard() == {"w0": [Halt(1, why)]}
    assert play.status() == "halting"
    play.halted("w0", step=7)
    assert play.told("decided") == ["step 7 begins again; state comes from a live replica"]
    assert play.status() == "recovering"
    assert play.heard() == {"w2": [Rehearse(1)]}
    play.say("w2", Rehearsed(1))
    heard = play.heard()
    (resume,) = heard["w0"]
    assert isinstance(resume, Resume)
    assert heard == {"w0": [resume], "w2": [resume]}
    assert (resume.roster.generation, resume.roster.seats, resume.roster.fresh) == (2, ("w0", "w2"), True)
    assert (resume.step, resume.moves) == (7, (Move(1, worker("w0", "m0"), worker("w2", "m2")),))
    play.say("w2", Prepared(2, 0.25), Switched(2, 7, 0.5, 1000))
    assert play.status() == "recovering"
    play.say("w0", Prepared(2, 0.125), Switched(2, 7))
    assert play.status() == "training"
    assert play.seats() == ["w0", "w2"]
    assert play.states() == {"m0": "active", "m1": "gone" if how == "machine" else "leaving", "m2": "active"}
    play.settled()
    assert play.states() == {"m0": "active", "m1": "gone" if how == "machine" else "standby", "m2": "active"}
    (settled,) = [event for event in play.announcements if event.kind == "settled"]
    assert settled.data["links"] == {"joiners": 0.25, "stayers": 0.125}


@pytest.mark.parametrize(
    ("reports", "step", "says"),
    [
        ([(7, False), (7, False)], 7, "step 7 begins again"),
        ([(7, True), (7, True)], 7, "step 7 begins again"),
        ([(8, False), (7, True)], 8, "step 8 is next: step 7 has been applied"),
        ([(7, True), (8, False)], 8, "step 8 is next: step 7 has been applied"),
    ],
)
def test_what_the_survivors_say_decides(reports: list[tuple[int, bool]], step: int, says: str) -> None:
    play = Play.training(machines=3)
    play.exits("w2")
    for uid, (reached, voted) in zip(["w0", "w1"], reports, strict=True):
        assert play.told("decided") == []
        play.halted(uid, step=reached, voted=voted)
    assert play.told("decided") == [f"{says}; state comes from 2 live replicas at once"]
    play.orders()
    play.rehearsed()
    resumes = {uid: message for uid, (message,) in play.heard().items()}
    assert list(resumes) == ["w0", "w1", "w3"]
    assert all(isinstance(resume, Resume) and resume.step == step for resume in resumes.values())


LOST = "and there is no checkpoint; keep some with --checkpoint DIR"


def test_no_copy_is_left() -> None:
    play = Play.training(copies=False)
    play.exits("w1")
    play.halted("w0")
    why = "role 1 (w1 on m1) was killed by signal 9; role 1: no live replica holds its state"
    assert play.job.reason == f"{why}, {LOST}"
    assert all(orders[-1] == Dismiss("the job has failed") for orders in play.orders().values())


def test_the_only_machine_dies() -> None:
    play = Play.training(machines=1)
    play.lose("m0")
    assert play.job.reason == f"m0 is gone: no heartbeat; no worker that is left holds any state, {LOST}"


def test_a_standby_that_is_just_starting_is_waited_for() -> None:
    play = Play.training(standbys=0)
    play.come("m2", standby=True)
    play.exits("w1")
    play.halted("w0")
    assert play.status() == "halting"
    play.orders()
    play.here("m2")
    assert play.heard() == {"w2": [Rehearse(1)]}


def test_another_one_dies_while_the_others_report() -> None:
    play = Play.training(machines=3, standbys=2)
    play.exits("w2")
    play.orders()
    play.lose("m1")
    assert play.orders() == {"m1": [Dismiss("no heartbeat", again=True)]}
    play.halted("w0")
    troupe = Roster.of(2, [(1, "w3"), (2, "w4")], [worker("w3", "m3"), worker("w4", "m4")], cells=(0, 1, 2))
    assert play.heard() == {"w3": [Rehearse(1, None, troupe)], "w4": [Rehearse(2, None, troupe)]}
    assert play.job.halts == 1


def test_the_stand_in_dies_in_its_rehearsal() -> None:
    play = Play.training(standbys=2)
    play.exits("w1")
    play.halted("w0")
    assert play.change.places == {1: "m2", 0: "m0"}
    play.orders()
    play.lose("m2", "no power")
    assert play.heard() == {"w0": [Halt(2, "m2 is gone: no power")]}
    play.halted("w0")
    assert play.heard() == {"w3": [Rehearse(1)]}
    play.rehearsed()
    play.all_switch()
    assert play.seats() == ["w0", "w3"]


def test_one_that_is_to_play_and_needs_no_rehearsal_dies_while_others_rehearse() -> None:
    """m2 is halted just before it would have played; then its second worker is kept and the first one rehearses."""
    play = Play.training(nproc=2, standbys=1)
    play.lose("m1")
    play.halted("w0", "w1")
    play.rehearsed()
    play.exits("w4")
    play.halted("w0", "w1")
    play.halted("w5", step=0, holds=False, able=True)
    play.here("m2")
    assert play.change.joiners == {2: "w6"}
    assert play.change.places == {0: "m0", 1: "m2"}
    play.exits("w5")
    assert play.status() == "halting"


def test_links_that_cannot_be_opened_after_a_failure_are_another_failure() -> None:
    play = Play.training()
    play.exits("w1")
    play.halted("w0")
    play.rehearsed()
    play.orders()
    play.say("w2", Unprepared(2, "no route to w0"))
    why = "role 1 (w2 on m2): no route to w0"
    assert play.heard() == {"w0": [Halt(2, why)], "w2": [Halt(2, why)]}
    play.halted("w0")
    play.halted("w2", step=0, holds=False)
    assert play.status() == "recovering"
    assert play.change.generation == 3  # a number is never used twice
    assert list(play.heard()) == ["w0", "w2"]
    play.all_switch()
    assert play.seats() == ["w0", "w2"]


def test_a_leaver_whose_replacement_was_interrupted_plays_on_and_is_replaced_afterwards() -> None:
    play = Play.training(machines=3, standbys=2)
    play.replace("m1", until="armed")
    play.lose("m2")
    assert play.states()["m1"] == "active"
    play.halted("w0", "w1")
    play.halted("w3", step=0, holds=False)
    assert play.change.places == {0: "m0", 1: "m1", 2: "m3"}  # it has rehearsed another role, m4 none
    play.rehearsed()
    play.all_switch()
    assert play.seats() == ["w0", "w1", "w3"]
    assert play.change.places == {1: "m4"}
    assert "r1" not in play.job.answers


def test_a_worker_that_notices_a_failure_first_halts_everybody() -> None:
    play = Play.training()
    play.say("w0", Halted(0, 1, 5, False, True, how="eof", reason="w1 is gone", who="w1"))
    assert play.heard() == {"w0": [Halt(1, "w1 is gone")], "w1": [Halt(1, "w1 is gone")]}
    play.halted("w0", "w1")
    assert play.told("decided") == ["step 5 begins again"]
    play.all_switch()
    assert play.seats() == ["w0", "w1"]  # it was a false alarm


def test_operations_that_do_not_match_end_the_job() -> None:
    play = Play.training()
    play.say("w1", Halted(0, 1, 5, False, True, how="mismatch", reason="all_reduce of 3 and of 4 numbers"))
    assert play.job.reason == "role 1 (w1 on m1) in step 5: all_reduce of 3 and of 4 numbers"


def test_a_failure_in_a_replacement_may_do_what_was_asked_for() -> None:
    """m1 dies while m2 rehearses its role: m2 takes it all the same."""
    play = Play.training()
    play.replace(until="rehearse")
    play.orders()
    play.lose("m1")
    play.halted("w0")
    assert play.heard() == {"w0": [Halt(1, "m1 is gone: no heartbeat")]}  # m2 rehearses on
    play.rehearsed()
    play.all_switch()
    play.settled()
    assert play.seats() == ["w0", "w2"]
    assert play.reply().ok
