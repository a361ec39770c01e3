"""How a job ends: all steps are done, an operator stops it, or its script fails."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig, Stage
from understudy.controller.core.events import AddStandby, RemoveStandby, Replace, Request, StopJob
from understudy.controller.core.state import OVER
from understudy.protocol.frames import Dismiss, EndWorker
from understudy.protocol.messages import Done, Failed, Finish, Halt, Halted, Stalled, Stop


def test_the_job_is_finished_when_the_last_role_is_done() -> None:
    rig = Rig.training(standbys=1)
    rig.say("w0", Done(9, "aa"))
    rig.exits("w0", 0)
    assert rig.status() == "training"
    rig.say("w1", Done(9, "bb"))
    assert rig.status() == "finished"
    assert rig.told("finished") == ["finished after 9 steps"]
    assert rig.orders() == {f"m{number}": [Dismiss("the job is finished")] for number in range(3)}


def test_a_death_after_the_last_vote_is_no_reason_to_begin_again() -> None:
    rig = Rig.training(machines=3)
    rig.say("w0", Done(9))
    rig.exits("w0", 0)
    rig.exits("w2")
    assert rig.heard() == {"w1": [Halt(1, "role 2 (w2 on m2) was killed by signal 9")]}
    rig.halted("w1", step=9)
    assert rig.heard() == {"w1": [Finish()]}
    rig.say("w1", Done(9))
    assert rig.status() == "finished"


def test_a_survivor_that_saw_the_last_vote_ends_the_job_for_all() -> None:
    rig = Rig.training(machines=3)
    rig.exits("w2")
    rig.halted("w0", step=9)
    rig.halted("w1", step=9, over=True)
    assert rig.status() == "closing"
    rig.orders()
    rig.each(("w0", "w1"), Done(9))
    assert rig.status() == "finished"


def test_the_last_ones_die_before_they_can_say_that_they_are_done() -> None:
    rig = Rig.training()
    rig.exits("w1")
    rig.halted("w0", step=9, over=True)
    assert rig.status() == "closing"
    rig.lose("m0")
    assert rig.status() in OVER


def test_stop_before_the_start() -> None:
    rig = Rig(machines=2)
    rig.come("m0")
    rig.orders()
    assert rig.at_once("r1", StopJob()) == (True, "the job had not begun")
    assert rig.status() == "stopped"
    assert rig.told("stopped") == ["stopped before the first step"]
    assert rig.orders() == {"m0": [Dismiss("the job is stopped")]}


def test_stop_while_the_first_generation_opens() -> None:
    rig = Rig.opening()
    rig.orders()
    rig.ask("r1", StopJob())
    assert rig.heard() == {"w0": [Stop()], "w1": [Stop()]}
    rig.all_switch(step=0)
    rig.each(("w0", "w1"), Done(0, stopped=True))
    assert rig.status() == "stopped"


def test_stop_in_training() -> None:
    rig = Rig.training()
    assert rig.at_once("r1", StopJob()) == (True, "the job stops at its next step boundary")
    assert rig.heard() == {"w0": [Stop()], "w1": [Stop()]}
    rig.say("w0", Done(5, stopped=True))
    assert rig.status() == "training"
    rig.say("w1", Done(5, stopped=True))
    assert rig.status() == "stopped"
    assert rig.told("stopped") == ["stopped after 5 steps"]


@pytest.mark.parametrize(
    ("until", "told"),
    [("rehearse", ["w0", "w1"]), ("prepare", ["w0", "w1", "w2"]), ("seated", ["w0", "w2"])],
)
def test_stop_in_a_replacement_answers_it(until: Stage, told: list[str]) -> None:
    rig = Rig.training()
    rig.replace(until=until)
    rig.orders()
    rig.ask("r2", StopJob())
    assert rig.heard() == {uid: [Stop()] for uid in told}
    rig.each(rig.seats(), Done(5, stopped=True))
    assert rig.status() == "stopped"
    assert "r1" in rig.job.answers
    assert rig.reply().ok == (until == "seated")


def test_a_joiner_of_a_job_that_is_to_stop_is_told_so() -> None:
    rig = Rig.training()
    rig.replace(until="rehearse")
    rig.ask("r2", StopJob())
    rig.go_on("switch")
    rig.orders()
    rig.all_switch()
    assert rig.heard() == {"w0": [Stop()], "w2": [Stop()]}


def test_a_stop_in_a_failure_is_not_forgotten() -> None:
    rig = Rig.training()
    rig.exits("w1")
    rig.ask("r1", StopJob())
    rig.halted("w0")
    rig.rehearsed()
    rig.orders()
    rig.all_switch()
    assert rig.heard() == {"w0": [Stop()], "w2": [Stop()]}


@pytest.mark.parametrize("request_", [Replace(("m1",)), AddStandby(), RemoveStandby("m2"), StopJob()])
def test_nothing_is_done_when_all_is_over(request_: Request) -> None:
    rig = Rig.training(standbys=2)
    rig.ask("r1", Replace(("m1",)))
    rig.ask("r2", Replace(("m0",)))
    rig.say("w0", Halted(0, 1, 3, False, True, how="mismatch", reason="all_reduce of 3 and of 4 numbers"))
    assert [rig.reply(id).text for id in ("r1", "r2")] == ["the job has failed"] * 2
    rig.orders()
    assert rig.at_once("r3", request_) == (False, "the job is failed")
    assert rig.orders() == {}


# -- scripts that do wrong ---------------------------------------------------------------------------------------------


ALL = (0, 1, 2)


def test_a_deadlock_names_both_places() -> None:
    rig = Rig.training(machines=3)
    rig.each(("w0", "w1"), Stalled(1, ALL, 7, "waits in step 3 in all_reduce"))
    assert rig.status() == "training"
    rig.say("w2", Stalled(1, ALL, 8, "waits at the end of step 3"))
    assert rig.status() == "failed"
    assert rig.job.reason == (
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
    rig = Rig.training(machines=3)
    rig.each(("w0", "w1"), Stalled(1, ALL, 7, "waits in step 3"))
    rig.say("w2", last)
    assert rig.status() == "training"


def test_a_worker_that_went_on_does_not_count_as_waiting() -> None:
    rig = Rig.training(machines=2)
    rig.say("w0", Stalled(1, (0, 1), 7, "waits"), Stalled(1))
    rig.say("w1", Stalled(1, (0, 1), 8, "waits"))
    assert rig.status() == "training"


def recovers(rig: Rig, step: int) -> None:
    """All live workers report, and the next standby takes the role."""
    rig.halted(*sorted(rig.job.unreported), step=step)
    for name in rig.change.places.values():
        rig.here(name)
    rig.rehearsed()
    rig.all_switch(step)
    assert rig.status() == "training"


def test_a_script_that_raises_in_a_step_is_given_another_worker_and_ends_the_job_the_second_time() -> None:
    rig = Rig.training(standbys=2)
    rig.say("w1", Failed(3, "ValueError: no more data"))
    assert (rig.status(), rig.job.reason) == ("halting", "")
    assert rig.orders()["m1"] == [EndWorker("w1")]
    assert rig.told("died") == ["role 1 (w1 on m1) failed in step 3: ValueError: no more data"]
    assert rig.signals() == [("script", "halt")]
    recovers(rig, step=3)
    assert rig.seats() == ["w0", "w2"]
    rig.say("w2", Failed(3, "ValueError: no more data"))
    assert rig.status() == "halting"
    rig.halted("w0", step=3)
    assert rig.job.reason == "role 1 (w2 on m2) failed in step 3: ValueError: no more data"
    assert rig.told("failed") == [rig.job.reason]


@pytest.mark.parametrize(("first", "second"), [((1, 3), (1, 4)), ((1, 3), (0, 3))])
def test_a_script_that_raises_elsewhere_is_given_another_chance(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    rig = Rig.training(standbys=2)
    for role, step in (first, second):
        rig.say(rig.seats()[role], Failed(step, "ValueError: no more data"))
        recovers(rig, step)
    assert rig.job.reason == ""


def test_a_script_that_raises_although_it_has_made_all_steps_has_failed() -> None:
    """The steps cannot be repeated: the other workers have ended."""
    rig = Rig.training()
    rig.say("w0", Done(9))
    rig.say("w1", Failed(9, "OSError: no space left"))
    assert rig.job.reason == "role 1 (w1 on m1) failed in step 9: OSError: no space left"


def test_a_script_that_raises_before_its_first_step_ends_the_job() -> None:
    rig = Rig.opening(standbys=1)
    rig.all_switch(step=0)
    rig.say("w1", Failed(0, "OSError: no such dataset"))
    assert rig.job.reason == "role 1 (w1 on m1) failed in step 0: OSError: no such dataset"


def test_a_script_that_raises_in_a_rehearsal_does_not() -> None:
    rig = Rig.training()
    rig.replace(until="rehearse")
    rig.say("w2", Failed(0, "OSError: no such dataset here"))
    assert rig.told("rehearsal") == ["w2 on m2 (rehearsing role 1) failed: OSError: no such dataset here"]
    assert rig.status() == "training"
    rig.exits("w2", 1)
    assert rig.status() == "training"
    assert rig.states()["m1"] == "active"
    assert rig.told("cancelled") == ["w2 on m2 (rehearsing role 1) ended with exit code 1"]


@pytest.mark.parametrize("until", ["prepare", "armed"])
@pytest.mark.parametrize("how", ["failed", "exited"])
def test_a_joiner_that_ends_before_the_switch_does_not_fail_the_job(until: Stage, how: str) -> None:
    rig = Rig.training()
    rig.replace(until=until)
    if how == "failed":
        rig.say("w2", Failed(0, "MemoryError"))
    rig.exits("w2", 1)
    assert (rig.status(), rig.job.reason) == ("training", "")
    assert rig.phase() == "cancel"


def test_a_worker_that_ends_by_itself_is_followed_by_another_one_once() -> None:
    rig = Rig.training(standbys=2)
    rig.exits("w1", 3, "a\nSystemExit: 3\n")
    assert rig.signals() == [("script", "halt")]
    recovers(rig, step=5)
    rig.exits("w2", 3, "a\nSystemExit: 3\n")
    rig.halted("w0", step=5)
    assert rig.job.reason == "role 1 (w2 on m2) ended with exit code 3 before the job was over: SystemExit: 3"


def test_a_worker_that_ends_without_a_reason_ends_the_job() -> None:
    """It was not asked to, and would do it again."""
    rig = Rig.training()
    rig.exits("w1", 0)
    assert rig.job.reason == "role 1 (w1 on m1) ended with exit code 0 before the job was over"
