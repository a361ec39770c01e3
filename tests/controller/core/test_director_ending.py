"""How a job ends: it is done, it is stopped, or its script does wrong."""

from __future__ import annotations

import pytest

from tests.controller.core.play import Play, Stage
from understudy.controller.core.events import AddStandby, RemoveStandby, Replace, Request, StopJob
from understudy.controller.core.state import OVER
from understudy.protocol.frames import Dismiss, EndWorker
from understudy.protocol.messages import Done, Failed, Finish, Halt, Halted, Stalled, Stop


def test_the_job_is_finished_when_the_last_role_is_done() -> None:
    play = Play.training(standbys=1)
    play.say("w0", Done(9, "aa"))
    play.exits("w0", 0)
    assert play.status() == "training"
    play.say("w1", Done(9, "bb"))
    assert play.status() == "finished"
    assert play.told("finished") == ["finished after 9 steps"]
    assert play.orders() == {f"m{number}": [Dismiss("the job is finished")] for number in range(3)}


def test_a_death_after_the_last_vote_is_no_reason_to_begin_again() -> None:
    play = Play.training(machines=3)
    play.say("w0", Done(9))
    play.exits("w0", 0)
    play.exits("w2")
    assert play.heard() == {"w1": [Halt(1, "role 2 (w2 on m2) was killed by signal 9")]}
    play.halted("w1", step=9)
    assert play.heard() == {"w1": [Finish()]}
    play.say("w1", Done(9))
    assert play.status() == "finished"


def test_a_survivor_that_saw_the_last_vote_ends_the_job_for_all() -> None:
    play = Play.training(machines=3)
    play.exits("w2")
    play.halted("w0", step=9)
    play.halted("w1", step=9, over=True)
    assert play.status() == "closing"
    play.orders()
    play.each(("w0", "w1"), Done(9))
    assert play.status() == "finished"


def test_the_last_ones_die_before_they_can_say_that_they_are_done() -> None:
    play = Play.training()
    play.exits("w1")
    play.halted("w0", step=9, over=True)
    assert play.status() == "closing"
    play.lose("m0")
    assert play.status() in OVER


def test_stop_before_the_start() -> None:
    play = Play(machines=2)
    play.come("m0")
    play.orders()
    assert play.at_once("r1", StopJob()) == (True, "the job had not begun")
    assert play.status() == "stopped"
    assert play.told("stopped") == ["stopped before the first step"]
    assert play.orders() == {"m0": [Dismiss("the job is stopped")]}


def test_stop_while_the_first_generation_opens() -> None:
    play = Play.opening()
    play.orders()
    play.ask("r1", StopJob())
    assert play.heard() == {"w0": [Stop()], "w1": [Stop()]}
    play.all_switch(step=0)
    play.each(("w0", "w1"), Done(0, stopped=True))
    assert play.status() == "stopped"


def test_stop_in_training() -> None:
    play = Play.training()
    assert play.at_once("r1", StopJob()) == (True, "the job stops at its next step boundary")
    assert play.heard() == {"w0": [Stop()], "w1": [Stop()]}
    play.say("w0", Done(5, stopped=True))
    assert play.status() == "training"
    play.say("w1", Done(5, stopped=True))
    assert play.status() == "stopped"
    assert play.told("stopped") == ["stopped after 5 steps"]


@pytest.mark.parametrize(
    ("until", "told"),
    [("rehearse", ["w0", "w1"]), ("prepare", ["w0", "w1", "w2"]), ("seated", ["w0", "w2"])],
)
def test_stop_in_a_replacement_answers_it(until: Stage, told: list[str]) -> None:
    play = Play.training()
    play.replace(until=until)
    play.orders()
    play.ask("r2", StopJob())
    assert play.heard() == {uid: [Stop()] for uid in told}
    play.each(play.seats(), Done(5, stopped=True))
    assert play.status() == "stopped"
    assert "r1" in play.job.answers
    assert play.reply().ok == (until == "seated")


def test_who_comes_into_a_job_that_is_to_stop_is_told_so() -> None:
    play = Play.training()
    play.replace(until="rehearse")
    play.ask("r2", StopJob())
    play.go_on("switch")
    play.orders()
    play.all_switch()
    assert play.heard() == {"w0": [Stop()], "w2": [Stop()]}


def test_a_stop_in_a_failure_is_not_forgotten() -> None:
    play = Play.training()
    play.exits("w1")
    play.ask("r1", StopJob())
    play.halted("w0")
    play.rehearsed()
    play.orders()
    play.all_switch()
    assert play.heard() == {"w0": [Stop()], "w2": [Stop()]}


@pytest.mark.parametrize("request_", [Replace(("m1",)), AddStandby(), RemoveStandby("m2"), StopJob()])
def test_nothing_is_done_when_all_is_over(request_: Request) -> None:
    play = Play.training(standbys=2)
    play.ask("r1", Replace(("m1",)))
    play.ask("r2", Replace(("m0",)))
    play.say("w0", Halted(0, 1, 3, False, True, how="mismatch", reason="all_reduce of 3 and of 4 numbers"))
    assert [play.reply(id).text for id in ("r1", "r2")] == ["the job has failed"] * 2
    play.orders()
    assert play.at_once("r3", request_) == (False, "the job is failed")
    assert play.orders() == {}


# -- scripts that do wrong ---------------------------------------------------------------------------------------------


ALL = (0, 1, 2)


def test_a_deadlock_names_both_places() -> None:
    play = Play.training(machines=3)
    play.each(("w0", "w1"), Stalled(1, ALL, 7, "waits in step 3 in all_reduce"))
    assert play.status() == "training"
    play.say("w2", Stalled(1, ALL, 8, "waits at the end of step 3"))
    assert play.status() == "failed"
    assert play.job.reason == (
        "role 0 (w0 on m0) waits in step 3 in all_reduce, while role 2 (w2 on m2) waits at the end of step 3: "
        "all roles must run the same steps and call the same operations in the same order"
    )


@pytest.mark.parametrize(
    "last",
    [
        Stalled(1, ALL, 7, "waits in step 3"),  # all in one operation: it is slow
        Stalled(1),  # it goes on
        Stalled(2, ALL, 8, "waits in step 3"),  # in another generation
    ],
)
def test_what_is_no_deadlock(last: Stalled) -> None:
    play = Play.training(machines=3)
    play.each(("w0", "w1"), Stalled(1, ALL, 7, "waits in step 3"))
    play.say("w2", last)
    assert play.status() == "training"


def test_who_went_on_does_not_wait_any_more() -> None:
    play = Play.training(machines=2)
    play.say("w0", Stalled(1, (0, 1), 7, "waits"), Stalled(1))
    play.say("w1", Stalled(1, (0, 1), 8, "waits"))
    assert play.status() == "training"


def recovers(play: Play, step: int) -> None:
    """Everybody who is left reports, and the next one takes the role."""
    play.halted(*sorted(play.job.unreported), step=step)
    for name in play.change.places.values():
        play.here(name)
    play.rehearsed()
    play.all_switch(step)
    assert play.status() == "training"


def test_a_script_that_raises_in_a_step_is_given_another_worker_and_ends_the_job_the_second_time() -> None:
    play = Play.training(standbys=2)
    play.say("w1", Failed(3, "ValueError: no more data"))
    assert (play.status(), play.job.reason) == ("halting", "")
    assert play.orders()["m1"] == [EndWorker("w1")]
    assert play.told("died") == ["role 1 (w1 on m1) failed in step 3: ValueError: no more data"]
    assert play.signals() == [("script", "halt")]
    recovers(play, step=3)
    assert play.seats() == ["w0", "w2"]
    play.say("w2", Failed(3, "ValueError: no more data"))
    assert play.status() == "halting"
    play.halted("w0", step=3)
    assert play.job.reason == "role 1 (w2 on m2) failed in step 3: ValueError: no more data"
    assert play.told("failed") == [play.job.reason]


@pytest.mark.parametrize(("first", "second"), [((1, 3), (1, 4)), ((1, 3), (0, 3))])
def test_a_script_that_raises_elsewhere_is_given_another_chance(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    play = Play.training(standbys=2)
    for role, step in (first, second):
        play.say(play.seats()[role], Failed(step, "ValueError: no more data"))
        recovers(play, step)
    assert play.job.reason == ""


def test_a_script_that_raises_although_it_has_made_all_steps_has_failed() -> None:
    """Nobody could make the steps again: the others' work is done."""
    play = Play.training()
    play.say("w0", Done(9))
    play.say("w1", Failed(9, "OSError: no space left"))
    assert play.job.reason == "role 1 (w1 on m1) failed in step 9: OSError: no space left"


def test_a_script_that_raises_before_its_first_step_ends_the_job() -> None:
    play = Play.opening(standbys=1)
    play.all_switch(step=0)
    play.say("w1", Failed(0, "OSError: no such dataset"))
    assert play.job.reason == "role 1 (w1 on m1) failed in step 0: OSError: no such dataset"


def test_a_script_that_raises_in_a_rehearsal_does_not() -> None:
    play = Play.training()
    play.replace(until="rehearse")
    play.say("w2", Failed(0, "OSError: no such dataset here"))
    assert play.told("rehearsal") == ["w2 on m2 (rehearsing role 1) failed: OSError: no such dataset here"]
    assert play.status() == "training"
    play.exits("w2", 1)
    assert play.status() == "training"
    assert play.states()["m1"] == "active"
    assert play.told("cancelled") == ["w2 on m2 (rehearsing role 1) ended with exit code 1"]


@pytest.mark.parametrize("until", ["prepare", "armed"])
@pytest.mark.parametrize("how", ["failed", "exited"])
def test_a_newcomer_that_ends_before_the_switch_does_not_either(until: Stage, how: str) -> None:
    play = Play.training()
    play.replace(until=until)
    if how == "failed":
        play.say("w2", Failed(0, "MemoryError"))
    play.exits("w2", 1)
    assert (play.status(), play.job.reason) == ("training", "")
    assert play.phase() == "cancel"


def test_a_worker_that_ends_by_itself_is_followed_by_another_one_once() -> None:
    play = Play.training(standbys=2)
    play.exits("w1", 3, "a\nSystemExit: 3\n")
    assert play.signals() == [("script", "halt")]
    recovers(play, step=5)
    play.exits("w2", 3, "a\nSystemExit: 3\n")
    play.halted("w0", step=5)
    assert play.job.reason == "role 1 (w2 on m2) ended with exit code 3 before the job was over: SystemExit: 3"


def test_a_worker_that_ends_without_a_reason_ends_the_job() -> None:
    """It was not asked to, and would do it again."""
    play = Play.training()
    play.exits("w1", 0)
    assert play.job.reason == "role 1 (w1 on m1) ended with exit code 0 before the job was over"
