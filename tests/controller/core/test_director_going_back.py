"""A role's state is lost with all its replicas: everybody goes back to what was kept, in memory or on disk."""

from __future__ import annotations

import pytest

from tests.controller.core.play import Play, worker
from understudy.controller.core.state import STUBBORN
from understudy.protocol.messages import Failed, Halt, Move, Rehearse, Resume, Saved, Unprepared


def saved(play: Play, *steps: int, roles: tuple[int, ...] = ()) -> None:
    for role, uid in enumerate(play.seats()):
        if not roles or role in roles:
            play.say(uid, *(Saved(role, step) for step in steps))


def resumes(play: Play) -> dict[str, Resume]:
    found = {}
    for uid, words in play.heard().items():
        (found[uid],) = [word for word in words if isinstance(word, Resume)]
    return found


def test_all_go_back_to_the_checkpoint_and_nobody_gives_anything() -> None:
    play = Play.training(copies=False)
    saved(play, 3, 6)
    play.lose("m1")
    play.halted("w0", step=8)
    why = "role 1: no live replica holds its state: all go back to the checkpoint of step 6, 2 steps are made again"
    assert play.told("decided") == [why]
    (decided,) = [event for event in play.announcements if event.kind == "decided"]
    assert decided.data == {"step": 6, "missing": [1], "roles": [1], "source": "checkpoint", "repeated": 2}
    assert play.heard()["w2"] == [Rehearse(1)]
    play.rehearsed()
    told = resumes(play)
    assert list(told) == ["w0", "w2"]
    assert {(resume.step, resume.back, resume.moves) for resume in told.values()} == {(6, "checkpoint", ())}
    play.all_switch(step=6)
    assert play.seats() == ["w0", "w2"]
    assert play.status() == "training"


def test_a_checkpoint_counts_when_all_roles_have_written_their_part() -> None:
    play = Play.training(copies=False)
    saved(play, 3)
    saved(play, 6, roles=(0,))
    play.lose("m1")
    play.halted("w0", step=8)
    assert play.change.step == 3
    assert "5 steps are made again" in play.told("decided")[0]


def test_a_live_replica_comes_before_a_checkpoint() -> None:
    play = Play.training()
    saved(play, 5)
    play.lose("m1")
    play.halted("w0", step=5)
    assert (play.change.step, play.change.back) == (5, "")


def test_the_only_machine_comes_back_to_the_checkpoint() -> None:
    """Nobody is left who could report."""
    play = Play.training(machines=1)
    saved(play, 3)
    play.lose("m0")
    assert play.told("decided") == ["no worker that is left holds any state: all go back to the checkpoint of step 3"]
    assert play.heard()["w1"] == [Rehearse(0)]
    play.rehearsed()
    assert [resume.back for resume in resumes(play).values()] == ["checkpoint"]


def test_copies_in_memory_are_given_to_those_who_have_none() -> None:
    """w0 keeps role 1's copy of step 4 beside its own."""
    play = Play.training(copies=False)
    saved(play, 3)
    play.lose("m1")
    play.halted("w0", step=6, kept=((0, 4), (1, 4)))
    why = (
        "role 1: no live replica holds its state: all go back to the copies of step 4 in memory, 2 steps are made again"
    )
    assert play.told("decided") == [why]
    play.rehearsed()
    told = resumes(play)
    assert {(resume.step, resume.back) for resume in told.values()} == {(4, "copy")}
    assert told["w2"].moves == (Move(1, worker("w0", "m0"), worker("w2", "m2"), copy_of=1),)


def test_a_checkpoint_that_is_newer_comes_before_copies_in_memory() -> None:
    play = Play.training(copies=False)
    saved(play, 5)
    play.lose("m1")
    play.halted("w0", step=6, kept=((0, 4), (1, 4)))
    assert (play.change.step, play.change.back) == (5, "checkpoint")


def test_a_failure_on_the_way_back() -> None:
    """w0 has not got its state back yet: it holds none, and can be given one."""
    play = Play.training(copies=False, standbys=2)
    saved(play, 3)
    play.lose("m1")
    play.halted("w0")
    play.rehearsed()
    play.orders()
    play.lose("m2")
    assert play.heard() == {"w0": [Halt(2, "m2 is gone: no heartbeat")]}
    play.halted("w0", step=5, holds=False, able=True)
    assert (play.change.step, play.change.back, play.change.joiners) == (3, "checkpoint", {1: "w3"})
    assert play.change.places[0] == "m0"
    play.rehearsed()
    assert list(resumes(play)) == ["w0", "w3"]
    play.all_switch(step=3)
    assert play.seats() == ["w0", "w3"]


def test_a_newcomer_that_lives_is_not_started_again_on_the_way_back() -> None:
    """A link could not be opened, and nobody has died."""
    play = Play.training(copies=False, standbys=1)
    saved(play, 3)
    play.lose("m1")
    play.halted("w0")
    play.rehearsed()
    play.say("w0", Unprepared(2, "no route to w2"))
    play.orders()
    play.halted("w0", step=3)
    play.halted("w2", step=0, holds=False, able=True)
    told = resumes(play)
    assert list(told) == ["w0", "w2"]
    assert {(resume.step, resume.back, resume.roster.generation) for resume in told.values()} == {(3, "checkpoint", 3)}


def test_a_script_that_fails_where_all_would_have_to_go_back_has_no_excuse_without_a_checkpoint() -> None:
    play = Play.training(copies=False)
    play.say("w1", Failed(5, "ValueError: no"))
    play.halted("w0")
    assert play.job.reason == "role 1 (w1 on m1) failed in step 5: ValueError: no"


def test_a_script_that_fails_is_tried_again_from_the_checkpoint() -> None:
    play = Play.training(copies=False, standbys=2)
    saved(play, 3)
    for uid in ("w1", "w2"):
        play.say(uid, Failed(5, "ValueError: no"))
        assert play.status() == "halting"
        play.halted("w0", step=5)
        if uid == "w1":
            play.rehearsed()
            play.all_switch(step=3)
    assert play.job.reason == "role 1 (w2 on m2) failed in step 5: ValueError: no"


def test_a_newcomer_whose_state_is_from_the_checkpoint_may_fail_once_like_everybody() -> None:
    play = Play.training(copies=False, standbys=2)
    saved(play, 3)
    play.lose("m1")
    play.halted("w0")
    play.rehearsed()
    play.all_switch(step=3)
    assert play.job.workers["w2"].holds
    play.say("w2", Failed(5, "ValueError: no"))
    assert (play.status(), play.job.reason) == ("halting", "")


def test_a_script_that_fails_in_two_steps_after_one_checkpoint_is_tried_again_each_time() -> None:
    play = Play.training(copies=False, standbys=2)
    saved(play, 3)
    for uid, step in (("w1", 5), ("w2", 6)):
        play.say(uid, Failed(step, "ConnectionError: no answer"))
        play.halted("w0", step=step)
        play.rehearsed()
        play.all_switch(step=3)
    assert play.status() == "training"


def test_a_role_that_dies_again_and_again_in_one_step_is_given_up() -> None:
    play = Play.training(standbys=0, quarantine=99)
    for _ in range(STUBBORN):
        play.exits(play.seats()[1])
        play.halted("w0")
        play.here("m1")
        play.rehearsed()
        play.all_switch()
        assert play.status() == "training"
    play.exits(play.seats()[1])
    play.halted("w0")
    assert play.job.reason.endswith(f"was killed by signal 9; role 1 died {STUBBORN} times in step 5")


def test_a_role_that_dies_in_one_step_after_the_other_is_not() -> None:
    play = Play.training(standbys=0, quarantine=99)
    for step in range(5, 5 + STUBBORN + 2):
        play.exits(play.seats()[1])
        play.halted("w0", step=step)
        play.here("m1")
        play.rehearsed()
        play.all_switch(step)
    assert play.status() == "training"


@pytest.mark.parametrize("begun", [False, True])
def test_what_has_begun_does_not_begin_anew(begun: bool) -> None:
    play = Play.training(copies=False) if begun else Play.opening(standbys=1)
    if not begun:
        play.all_switch(step=0)
    play.lose("m1")
    play.halted("w0", step=0, holds=begun)
    assert play.status() == ("failed" if begun else "forming")
    assert play.job.restarts == (0 if begun else 1)
