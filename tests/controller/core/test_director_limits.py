"""Those who do not answer: nobody is waited for without a limit, and whoever is too late is ended and replaced."""

from __future__ import annotations

import pytest

from tests.controller.core.play import Play
from understudy.controller.core.events import Expired
from understudy.protocol.frames import EndWorker, StartWorker, Tell
from understudy.protocol.messages import Cancelled, Done, Finish, Halt, Halted, Rehearse, Rehearsed, Stalled, Switched


def kinds(play: Play) -> list[str]:
    return [event.what for _, event in play.director.due() if isinstance(event, Expired)]


def test_training_has_no_limit_of_its_own() -> None:
    """The workers watch their collectives and steps by themselves."""
    assert kinds(Play.training()) == []


# -- start -------------------------------------------------------------------------------------------------------------


def test_a_worker_that_does_not_come_is_started_again() -> None:
    play = Play(machines=2)
    play.come("m0")
    play.here("m0")
    play.come("m1")
    play.orders()
    play.expires("start")
    assert play.told("died") == ["w1 on m1 has not come for 900 s; it is ended"]
    assert play.signals() == [("limit", "note")]
    assert play.orders() == {"m1": [EndWorker("w1"), StartWorker("w2", 0)]}
    play.here("m1")
    assert list(play.heard()) == ["w0", "w2"]


def test_a_standbys_worker_that_does_not_come_is_started_again() -> None:
    play = Play.training(standbys=0)
    play.come("m2", standby=True)
    play.orders()
    play.expires("start")
    assert play.status() == "training"
    assert play.orders() == {"m2": [EndWorker("w2"), StartWorker("w3", 0)]}


def test_a_worker_that_has_come_in_time_is_left_alone() -> None:
    play = Play(machines=1)
    play.come("m0")
    late = play.due("start")
    play.here("m0")
    assert "start" not in kinds(play)
    play.orders()
    play.feed(late)
    assert play.orders() == {}


# -- answer ------------------------------------------------------------------------------------------------------------


def test_a_survivor_that_does_not_answer_the_halt_is_replaced_too() -> None:
    play = Play.training(machines=3, standbys=2)
    play.lose("m2")
    play.halted("w0")
    play.orders()
    play.expires("answer")
    assert play.told("died") == ["role 1 (w1 on m1) has not answered for 10 s; it is ended"]
    assert play.signals() == [("heartbeat", "halt"), ("limit", "note")]
    orders = play.orders()
    assert orders["m1"] == [EndWorker("w1")]
    assert play.change.joiners == {1: "w3", 2: "w4"}
    assert play.job.halts == 1


def test_all_have_answered_in_time() -> None:
    play = Play.training(machines=3, standbys=1)
    play.lose("m2")
    late = play.due("answer")
    play.halted("w0", "w1")
    assert "answer" not in kinds(play)
    play.orders()
    play.feed(late)
    assert play.orders() == {}
    assert play.status() == "recovering"


def test_the_limit_of_an_earlier_halt_says_nothing_about_this_one() -> None:
    play = Play.training(standbys=2)
    play.exits("w1")
    late = play.due("answer")
    play.halted("w0")
    play.lose("m2")
    assert play.job.halts == 2
    play.orders()
    play.feed(late)
    assert play.orders() == {}
    assert play.job.unreported == {"w0"}


# -- rehearse ----------------------------------------------------------------------------------------------------------


def test_a_newcomer_that_rehearses_for_too_long_is_followed_by_the_next_one() -> None:
    play = Play.training(standbys=2)
    play.replace(until="rehearse")
    play.orders()
    play.expires("rehearse")
    assert play.told("cancelled") == ["w2 on m2 (rehearsing role 1) has rehearsed for 900 s"]
    assert play.signals() == [("limit", "cancel")]
    assert play.orders() == {"m2": [EndWorker("w2"), StartWorker("w4", 0)], "m3": [Tell("w3", Rehearse(1))]}
    assert play.change.joiners == {1: "w3"}
    play.go_on("settled")
    assert play.reply().ok


def test_a_limit_of_the_first_attempt_does_not_end_the_second() -> None:
    play = Play.training(standbys=2)
    play.replace(until="rehearse")
    late = play.due("rehearse")
    play.lose("m2")
    assert play.change.joiners == {1: "w3"}
    play.orders()
    play.feed(late)
    assert play.orders() == {}
    assert play.change.joiners == {1: "w3"}


def test_a_stand_in_that_rehearses_for_too_long_after_a_failure_is_another_failure() -> None:
    play = Play.training(standbys=2)
    play.lose("m1")
    play.halted("w0")
    play.orders()
    play.expires("rehearse")
    why = "w2 on m2 (rehearsing role 1) has rehearsed for 900 s"
    assert play.heard() == {"w0": [Halt(2, why)]}
    assert play.signals()[-1] == ("limit", "halt")
    play.halted("w0")
    assert play.heard() == {"w3": [Rehearse(1)]}


def test_only_those_who_rehearse_too_long_are_ended() -> None:
    play = Play.training(nproc=2, standbys=1)
    play.replace(until="rehearse")
    play.say("w4", Rehearsed(2))
    play.orders()
    play.expires("rehearse")
    assert [order for order in play.orders()["m2"] if isinstance(order, EndWorker)] == [EndWorker("w5")]


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_who_does_not_say_that_it_has_given_up_is_replaced() -> None:
    """Nobody knows whether it has switched."""
    play = Play.training(standbys=2)
    play.replace(until="prepare")
    play.lose("m2")
    play.say("w1", Cancelled(2))
    play.orders()
    play.expires("cancel")
    assert play.status() == "halting"
    assert play.told("died") == ["role 0 (w0 on m0) has not answered for 10 s; it is ended"]
    assert list(play.heard()) == ["w1"]
    play.halted("w1")
    assert play.change.joiners == {0: "w3"}
    play.rehearsed()
    play.all_switch()
    assert play.status() == "training"


# -- switch ------------------------------------------------------------------------------------------------------------


def test_who_does_not_enter_the_first_generation_is_started_anew() -> None:
    play = Play.opening()
    play.say("w0", Switched(1, 0))
    play.orders()
    play.expires("switch")
    assert play.told("died") == ["role 1 (w1 on m1) has not come to the boundary within 300 s; it is ended"]
    assert play.heard() == {"w0": [Halt(1, "role 1 (w1 on m1) has not come to the boundary within 300 s")]}
    play.halted("w0", step=0, holds=False)
    assert play.status() == "forming"


def test_a_survivor_that_does_not_come_to_the_boundary_after_a_failure_is_replaced() -> None:
    play = Play.training(machines=3, standbys=2)
    play.lose("m2")
    play.halted("w0", "w1")
    play.rehearsed()
    play.say("w0", Switched(2, 5))
    play.orders()
    play.expires("switch")
    assert play.told("died") == ["role 1 (w1 on m1) has not come to the boundary within 300 s; it is ended"]
    assert sorted(play.heard()) == ["w0", "w3"]
    assert play.job.workers["w3"].alive  # it waits for its state


def test_a_hand_over_that_takes_too_long_is_tried_again() -> None:
    """Nobody but the newcomer is missing, and whether it or its giver is to blame the next halt will tell."""
    play = Play.training(standbys=1)
    play.lose("m1")
    play.halted("w0")
    play.rehearsed()
    play.say("w0", Switched(2, 5))
    play.orders()
    play.expires("switch")
    why = "the hand-over took longer than 300 s"
    assert play.heard() == {"w0": [Halt(2, why)], "w2": [Halt(2, why)]}
    assert play.told("died") == []
    play.halted("w0")
    play.expires("answer")
    assert play.told("died") == ["role 1 (w2 on m2) has not answered for 10 s; it is ended"]


def test_a_planned_switch_is_left_to_the_vote() -> None:
    play = Play.training()
    play.replace(until="switch")
    assert kinds(play) == []


def test_a_switch_that_came_in_time() -> None:
    play = Play.opening()
    late = play.due("switch")
    play.all_switch(step=0)
    play.orders()
    play.feed(late)
    assert play.orders() == {}
    assert play.status() == "training"


# -- end ---------------------------------------------------------------------------------------------------------------


def test_who_does_not_end_after_the_others_is_ended() -> None:
    play = Play.training()
    play.say("w0", Done(9))
    play.orders()
    play.expires("end")
    assert play.told("died") == ["role 1 (w1 on m1) has not ended within 300 s after the others; it is ended"]
    assert play.status() == "finished"


def test_who_was_told_to_finish_and_does_not_is_ended() -> None:
    play = Play.training(machines=3)
    play.say("w0", Done(9))
    play.exits("w2")
    play.halted("w1", step=9)
    assert play.heard()["w1"][-1] == Finish()
    play.expires("end")
    assert play.told("died")[-1] == "role 1 (w1 on m1) has not ended within 300 s after the others; it is ended"
    assert play.status() == "finished"


def test_nothing_is_due_when_the_job_is_over() -> None:
    play = Play.training()
    play.each(("w0", "w1"), Done(9))
    assert play.status() == "finished"
    assert kinds(play) == []


# -- time-outs and stopped processes -----------------------------------------------------------------------------------


ALL = (0, 1, 2)


def timeout(play: Play, uid: str) -> None:
    play.say(uid, Halted(0, 1, 5, False, True, how="timeout", reason="all_reduce took longer than 300 s"))


def test_after_a_time_out_those_who_did_not_wait_are_ended() -> None:
    play = Play.training(machines=3)
    play.each(("w0", "w1"), Stalled(1, ALL, 7, "waits in step 5"))
    play.orders()
    timeout(play, "w0")
    assert play.signals() == [("limit", "halt"), ("limit", "note")]
    assert play.told("died") == ["role 2 (w2 on m2) keeps the others waiting; it is ended"]
    assert play.orders()["m2"] == [Tell("w2", Halt(1, "all_reduce took longer than 300 s")), EndWorker("w2")]
    play.halted("w0", "w1")
    assert play.change.joiners == {2: "w3"}


@pytest.mark.parametrize(
    "waiting",
    [
        [],  # nobody has said where it waits: nobody is to blame
        [("w0", 1), ("w1", 1), ("w2", 1)],  # all wait
        [("w0", 9), ("w1", 9)],  # in another generation
    ],
)
def test_after_a_time_out_nobody_is_ended_where_nobody_stands_out(waiting: list[tuple[str, int]]) -> None:
    play = Play.training(machines=3)
    for uid, generation in waiting:
        play.say(uid, Stalled(generation, ALL, 7, "waits in step 5"))
    timeout(play, "w0")
    assert play.status() == "halting"
    assert play.told("died") == []
    assert play.job.unreported == {"w0", "w1", "w2"}


def test_who_went_on_in_the_meantime_is_what_the_others_wait_for() -> None:
    play = Play.training(machines=3)
    play.each(("w0", "w1", "w2"), Stalled(1, ALL, 7, "waits in step 5"))
    play.say("w1", Stalled(1))
    timeout(play, "w0")
    assert play.told("died") == ["role 1 (w1 on m1) keeps the others waiting; it is ended"]


def test_a_broken_link_is_no_time_out() -> None:
    play = Play.training(machines=3)
    play.each(("w0", "w1"), Stalled(1, ALL, 7, "waits in step 5"))
    play.say("w0", Halted(0, 1, 5, False, True, how="eof", reason="w2 is gone", who="w2"))
    assert play.signals() == [("link", "halt")]
    assert play.told("died") == []


def test_a_player_that_a_signal_has_stopped_is_ended_and_replaced() -> None:
    play = Play.training()
    play.stopped("w1", 10.4)
    assert play.told("died") == ["role 1 (w1 on m1) has been stopped by a signal for 10 s; it is ended"]
    assert play.signals() == [("limit", "halt")]
    assert play.orders()["m1"] == [EndWorker("w1")]
    play.halted("w0")
    assert play.heard() == {"w2": [Rehearse(1)]}
    play.say("w1", Halted(1, 1, 9, False, True))  # it goes on after all
    assert play.told("decided") == ["step 5 begins again; state comes from a live replica"]


def test_a_standby_that_a_signal_has_stopped_is_started_again() -> None:
    play = Play.training()
    play.stopped("w2")
    assert play.status() == "training"
    assert play.signals() == [("limit", "nothing")]
    assert play.orders() == {"m2": [EndWorker("w2"), StartWorker("w3", 0)]}
