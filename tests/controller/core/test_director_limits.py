"""Time limits: the director waits for no worker without a limit; a worker that is too late is ended and replaced."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig
from understudy.controller.core.events import Expired
from understudy.protocol.frames import EndWorker, StartWorker, Tell
from understudy.protocol.messages import Cancelled, Done, Finish, Halt, Halted, Rehearse, Rehearsed, Stalled, Switched


def kinds(rig: Rig) -> list[str]:
    return [event.what for _, event in rig.director.due() if isinstance(event, Expired)]


def test_training_has_no_limit_of_its_own() -> None:
    """The workers watch their collectives and steps by themselves."""
    assert kinds(Rig.training()) == []


# -- start -------------------------------------------------------------------------------------------------------------


def test_a_worker_that_does_not_come_is_started_again() -> None:
    rig = Rig(machines=2)
    rig.come("m0")
    rig.here("m0")
    rig.come("m1")
    rig.orders()
    rig.expires("start")
    assert rig.told("died") == ["w1 on m1 has not come for 900 s; it is ended"]
    assert rig.signals() == [("limit", "note")]
    assert rig.orders() == {"m1": [EndWorker("w1"), StartWorker("w2", 0)]}
    rig.here("m1")
    assert list(rig.heard()) == ["w0", "w2"]


def test_a_standbys_worker_that_does_not_come_is_started_again() -> None:
    rig = Rig.training(standbys=0)
    rig.come("m2", standby=True)
    rig.orders()
    rig.expires("start")
    assert rig.status() == "training"
    assert rig.orders() == {"m2": [EndWorker("w2"), StartWorker("w3", 0)]}


def test_a_worker_that_has_come_in_time_is_left_alone() -> None:
    rig = Rig(machines=1)
    rig.come("m0")
    late = rig.due("start")
    rig.here("m0")
    assert "start" not in kinds(rig)
    rig.orders()
    rig.feed(late)
    assert rig.orders() == {}


# -- answer ------------------------------------------------------------------------------------------------------------


def test_a_survivor_that_does_not_answer_the_halt_is_replaced_too() -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.lose("m2")
    rig.halted("w0")
    rig.orders()
    rig.expires("answer")
    assert rig.told("died") == ["role 1 (w1 on m1) has not answered for 10 s; it is ended"]
    assert rig.signals() == [("heartbeat", "halt"), ("limit", "note")]
    orders = rig.orders()
    assert orders["m1"] == [EndWorker("w1")]
    assert rig.change.joiners == {1: "w3", 2: "w4"}
    assert rig.job.halts == 1


def test_all_have_answered_in_time() -> None:
    rig = Rig.training(machines=3, standbys=1)
    rig.lose("m2")
    late = rig.due("answer")
    rig.halted("w0", "w1")
    assert "answer" not in kinds(rig)
    rig.orders()
    rig.feed(late)
    assert rig.orders() == {}
    assert rig.status() == "recovering"


def test_the_limit_of_an_earlier_halt_says_nothing_about_this_one() -> None:
    rig = Rig.training(standbys=2)
    rig.exits("w1")
    late = rig.due("answer")
    rig.halted("w0")
    rig.lose("m2")
    assert rig.job.halts == 2
    rig.orders()
    rig.feed(late)
    assert rig.orders() == {}
    assert rig.job.unreported == {"w0"}


# -- rehearse ----------------------------------------------------------------------------------------------------------


def test_a_joiner_that_rehearses_for_too_long_is_followed_by_the_next_one() -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until="rehearse")
    rig.orders()
    rig.expires("rehearse")
    assert rig.told("cancelled") == ["w2 on m2 (rehearsing role 1) has rehearsed for 900 s"]
    assert rig.signals() == [("limit", "cancel")]
    assert rig.orders() == {"m2": [EndWorker("w2"), StartWorker("w4", 0)], "m3": [Tell("w3", Rehearse(1))]}
    assert rig.change.joiners == {1: "w3"}
    rig.go_on("settled")
    assert rig.reply().ok


def test_a_limit_of_the_first_attempt_does_not_end_the_second() -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until="rehearse")
    late = rig.due("rehearse")
    rig.lose("m2")
    assert rig.change.joiners == {1: "w3"}
    rig.orders()
    rig.feed(late)
    assert rig.orders() == {}
    assert rig.change.joiners == {1: "w3"}


def test_a_stand_in_that_rehearses_for_too_long_after_a_failure_is_another_failure() -> None:
    rig = Rig.training(standbys=2)
    rig.lose("m1")
    rig.halted("w0")
    rig.orders()
    rig.expires("rehearse")
    why = "w2 on m2 (rehearsing role 1) has rehearsed for 900 s"
    assert rig.heard() == {"w0": [Halt(2, why)]}
    assert rig.signals()[-1] == ("limit", "halt")
    rig.halted("w0")
    assert rig.heard() == {"w3": [Rehearse(1)]}


def test_only_workers_that_rehearse_for_too_long_are_ended() -> None:
    rig = Rig.training(nproc=2, standbys=1)
    rig.replace(until="rehearse")
    rig.say("w4", Rehearsed(2))
    rig.orders()
    rig.expires("rehearse")
    assert [order for order in rig.orders()["m2"] if isinstance(order, EndWorker)] == [EndWorker("w5")]


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_a_worker_that_does_not_confirm_the_cancellation_is_replaced() -> None:
    """The director does not know whether the worker has switched."""
    rig = Rig.training(standbys=2)
    rig.replace(until="prepare")
    rig.lose("m2")
    rig.say("w1", Cancelled(2))
    rig.orders()
    rig.expires("cancel")
    assert rig.status() == "halting"
    assert rig.told("died") == ["role 0 (w0 on m0) has not answered for 10 s; it is ended"]
    assert list(rig.heard()) == ["w1"]
    rig.halted("w1")
    assert rig.change.joiners == {0: "w3"}
    rig.rehearsed()
    rig.all_switch()
    assert rig.status() == "training"


# -- switch ------------------------------------------------------------------------------------------------------------


def test_a_worker_that_does_not_enter_the_first_generation_is_started_anew() -> None:
    rig = Rig.opening()
    rig.say("w0", Switched(1, 0))
    rig.orders()
    rig.expires("switch")
    assert rig.told("died") == ["role 1 (w1 on m1) has not come to the boundary within 300 s; it is ended"]
    assert rig.heard() == {"w0": [Halt(1, "role 1 (w1 on m1) has not come to the boundary within 300 s")]}
    rig.halted("w0", step=0, holds=False)
    assert rig.status() == "forming"


def test_a_survivor_that_does_not_come_to_the_boundary_after_a_failure_is_replaced() -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.lose("m2")
    rig.halted("w0", "w1")
    rig.rehearsed()
    rig.say("w0", Switched(2, 5))
    rig.orders()
    rig.expires("switch")
    assert rig.told("died") == ["role 1 (w1 on m1) has not come to the boundary within 300 s; it is ended"]
    assert sorted(rig.heard()) == ["w0", "w3"]
    assert rig.job.workers["w3"].alive  # it waits for its state


def test_a_hand_over_that_takes_too_long_is_tried_again() -> None:
    """Only the joiner is missing. The reports to the next halt tell whether the joiner or its giver is to blame."""
    rig = Rig.training(standbys=1)
    rig.lose("m1")
    rig.halted("w0")
    rig.rehearsed()
    rig.say("w0", Switched(2, 5))
    rig.orders()
    rig.expires("switch")
    why = "the hand-over took longer than 300 s"
    assert rig.heard() == {"w0": [Halt(2, why)], "w2": [Halt(2, why)]}
    assert rig.told("died") == []
    rig.halted("w0")
    rig.expires("answer")
    assert rig.told("died") == ["role 1 (w2 on m2) has not answered for 10 s; it is ended"]


def test_a_planned_switch_is_left_to_the_vote() -> None:
    rig = Rig.training()
    rig.replace(until="switch")
    assert kinds(rig) == []


def test_a_switch_that_came_in_time() -> None:
    rig = Rig.opening()
    late = rig.due("switch")
    rig.all_switch(step=0)
    rig.orders()
    rig.feed(late)
    assert rig.orders() == {}
    assert rig.status() == "training"


# -- end ---------------------------------------------------------------------------------------------------------------


def test_a_worker_that_does_not_end_after_the_others_is_ended() -> None:
    rig = Rig.training()
    rig.say("w0", Done(9))
    rig.orders()
    rig.expires("end")
    assert rig.told("died") == ["role 1 (w1 on m1) has not ended within 300 s after the others; it is ended"]
    assert rig.status() == "finished"


def test_a_worker_that_was_told_to_finish_and_does_not_is_ended() -> None:
    rig = Rig.training(machines=3)
    rig.say("w0", Done(9))
    rig.exits("w2")
    rig.halted("w1", step=9)
    assert rig.heard()["w1"][-1] == Finish()
    rig.expires("end")
    assert rig.told("died")[-1] == "role 1 (w1 on m1) has not ended within 300 s after the others; it is ended"
    assert rig.status() == "finished"


def test_nothing_is_due_when_the_job_is_over() -> None:
    rig = Rig.training()
    rig.each(("w0", "w1"), Done(9))
    assert rig.status() == "finished"
    assert kinds(rig) == []


# -- time-outs and stopped processes -----------------------------------------------------------------------------------


ALL = (0, 1, 2)


def timeout(rig: Rig, uid: str) -> None:
    rig.say(uid, Halted(0, 1, 5, False, True, how="timeout", reason="all_reduce took longer than 300 s"))


def test_after_a_time_out_the_worker_that_did_not_wait_is_ended() -> None:
    rig = Rig.training(machines=3)
    rig.each(("w0", "w1"), Stalled(1, ALL, 7, "waits in step 5"))
    rig.orders()
    timeout(rig, "w0")
    assert rig.signals() == [("limit", "halt"), ("limit", "note")]
    assert rig.told("died") == ["role 2 (w2 on m2) keeps the others waiting; it is ended"]
    assert rig.orders()["m2"] == [Tell("w2", Halt(1, "all_reduce took longer than 300 s")), EndWorker("w2")]
    rig.halted("w0", "w1")
    assert rig.change.joiners == {2: "w3"}


@pytest.mark.parametrize(
    "waiting",
    [
        [],  # no worker has reported a wait: none is to blame
        [("w0", 1), ("w1", 1), ("w2", 1)],  # all wait
        [("w0", 9), ("w1", 9)],  # in another generation
    ],
)
def test_after_a_time_out_no_worker_is_ended_if_none_stands_out(waiting: list[tuple[str, int]]) -> None:
    rig = Rig.training(machines=3)
    for uid, generation in waiting:
        rig.say(uid, Stalled(generation, ALL, 7, "waits in step 5"))
    timeout(rig, "w0")
    assert rig.status() == "halting"
    assert rig.told("died") == []
    assert rig.job.unreported == {"w0", "w1", "w2"}


def test_a_worker_that_went_on_before_the_time_out_is_ended() -> None:
    rig = Rig.training(machines=3)
    rig.each(("w0", "w1", "w2"), Stalled(1, ALL, 7, "waits in step 5"))
    rig.say("w1", Stalled(1))
    timeout(rig, "w0")
    assert rig.told("died") == ["role 1 (w1 on m1) keeps the others waiting; it is ended"]


def test_a_broken_link_is_no_time_out() -> None:
    rig = Rig.training(machines=3)
    rig.each(("w0", "w1"), Stalled(1, ALL, 7, "waits in step 5"))
    rig.say("w0", Halted(0, 1, 5, False, True, how="eof", reason="w2 is gone", who="w2"))
    assert rig.signals() == [("link", "halt")]
    assert rig.told("died") == []


def test_a_worker_that_a_signal_has_stopped_is_ended_and_replaced() -> None:
    rig = Rig.training()
    rig.stopped("w1", 10.4)
    assert rig.told("died") == ["role 1 (w1 on m1) has been stopped by a signal for 10 s; it is ended"]
    assert rig.signals() == [("limit", "halt")]
    assert rig.orders()["m1"] == [EndWorker("w1")]
    rig.halted("w0")
    assert rig.heard() == {"w2": [Rehearse(1)]}
    rig.say("w1", Halted(1, 1, 9, False, True))  # it goes on after all
    assert rig.told("decided") == ["step 5 begins again; state comes from a live replica"]


def test_a_standby_that_a_signal_has_stopped_is_started_again() -> None:
    rig = Rig.training()
    rig.stopped("w2")
    assert rig.status() == "training"
    assert rig.signals() == [("limit", "nothing")]
    assert rig.orders() == {"m2": [EndWorker("w2"), StartWorker("w3", 0)]}
