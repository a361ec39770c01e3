"""A machine with roles is lost: all workers halt, the survivors' reports decide, and a standby takes the roles."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig, worker
from understudy.protocol.frames import Dismiss
from understudy.protocol.messages import Halt, Halted, Move, Prepared, Rehearse, Rehearsed, Resume, Switched, Unprepared
from understudy.protocol.roster import Roster


@pytest.mark.parametrize("how", ["machine", "worker"])
def test_a_standby_takes_the_roles_of_the_dead(how: str) -> None:
    rig = Rig.training()
    if how == "machine":
        rig.lose("m1")
        why = "m1 is gone: no heartbeat"
    else:
        rig.exits("w1")
        why = "role 1 (w1 on m1) was killed by signal 9"
    assert rig.heard() == {"w0": [Halt(1, why)]}
    assert rig.status() == "halting"
    rig.halted("w0", step=7)
    assert rig.told("decided") == ["step 7 begins again; state comes from a live replica"]
    assert rig.status() == "recovering"
    assert rig.heard() == {"w2": [Rehearse(1)]}
    rig.say("w2", Rehearsed(1))
    heard = rig.heard()
    (resume,) = heard["w0"]
    assert isinstance(resume, Resume)
    assert heard == {"w0": [resume], "w2": [resume]}
    assert (resume.roster.generation, resume.roster.seats, resume.roster.fresh) == (2, ("w0", "w2"), True)
    assert (resume.step, resume.moves) == (7, (Move(1, worker("w0", "m0"), worker("w2", "m2")),))
    rig.say("w2", Prepared(2, 0.25), Switched(2, 7, 0.5, 1000))
    assert rig.status() == "recovering"
    rig.say("w0", Prepared(2, 0.125), Switched(2, 7))
    assert rig.status() == "training"
    assert rig.seats() == ["w0", "w2"]
    assert rig.states() == {"m0": "active", "m1": "gone" if how == "machine" else "leaving", "m2": "active"}
    rig.settled()
    assert rig.states() == {"m0": "active", "m1": "gone" if how == "machine" else "standby", "m2": "active"}
    (settled,) = [event for event in rig.announcements if event.kind == "settled"]
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
    rig = Rig.training(machines=3)
    rig.exits("w2")
    for uid, (reached, voted) in zip(["w0", "w1"], reports, strict=True):
        assert rig.told("decided") == []
        rig.halted(uid, step=reached, voted=voted)
    assert rig.told("decided") == [f"{says}; state comes from 2 live replicas at once"]
    rig.orders()
    rig.rehearsed()
    resumes = {uid: message for uid, (message,) in rig.heard().items()}
    assert list(resumes) == ["w0", "w1", "w3"]
    assert all(isinstance(resume, Resume) and resume.step == step for resume in resumes.values())


LOST = "and there is no checkpoint; keep some with --checkpoint DIR"


def test_no_copy_is_left() -> None:
    rig = Rig.training(copies=False)
    rig.exits("w1")
    rig.halted("w0")
    why = "role 1 (w1 on m1) was killed by signal 9; role 1: no live replica holds its state"
    assert rig.job.reason == f"{why}, {LOST}"
    assert all(orders[-1] == Dismiss("the job has failed") for orders in rig.orders().values())


def test_the_only_machine_dies() -> None:
    rig = Rig.training(machines=1)
    rig.lose("m0")
    assert rig.job.reason == f"m0 is gone: no heartbeat; no worker that is left holds any state, {LOST}"


def test_a_standby_that_is_just_starting_is_waited_for() -> None:
    rig = Rig.training(standbys=0)
    rig.come("m2", standby=True)
    rig.exits("w1")
    rig.halted("w0")
    assert rig.status() == "halting"
    rig.orders()
    rig.here("m2")
    assert rig.heard() == {"w2": [Rehearse(1)]}


def test_another_one_dies_while_the_others_report() -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.exits("w2")
    rig.orders()
    rig.lose("m1")
    assert rig.orders() == {"m1": [Dismiss("no heartbeat", again=True)]}
    rig.halted("w0")
    mates = Roster.of(2, [(1, "w3"), (2, "w4")], [worker("w3", "m3"), worker("w4", "m4")], cells=(0, 1, 2))
    assert rig.heard() == {"w3": [Rehearse(1, None, mates)], "w4": [Rehearse(2, None, mates)]}
    assert rig.job.halts == 1


def test_the_stand_in_dies_in_its_rehearsal() -> None:
    rig = Rig.training(standbys=2)
    rig.exits("w1")
    rig.halted("w0")
    assert rig.change.places == {1: "m2", 0: "m0"}
    rig.orders()
    rig.lose("m2", "no power")
    assert rig.heard() == {"w0": [Halt(2, "m2 is gone: no power")]}
    rig.halted("w0")
    assert rig.heard() == {"w3": [Rehearse(1)]}
    rig.rehearsed()
    rig.all_switch()
    assert rig.seats() == ["w0", "w3"]


def test_a_joiner_that_needs_no_rehearsal_dies_while_another_one_rehearses() -> None:
    """m2 is halted just before it would enter; then its second worker is kept and the first one rehearses."""
    rig = Rig.training(nproc=2, standbys=1)
    rig.lose("m1")
    rig.halted("w0", "w1")
    rig.rehearsed()
    rig.exits("w4")
    rig.halted("w0", "w1")
    rig.halted("w5", step=0, holds=False, able=True)
    rig.here("m2")
    assert rig.change.joiners == {2: "w6"}
    assert rig.change.places == {0: "m0", 1: "m2"}
    rig.exits("w5")
    assert rig.status() == "halting"


def test_links_that_cannot_be_opened_after_a_failure_are_another_failure() -> None:
    rig = Rig.training()
    rig.exits("w1")
    rig.halted("w0")
    rig.rehearsed()
    rig.orders()
    rig.say("w2", Unprepared(2, "no route to w0"))
    why = "role 1 (w2 on m2): no route to w0"
    assert rig.heard() == {"w0": [Halt(2, why)], "w2": [Halt(2, why)]}
    rig.halted("w0")
    rig.halted("w2", step=0, holds=False)
    assert rig.status() == "recovering"
    assert rig.change.generation == 3  # a number is never used twice
    assert list(rig.heard()) == ["w0", "w2"]
    rig.all_switch()
    assert rig.seats() == ["w0", "w2"]


def test_an_interrupted_replacement_is_done_after_the_recovery() -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.replace("m1", until="armed")
    rig.lose("m2")
    assert rig.states()["m1"] == "active"
    rig.halted("w0", "w1")
    rig.halted("w3", step=0, holds=False)
    assert rig.change.places == {0: "m0", 1: "m1", 2: "m3"}  # it has rehearsed another role, m4 none
    rig.rehearsed()
    rig.all_switch()
    assert rig.seats() == ["w0", "w1", "w3"]
    assert rig.change.places == {1: "m4"}
    assert "r1" not in rig.job.answers


def test_the_first_worker_that_notices_a_failure_halts_all_workers() -> None:
    rig = Rig.training()
    rig.say("w0", Halted(0, 1, 5, False, True, how="eof", reason="w1 is gone", who="w1"))
    assert rig.heard() == {"w0": [Halt(1, "w1 is gone")], "w1": [Halt(1, "w1 is gone")]}
    rig.halted("w0", "w1")
    assert rig.told("decided") == ["step 5 begins again"]
    rig.all_switch()
    assert rig.seats() == ["w0", "w1"]  # it was a false alarm


def test_operations_that_do_not_match_end_the_job() -> None:
    rig = Rig.training()
    rig.say("w1", Halted(0, 1, 5, False, True, how="mismatch", reason="all_reduce of 3 and of 4 numbers"))
    assert rig.job.reason == "role 1 (w1 on m1) in step 5: all_reduce of 3 and of 4 numbers"


def test_a_failure_in_a_replacement_may_do_what_was_asked_for() -> None:
    """m1 dies while m2 rehearses its role: m2 takes it all the same."""
    rig = Rig.training()
    rig.replace(until="rehearse")
    rig.orders()
    rig.lose("m1")
    rig.halted("w0")
    assert rig.heard() == {"w0": [Halt(1, "m1 is gone: no heartbeat")]}  # m2 rehearses on
    rig.rehearsed()
    rig.all_switch()
    rig.settled()
    assert rig.seats() == ["w0", "w2"]
    assert rig.reply().ok
