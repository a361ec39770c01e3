"""A role's state is lost with all its copies: all workers go back to a backup copy or a checkpoint."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig, worker
from understudy.controller.core.state import STUBBORN
from understudy.protocol.messages import Failed, Halt, Move, Rehearse, Resume, Saved, Unprepared


def saved(rig: Rig, *steps: int, roles: tuple[int, ...] = ()) -> None:
    for role, uid in enumerate(rig.seats()):
        if not roles or role in roles:
            rig.say(uid, *(Saved(role, step) for step in steps))


def resumes(rig: Rig) -> dict[str, Resume]:
    found = {}
    for uid, words in rig.heard().items():
        (found[uid],) = [word for word in words if isinstance(word, Resume)]
    return found


def test_all_workers_go_back_to_the_checkpoint_without_a_hand_over() -> None:
    rig = Rig.training(copies=False)
    saved(rig, 3, 6)
    rig.lose("m1")
    rig.halted("w0", step=8)
    why = "role 1: no live replica holds its state: all go back to the checkpoint of step 6, 2 steps are made again"
    assert rig.told("decided") == [why]
    (decided,) = [event for event in rig.announcements if event.kind == "decided"]
    assert decided.data == {"step": 6, "missing": [1], "roles": [1], "source": "checkpoint", "repeated": 2}
    assert rig.heard()["w2"] == [Rehearse(1)]
    rig.rehearsed()
    told = resumes(rig)
    assert list(told) == ["w0", "w2"]
    assert {(resume.step, resume.back, resume.moves) for resume in told.values()} == {(6, "checkpoint", ())}
    rig.all_switch(step=6)
    assert rig.seats() == ["w0", "w2"]
    assert rig.status() == "training"


def test_a_checkpoint_counts_when_all_roles_have_written_their_part() -> None:
    rig = Rig.training(copies=False)
    saved(rig, 3)
    saved(rig, 6, roles=(0,))
    rig.lose("m1")
    rig.halted("w0", step=8)
    assert rig.change.step == 3
    assert "5 steps are made again" in rig.told("decided")[0]


def test_a_live_replica_comes_before_a_checkpoint() -> None:
    rig = Rig.training()
    saved(rig, 5)
    rig.lose("m1")
    rig.halted("w0", step=5)
    assert (rig.change.step, rig.change.back) == (5, "")


def test_the_only_machine_comes_back_to_the_checkpoint() -> None:
    """No worker is left to report."""
    rig = Rig.training(machines=1)
    saved(rig, 3)
    rig.lose("m0")
    assert rig.told("decided") == ["no worker that is left holds any state: all go back to the checkpoint of step 3"]
    assert rig.heard()["w1"] == [Rehearse(0)]
    rig.rehearsed()
    assert [resume.back for resume in resumes(rig).values()] == ["checkpoint"]


def test_copies_in_memory_are_given_to_workers_without_one() -> None:
    """w0 keeps role 1's copy of step 4 beside its own."""
    rig = Rig.training(copies=False)
    saved(rig, 3)
    rig.lose("m1")
    rig.halted("w0", step=6, kept=((0, 4), (1, 4)))
    why = (
        "role 1: no live replica holds its state: all go back to the copies of step 4 in memory, 2 steps are made again"
    )
    assert rig.told("decided") == [why]
    rig.rehearsed()
    told = resumes(rig)
    assert {(resume.step, resume.back) for resume in told.values()} == {(4, "copy")}
    assert told["w2"].moves == (Move(1, worker("w0", "m0"), worker("w2", "m2"), copy_of=1),)


def test_a_checkpoint_that_is_newer_comes_before_copies_in_memory() -> None:
    rig = Rig.training(copies=False)
    saved(rig, 5)
    rig.lose("m1")
    rig.halted("w0", step=6, kept=((0, 4), (1, 4)))
    assert (rig.change.step, rig.change.back) == (5, "checkpoint")


def test_a_failure_on_the_way_back() -> None:
    """w0 has not got its state back yet: it holds none, and can be given one."""
    rig = Rig.training(copies=False, standbys=2)
    saved(rig, 3)
    rig.lose("m1")
    rig.halted("w0")
    rig.rehearsed()
    rig.orders()
    rig.lose("m2")
    assert rig.heard() == {"w0": [Halt(2, "m2 is gone: no heartbeat")]}
    rig.halted("w0", step=5, holds=False, able=True)
    assert (rig.change.step, rig.change.back, rig.change.joiners) == (3, "checkpoint", {1: "w3"})
    assert rig.change.places[0] == "m0"
    rig.rehearsed()
    assert list(resumes(rig)) == ["w0", "w3"]
    rig.all_switch(step=3)
    assert rig.seats() == ["w0", "w3"]


def test_a_live_joiner_is_not_started_again_when_the_job_goes_back() -> None:
    """A link could not be opened, and no worker has died."""
    rig = Rig.training(copies=False, standbys=1)
    saved(rig, 3)
    rig.lose("m1")
    rig.halted("w0")
    rig.rehearsed()
    rig.say("w0", Unprepared(2, "no route to w2"))
    rig.orders()
    rig.halted("w0", step=3)
    rig.halted("w2", step=0, holds=False, able=True)
    told = resumes(rig)
    assert list(told) == ["w0", "w2"]
    assert {(resume.step, resume.back, resume.roster.generation) for resume in told.values()} == {(3, "checkpoint", 3)}


def test_a_script_failure_that_loses_state_fails_the_job_without_a_checkpoint() -> None:
    rig = Rig.training(copies=False)
    rig.say("w1", Failed(5, "ValueError: no"))
    rig.halted("w0")
    assert rig.job.reason == "role 1 (w1 on m1) failed in step 5: ValueError: no"


def test_a_script_that_fails_is_tried_again_from_the_checkpoint() -> None:
    rig = Rig.training(copies=False, standbys=2)
    saved(rig, 3)
    for uid in ("w1", "w2"):
        rig.say(uid, Failed(5, "ValueError: no"))
        assert rig.status() == "halting"
        rig.halted("w0", step=5)
        if uid == "w1":
            rig.rehearsed()
            rig.all_switch(step=3)
    assert rig.job.reason == "role 1 (w2 on m2) failed in step 5: ValueError: no"


def test_a_joiner_with_state_from_the_checkpoint_may_fail_once_like_any_worker() -> None:
    rig = Rig.training(copies=False, standbys=2)
    saved(rig, 3)
    rig.lose("m1")
    rig.halted("w0")
    rig.rehearsed()
    rig.all_switch(step=3)
    assert rig.job.workers["w2"].holds
    rig.say("w2", Failed(5, "ValueError: no"))
    assert (rig.status(), rig.job.reason) == ("halting", "")


def test_a_script_that_fails_in_two_steps_after_one_checkpoint_is_tried_again_each_time() -> None:
    rig = Rig.training(copies=False, standbys=2)
    saved(rig, 3)
    for uid, step in (("w1", 5), ("w2", 6)):
        rig.say(uid, Failed(step, "ConnectionError: no answer"))
        rig.halted("w0", step=step)
        rig.rehearsed()
        rig.all_switch(step=3)
    assert rig.status() == "training"


def test_a_role_that_dies_again_and_again_in_one_step_is_given_up() -> None:
    rig = Rig.training(standbys=0, quarantine=99)
    for _ in range(STUBBORN):
        rig.exits(rig.seats()[1])
        rig.halted("w0")
        rig.here("m1")
        rig.rehearsed()
        rig.all_switch()
        assert rig.status() == "training"
    rig.exits(rig.seats()[1])
    rig.halted("w0")
    assert rig.job.reason.endswith(f"was killed by signal 9; role 1 died {STUBBORN} times in step 5")


def test_a_role_that_dies_in_one_step_after_the_other_is_not() -> None:
    rig = Rig.training(standbys=0, quarantine=99)
    for step in range(5, 5 + STUBBORN + 2):
        rig.exits(rig.seats()[1])
        rig.halted("w0", step=step)
        rig.here("m1")
        rig.rehearsed()
        rig.all_switch(step)
    assert rig.status() == "training"


def test_before_the_first_step_a_job_begins_anew() -> None:
    rig = Rig.opening(standbys=1)
    rig.all_switch(step=0)
    rig.lose("m1")
    rig.halted("w0", step=0, holds=False)
    assert rig.status() == "forming"
    assert rig.job.restarts == 1


@pytest.mark.parametrize(("step", "holds", "anew"), [(2, True, True), (3, True, False), (0, False, False)])
def test_only_before_states_are_compared_a_job_that_has_begun_begins_anew(step: int, holds: bool, anew: bool) -> None:
    """A survivor that holds no state does not know how far the job has come."""
    rig = Rig.training(copies=False)
    rig.lose("m1")
    rig.halted("w0", step=step, holds=holds)
    assert rig.status() == ("forming" if anew else "failed")
    assert rig.job.restarts == int(anew)
