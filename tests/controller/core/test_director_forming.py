"""How a job forms: the start of a job, machines that come again, and standbys."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig, worker
from understudy.controller.core.events import AddStandby, Event, Lost, Overdue, RemoveStandby, Replace, Reported
from understudy.controller.core.state import STUBBORN, FailureCause
from understudy.protocol.frames import Dismiss, EndWorker, Exited, StartWorker, Tell
from understudy.protocol.messages import Cancelled, Done, Halt, Halted, Here, Rehearse, Rehearsed, Resume, Switched
from understudy.protocol.roster import Roster
from understudy.protocol.settings import NoStandby


def test_a_machine_is_told_to_start_its_workers() -> None:
    rig = Rig(machines=2, nproc=2)
    rig.come("m0")
    rig.come("m1")
    assert rig.orders() == {
        "m0": [StartWorker("w0", 0), StartWorker("w1", 1)],
        "m1": [StartWorker("w2", 0), StartWorker("w3", 1)],
    }


def test_a_job_starts_when_the_last_worker_is_here() -> None:
    rig = Rig(machines=2, nproc=2)
    for name in ("m0", "m1"):
        rig.come(name)
    for uid, name in [("w3", "m1"), ("w0", "m0"), ("w2", "m1")]:
        rig.say(uid, Here(worker(uid, name)))
        assert rig.heard() == {}
    rig.say("w1", Here(worker("w1", "m0")))
    homes = [("w0", "m0"), ("w1", "m0"), ("w2", "m1"), ("w3", "m1")]
    roster = Roster.of(1, enumerate(["w0", "w1", "w2", "w3"]), [worker(*home) for home in homes], cells=(0, 0, 1, 1))
    assert rig.heard() == {f"w{role}": [Resume(roster, 0)] for role in range(4)}
    for role in range(4):
        assert rig.status() == "forming"
        rig.say(f"w{role}", Switched(1, 0))
    assert rig.status() == "training"
    assert rig.told("seated") == ["m0 has roles 0 to 1", "m1 has roles 2 to 3"]


def test_a_job_waits_for_all_machines_and_not_for_standbys() -> None:
    rig = Rig(machines=2)
    rig.come("m0")
    rig.here("m0")
    rig.come("m2", standby=True)
    rig.here("m2")
    assert rig.heard() == {}
    rig.come("m1")
    rig.come("m3", standby=True)
    rig.here("m1")
    assert list(rig.heard()) == ["w0", "w2"]


def test_roles_are_given_by_the_names_of_machines_and_not_by_their_arrival() -> None:
    rig = Rig(machines=3)
    for name in ("m10", "m2", "m1"):
        rig.come(name)
        rig.here(name)
    roster = rig.change.roster
    assert roster is not None
    assert [found.machine for role in range(3) if (found := roster.worker_of(role))] == ["m1", "m2", "m10"]


def test_a_machine_that_comes_when_all_roles_are_taken_is_a_standby() -> None:
    rig = Rig(machines=1)
    rig.come("m0")
    rig.come("m1")
    assert rig.states() == {"m0": "active", "m1": "standby"}


def test_a_machine_that_cannot_start_fails_the_job_with_its_name() -> None:
    rig = Rig(machines=2)
    rig.come("m0")
    rig.orders()
    rig.feed(Lost("m1", "", "no space left"))
    assert rig.status() == "failed"
    assert rig.job.reason == "m1 could not start: no space left"
    assert rig.orders() == {"m0": [Dismiss("the job has failed")]}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Lost("m1", "m1-a", "no heartbeat"), "m1 is gone: no heartbeat while the job was starting"),
        (
            Reported("m1", "m1-a", 1, Exited("w1", 1, "Traceback\nImportError: no torch\n")),
            "w1 on m1 ended with exit code 1 before the job was over: ImportError: no torch",
        ),
        (
            Reported("m1", "m1-a", 1, Exited("w1", 0, "hello")),
            "w1 on m1 ended with exit code 0 before the job was over; let the script call understudy.run(train)",
        ),
    ],
    ids=["machine", "raised", "returned"],
)
def test_a_death_before_the_start_fails_the_job(event: Event, reason: str) -> None:
    rig = Rig(machines=2)
    rig.come("m0")
    rig.come("m1")
    rig.feed(event)
    assert (rig.status(), rig.job.reason) == ("failed", reason)


def test_a_worker_that_is_killed_before_the_start_is_started_again() -> None:
    rig = Rig(machines=2)
    rig.come("m0")
    rig.come("m1")
    rig.here("m0")
    rig.orders()
    rig.exits("w1")
    assert rig.orders() == {"m1": [StartWorker("w2", 0)]}
    rig.here("m1")
    assert list(rig.heard()) == ["w0", "w2"]


def test_a_worker_that_is_killed_before_the_start_again_and_again_fails_the_job() -> None:
    rig = Rig(machines=2)
    rig.come("m0")
    rig.come("m1")
    for uid in ("w1", "w2", "w3"):
        assert rig.status() == "forming"
        rig.exits(uid)
    assert rig.job.reason == "w3 on m1 was killed by signal 9 while the job was starting"


def test_a_standby_takes_the_place_of_a_machine_that_is_lost_before_the_start() -> None:
    rig = Rig(machines=2)
    rig.come("m0")
    rig.here("m0")
    rig.come("m1")
    rig.come("m2", standby=True)
    rig.here("m2")
    rig.lose("m1")
    assert rig.states() == {"m0": "active", "m1": "gone", "m2": "active"}
    assert list(rig.heard()) == ["w0", "w2"]


# -- before anything was computed --------------------------------------------------------------------------------------


def opening_fails(rig: Rig) -> None:
    """w1 dies while the first generation opens."""
    rig.exits("w1")
    assert rig.status() == "halting"
    rig.orders()
    rig.say("w0", Halted(rig.job.halts, 0, 0, False, False))


def test_a_death_while_the_first_generation_opens_begins_the_job_anew() -> None:
    rig = Rig.opening()
    opening_fails(rig)
    assert rig.status() == "forming"
    assert rig.told("decided") == ["no step was made yet: all begin anew"]
    assert rig.orders() == {"m0": [EndWorker("w0"), StartWorker("w2", 0)], "m1": [StartWorker("w3", 0)]}
    rig.here("m0")
    assert rig.heard() == {}
    rig.here("m1")
    roster = rig.change.roster
    assert roster is not None
    assert (roster.generation, roster.seats) == (2, ("w2", "w3"))
    assert list(rig.heard()) == ["w2", "w3"]
    rig.all_switch(step=0)
    assert rig.status() == "training"


def test_a_death_before_the_first_step_is_done_anywhere_begins_the_job_anew() -> None:
    """All workers have switched, and none has come to its first boundary."""
    rig = Rig.opening()
    rig.all_switch(step=0)
    rig.exits("w1")
    rig.halted("w0", step=0, holds=False)
    assert (rig.status(), rig.job.restarts) == ("forming", 1)
    assert rig.job.roster is None


def test_a_standby_takes_the_place_of_a_machine_that_is_lost_while_the_first_generation_opens() -> None:
    rig = Rig.opening(standbys=1)
    rig.lose("m1")
    rig.orders()
    rig.say("w0", Halted(1, 0, 0, False, False))
    assert rig.states() == {"m0": "active", "m1": "gone", "m2": "active"}
    assert rig.orders() == {"m0": [EndWorker("w0"), StartWorker("w3", 0)]}  # m2's worker knows no role yet
    rig.here("m0")
    assert list(rig.heard()) == ["w2", "w3"]


@pytest.mark.parametrize("scarcity", ["wait", "stop"])
def test_a_machine_that_is_lost_while_the_first_generation_opens_is_waited_for(scarcity: NoStandby) -> None:
    rig = Rig.opening(no_standby=scarcity)
    rig.lose("m1")
    rig.say("w0", Halted(1, 0, 0, False, False))
    why = "m1 is gone: no heartbeat; the job has not begun, and there is no standby"
    if scarcity == "stop":
        assert (rig.status(), rig.job.reason) == ("failed", why)
        return
    assert (rig.status(), rig.job.waiting) == ("forming", why)
    assert rig.told("waiting") == [f"{why}: it waits for one; add one with: understudy standby add"]
    assert rig.told("wanted") == ["1 standby machine wanted"]
    rig.here("m0")
    rig.come("m5", standby=True)
    rig.here("m5")
    rig.all_switch(step=0)
    assert (rig.status(), rig.job.waiting) == ("training", "")
    assert rig.states() == {"m0": "active", "m1": "gone", "m5": "active"}


def test_a_machine_that_does_not_come_before_the_start_is_not_waited_for_for_ever() -> None:
    rig = Rig.opening()
    rig.lose("m1")
    rig.say("w0", Halted(1, 0, 0, False, False))
    rig.here("m0")
    rig.expires("patience")
    why = "m1 is gone: no heartbeat; the job has not begun, and there is no standby"
    assert rig.job.reason == f"{why}, and none has come in 600 s"


def test_a_machine_that_was_asked_for_already_is_not_waited_for_for_ever_either() -> None:
    rig = Rig.opening()
    rig.ask("r1", AddStandby())
    rig.lose("m1")
    rig.say("w0", Halted(1, 0, 0, False, False))
    rig.here("m0")
    assert rig.told("wanted") == ["1 standby machine wanted"]
    why = "m1 is gone: no heartbeat; the job has not begun, and there is no standby"
    assert rig.told("waiting") == [f"{why}: it waits for one; add one with: understudy standby add"]
    rig.expires("patience")
    assert rig.job.reason == f"{why}, and none has come in 600 s"


def test_a_job_that_begins_anew_again_and_again_is_given_up() -> None:
    rig = Rig.opening(quarantine=99)
    for start in range(STUBBORN + 1):
        assert rig.job.restarts == start
        roster = rig.change.roster
        assert roster is not None
        first, second = roster.seats
        rig.exits(str(second))
        rig.say(str(first), Halted(rig.job.halts, 0, 0, False, False))
        if start < STUBBORN:
            rig.here("m0")
            rig.here("m1")
    assert rig.job.failure is FailureCause.DIED_AGAIN
    why = "role 1 (w17 on m1) was killed by signal 9; the job has begun anew 8 times and never made 2 steps"
    assert rig.job.reason == why


def test_a_standbys_worker_that_is_killed_before_the_start_is_started_again() -> None:
    rig = Rig(machines=1)
    rig.come("m1", standby=True)
    rig.orders()
    rig.exits("w0")
    assert rig.status() == "forming"
    assert rig.orders() == {"m1": [StartWorker("w1", 0)]}


def test_a_standby_that_is_lost_before_the_start_does_not_fail_the_job() -> None:
    rig = Rig(machines=1)
    rig.come("m1", standby=True)
    rig.lose("m1")
    rig.come("m0")
    rig.here("m0")
    assert (rig.status(), rig.job.reason) == ("forming", "")
    assert list(rig.heard()) == ["w1"]


# -- an agent that is started again ------------------------------------------------------------------------------------


def test_a_machine_with_roles_that_comes_again_is_a_standby_for_them() -> None:
    rig = Rig.training(standbys=0)
    rig.come("m1", incarnation="m1-b")
    assert rig.orders() == {
        "m0": [Tell("w0", Halt(1, "m1 is gone: its agent was started again"))],
        "m1": [StartWorker("w2", 0)],
    }
    rig.halted("w0")
    assert rig.status() == "halting"
    rig.here("m1")
    assert rig.heard() == {"w2": [Rehearse(1)]}
    rig.rehearsed()
    rig.all_switch()
    assert rig.seats() == ["w0", "w2"]
    assert rig.states() == {"m0": "active", "m1": "active"}
    assert rig.job.machines["m1"].incarnation == "m1-b"


def test_a_standby_that_comes_again_while_it_rehearses() -> None:
    rig = Rig.training(standbys=1)
    rig.replace(until="rehearse")
    rig.orders()
    rig.come("m2", incarnation="m2-b")
    assert rig.status() == "training"
    rig.orders()
    assert not rig.phase()
    rig.here("m2")
    assert rig.heard() == {"w3": [Rehearse(1)]}
    rig.go_on("settled")
    assert rig.reply().ok
    assert rig.seats() == ["w0", "w3"]


def test_a_machine_that_was_replaced_may_come_again_as_a_standby() -> None:
    rig = Rig.training()
    rig.replace()
    rig.come("m1", incarnation="m1-b")
    rig.here("m1")
    assert rig.states() == {"m0": "active", "m1": "standby", "m2": "active"}
    rig.replace("m2", id="r2")
    assert rig.reply("r2").ok
    assert rig.seats() == ["w0", "w3"]


def test_a_machine_that_comes_after_the_end_is_dismissed() -> None:
    rig = Rig.training()
    rig.each(("w0", "w1"), Done(9))
    rig.orders()
    rig.come("m7", standby=True)
    assert rig.orders() == {"m7": [Dismiss("the job is finished")]}


# -- standbys ----------------------------------------------------------------------------------------------------------


def test_a_standby_that_is_asked_for_is_waited_for() -> None:
    rig = Rig.training(standbys=0)
    assert rig.at_once("r0", AddStandby(2)) == (True, "2 more asked for")
    assert [(event.text, event.data) for event in rig.announcements if event.kind == "wanted"] == [
        ("2 standby machines wanted", {"count": 2})
    ]
    assert rig.ask("r1", Replace(("m1",))) is None
    rig.come("m2", standby=True)
    assert rig.job.wanted == 1
    rig.here("m2")
    rig.go_on("settled")
    assert rig.reply().ok


def test_a_standby_that_was_asked_for_and_cannot_start_is_not_waited_for() -> None:
    rig = Rig.training(standbys=0)
    rig.ask("r0", AddStandby())
    assert rig.ask("r1", Replace(("m1",))) is None
    rig.feed(Lost("m2", "", "its agent ended with exit code 1"))
    assert rig.told("lost") == ["m2 could not start: its agent ended with exit code 1"]
    assert rig.job.wanted == 0
    assert not rig.reply().ok


@pytest.mark.parametrize("count", [0, -1])
def test_no_standby_or_less_cannot_be_added(count: int) -> None:
    rig = Rig.training()
    assert rig.at_once("r1", AddStandby(count)) == (False, f"{count} standbys cannot be added; ask for at least one")
    assert rig.job.wanted == 0


@pytest.mark.parametrize(
    ("name", "ok", "says"),
    [
        ("m3", True, "m3 is dismissed"),
        ("m2", False, "m2 is about to take roles; wait until the replacement is over"),
        ("m1", False, "m1 is not a standby; standbys: m2, m3"),
        ("m9", False, "m9 is not a standby; standbys: m2, m3"),
    ],
)
def test_removing_a_standby(name: str, ok: bool, says: str) -> None:
    """While m2 takes the place of m1."""
    rig = Rig.training(standbys=2)
    rig.replace(until="rehearse")
    rig.orders()
    assert rig.at_once("r2", RemoveStandby(name)) == (ok, says)
    assert rig.orders() == ({"m3": [Dismiss("an operator has removed it")]} if ok else {})


def test_a_standby_that_has_rehearsed_another_role_rehearses_again() -> None:
    rig = Rig.training(standbys=1)
    rig.replace(until="rehearse", by=90.0)
    rig.say("w2", Rehearsed(1))
    rig.feed(Overdue("r1"))
    rig.each(("w0", "w1", "w2"), Cancelled(2))
    rig.orders()
    assert rig.ask("r2", Replace(("m0",))) is None
    assert rig.heard() == {"w2": [Rehearse(0)]}
    rig.say("w2", Rehearsed(1))  # said before it heard that
    assert rig.phase() == "rehearse"
    rig.say("w2", Rehearsed(0))
    assert rig.phase() == "prepare"
