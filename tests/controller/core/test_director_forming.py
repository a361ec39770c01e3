"""How a company comes together: the start of a job, machines that come again, and standbys."""

from __future__ import annotations

import pytest

from tests.controller.core.play import Play, worker
from understudy.controller.core.events import AddStandby, Event, Lost, Overdue, RemoveStandby, Replace, Reported
from understudy.controller.core.state import STUBBORN
from understudy.protocol.frames import Dismiss, EndWorker, Exited, StartWorker, Tell
from understudy.protocol.messages import Cancelled, Done, Halt, Halted, Here, Rehearse, Rehearsed, Resume, Switched
from understudy.protocol.roster import Roster
from understudy.protocol.settings import NoStandby


def test_a_machine_is_told_to_start_its_workers() -> None:
    play = Play(machines=2, nproc=2)
    play.come("m0")
    play.come("m1")
    assert play.orders() == {
        "m0": [StartWorker("w0", 0), StartWorker("w1", 1)],
        "m1": [StartWorker("w2", 0), StartWorker("w3", 1)],
    }


def test_it_starts_when_the_last_worker_is_here() -> None:
    play = Play(machines=2, nproc=2)
    for name in ("m0", "m1"):
        play.come(name)
    for uid, name in [("w3", "m1"), ("w0", "m0"), ("w2", "m1")]:
        play.say(uid, Here(worker(uid, name)))
        assert play.heard() == {}
    play.say("w1", Here(worker("w1", "m0")))
    homes = [("w0", "m0"), ("w1", "m0"), ("w2", "m1"), ("w3", "m1")]
    roster = Roster.of(1, enumerate(["w0", "w1", "w2", "w3"]), [worker(*home) for home in homes], cells=(0, 0, 1, 1))
    assert play.heard() == {f"w{role}": [Resume(roster, 0)] for role in range(4)}
    for role in range(4):
        assert play.status() == "forming"
        play.say(f"w{role}", Switched(1, 0))
    assert play.status() == "training"
    assert play.told("seated") == ["m0 has roles 0 to 1", "m1 has roles 2 to 3"]


def test_it_waits_for_all_machines_and_not_for_standbys() -> None:
    play = Play(machines=2)
    play.come("m0")
    play.here("m0")
    play.come("m2", standby=True)
    play.here("m2")
    assert play.heard() == {}
    play.come("m1")
    play.come("m3", standby=True)
    play.here("m1")
    assert list(play.heard()) == ["w0", "w2"]


def test_roles_go_by_the_machines_names_and_not_by_who_came_first() -> None:
    play = Play(machines=3)
    for name in ("m10", "m2", "m1"):
        play.come(name)
        play.here(name)
    roster = play.change.roster
    assert roster is not None
    assert [player.machine for role in range(3) if (player := roster.worker_of(role))] == ["m1", "m2", "m10"]


def test_who_comes_when_all_seats_are_taken_waits() -> None:
    play = Play(machines=1)
    play.come("m0")
    play.come("m1")
    assert play.states() == {"m0": "active", "m1": "standby"}


def test_a_machine_that_cannot_start_fails_the_job_with_its_name() -> None:
    play = Play(machines=2)
    play.come("m0")
    play.orders()
    play.feed(Lost("m1", "", "no space left"))
    assert play.status() == "failed"
    assert play.job.reason == "m1 could not start: no space left"
    assert play.orders() == {"m0": [Dismiss("the job has failed")]}


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
def test_who_dies_before_the_start_fails_the_job(event: Event, reason: str) -> None:
    play = Play(machines=2)
    play.come("m0")
    play.come("m1")
    play.feed(event)
    assert (play.status(), play.job.reason) == ("failed", reason)


def test_a_worker_that_is_killed_before_the_start_is_started_again() -> None:
    play = Play(machines=2)
    play.come("m0")
    play.come("m1")
    play.here("m0")
    play.orders()
    play.exits("w1")
    assert play.orders() == {"m1": [StartWorker("w2", 0)]}
    play.here("m1")
    assert list(play.heard()) == ["w0", "w2"]


def test_a_worker_that_is_killed_before_the_start_again_and_again_fails_the_job() -> None:
    play = Play(machines=2)
    play.come("m0")
    play.come("m1")
    for uid in ("w1", "w2", "w3"):
        assert play.status() == "forming"
        play.exits(uid)
    assert play.job.reason == "w3 on m1 was killed by signal 9 while the job was starting"


def test_a_standby_takes_the_place_of_a_machine_that_is_lost_before_the_start() -> None:
    play = Play(machines=2)
    play.come("m0")
    play.here("m0")
    play.come("m1")
    play.come("m2", standby=True)
    play.here("m2")
    play.lose("m1")
    assert play.states() == {"m0": "active", "m1": "gone", "m2": "active"}
    assert list(play.heard()) == ["w0", "w2"]


# -- before anything was computed --------------------------------------------------------------------------------------


def opening_fails(play: Play) -> None:
    """w1 dies while the first generation opens."""
    play.exits("w1")
    assert play.status() == "halting"
    play.orders()
    play.say("w0", Halted(play.job.halts, 0, 0, False, False))


def test_a_death_while_the_first_generation_opens_begins_the_job_anew() -> None:
    play = Play.opening()
    opening_fails(play)
    assert play.status() == "forming"
    assert play.told("decided") == ["no step was made yet: all begin anew"]
    assert play.orders() == {"m0": [EndWorker("w0"), StartWorker("w2", 0)], "m1": [StartWorker("w3", 0)]}
    play.here("m0")
    assert play.heard() == {}
    play.here("m1")
    roster = play.change.roster
    assert roster is not None
    assert (roster.generation, roster.seats) == (2, ("w2", "w3"))
    assert list(play.heard()) == ["w2", "w3"]
    play.all_switch(step=0)
    assert play.status() == "training"


def test_a_death_before_the_first_step_is_done_anywhere_begins_the_job_anew() -> None:
    """All have switched, and nobody has come to its first boundary."""
    play = Play.opening()
    play.all_switch(step=0)
    play.exits("w1")
    play.halted("w0", step=0, holds=False)
    assert (play.status(), play.job.restarts) == ("forming", 1)
    assert play.job.roster is None


def test_a_standby_takes_the_place_of_a_machine_that_is_lost_while_the_first_generation_opens() -> None:
    play = Play.opening(standbys=1)
    play.lose("m1")
    play.orders()
    play.say("w0", Halted(1, 0, 0, False, False))
    assert play.states() == {"m0": "active", "m1": "gone", "m2": "active"}
    assert play.orders() == {"m0": [EndWorker("w0"), StartWorker("w3", 0)]}  # m2's worker knows no role yet
    play.here("m0")
    assert list(play.heard()) == ["w2", "w3"]


@pytest.mark.parametrize("scarcity", ["wait", "stop"])
def test_a_machine_that_is_lost_while_the_first_generation_opens_is_waited_for(scarcity: NoStandby) -> None:
    play = Play.opening(no_standby=scarcity)
    play.lose("m1")
    play.say("w0", Halted(1, 0, 0, False, False))
    why = "m1 is gone: no heartbeat; the job has not begun, and there is no standby"
    if scarcity == "stop":
        assert (play.status(), play.job.reason) == ("failed", why)
        return
    assert (play.status(), play.job.waiting) == ("forming", why)
    assert play.told("waiting") == [f"{why}: it waits for one; add one with: understudy standby add"]
    assert play.told("wanted") == ["1 standby machine wanted"]
    play.here("m0")
    play.come("m5", standby=True)
    play.here("m5")
    play.all_switch(step=0)
    assert (play.status(), play.job.waiting) == ("training", "")
    assert play.states() == {"m0": "active", "m1": "gone", "m5": "active"}


def test_a_machine_that_does_not_come_before_the_start_is_not_waited_for_for_ever() -> None:
    play = Play.opening()
    play.lose("m1")
    play.say("w0", Halted(1, 0, 0, False, False))
    play.here("m0")
    play.expires("patience")
    why = "m1 is gone: no heartbeat; the job has not begun, and there is no standby"
    assert play.job.reason == f"{why}, and none has come in 600 s"


def test_a_machine_that_was_asked_for_already_is_not_waited_for_for_ever_either() -> None:
    play = Play.opening()
    play.ask("r1", AddStandby())
    play.lose("m1")
    play.say("w0", Halted(1, 0, 0, False, False))
    play.here("m0")
    assert play.told("wanted") == ["1 standby machine wanted"]
    why = "m1 is gone: no heartbeat; the job has not begun, and there is no standby"
    assert play.told("waiting") == [f"{why}: it waits for one; add one with: understudy standby add"]
    play.expires("patience")
    assert play.job.reason == f"{why}, and none has come in 600 s"


def test_a_job_that_begins_anew_again_and_again_is_given_up() -> None:
    play = Play.opening(quarantine=99)
    for start in range(STUBBORN + 1):
        assert play.job.restarts == start
        roster = play.change.roster
        assert roster is not None
        first, second = roster.seats
        play.exits(str(second))
        play.say(str(first), Halted(play.job.halts, 0, 0, False, False))
        if start < STUBBORN:
            play.here("m0")
            play.here("m1")
    why = "role 1 (w17 on m1) was killed by signal 9; no worker that is left holds any state"
    assert play.job.reason == f"{why}, and there is no checkpoint; keep some with --checkpoint DIR"


def test_a_standbys_worker_that_is_killed_before_the_start_is_started_again() -> None:
    play = Play(machines=1)
    play.come("m1", standby=True)
    play.orders()
    play.exits("w0")
    assert play.status() == "forming"
    assert play.orders() == {"m1": [StartWorker("w1", 0)]}


def test_a_standby_that_is_lost_before_the_start_is_nobodys_loss() -> None:
    play = Play(machines=1)
    play.come("m1", standby=True)
    play.lose("m1")
    play.come("m0")
    play.here("m0")
    assert (play.status(), play.job.reason) == ("forming", "")
    assert list(play.heard()) == ["w1"]


# -- an agent that is started again ------------------------------------------------------------------------------------


def test_a_machine_that_plays_and_comes_again_is_a_standby_for_its_own_roles() -> None:
    play = Play.training(standbys=0)
    play.come("m1", incarnation="m1-b")
    assert play.orders() == {
        "m0": [Tell("w0", Halt(1, "m1 is gone: its agent was started again"))],
        "m1": [StartWorker("w2", 0)],
    }
    play.halted("w0")
    assert play.status() == "halting"
    play.here("m1")
    assert play.heard() == {"w2": [Rehearse(1)]}
    play.rehearsed()
    play.all_switch()
    assert play.seats() == ["w0", "w2"]
    assert play.states() == {"m0": "active", "m1": "active"}
    assert play.job.machines["m1"].incarnation == "m1-b"


def test_a_standby_that_comes_again_while_it_rehearses() -> None:
    play = Play.training(standbys=1)
    play.replace(until="rehearse")
    play.orders()
    play.come("m2", incarnation="m2-b")
    assert play.status() == "training"
    play.orders()
    assert not play.phase()
    play.here("m2")
    assert play.heard() == {"w3": [Rehearse(1)]}
    play.go_on("settled")
    assert play.reply().ok
    assert play.seats() == ["w0", "w3"]


def test_who_was_replaced_may_come_again_as_a_standby() -> None:
    play = Play.training()
    play.replace()
    play.come("m1", incarnation="m1-b")
    play.here("m1")
    assert play.states() == {"m0": "active", "m1": "standby", "m2": "active"}
    play.replace("m2", id="r2")
    assert play.reply("r2").ok
    assert play.seats() == ["w0", "w3"]


def test_who_comes_when_all_is_over_is_sent_away() -> None:
    play = Play.training()
    play.each(("w0", "w1"), Done(9))
    play.orders()
    play.come("m7", standby=True)
    assert play.orders() == {"m7": [Dismiss("the job is finished")]}


# -- standbys ----------------------------------------------------------------------------------------------------------


def test_a_standby_that_is_asked_for_is_waited_for() -> None:
    play = Play.training(standbys=0)
    assert play.at_once("r0", AddStandby(2)) == (True, "2 more asked for")
    assert [(event.text, event.data) for event in play.announcements if event.kind == "wanted"] == [
        ("2 standby machines wanted", {"count": 2})
    ]
    assert play.ask("r1", Replace(("m1",))) is None
    play.come("m2", standby=True)
    assert play.job.wanted == 1
    play.here("m2")
    play.go_on("settled")
    assert play.reply().ok


def test_a_standby_that_was_asked_for_and_cannot_start_is_not_waited_for() -> None:
    play = Play.training(standbys=0)
    play.ask("r0", AddStandby())
    assert play.ask("r1", Replace(("m1",))) is None
    play.feed(Lost("m2", "", "its agent ended with exit code 1"))
    assert play.told("lost") == ["m2 could not start: its agent ended with exit code 1"]
    assert play.job.wanted == 0
    assert not play.reply().ok


@pytest.mark.parametrize("count", [0, -1])
def test_no_standby_or_less_cannot_be_added(count: int) -> None:
    play = Play.training()
    assert play.at_once("r1", AddStandby(count)) == (False, f"{count} standbys cannot be added; ask for at least one")
    assert play.job.wanted == 0


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
    play = Play.training(standbys=2)
    play.replace(until="rehearse")
    play.orders()
    assert play.at_once("r2", RemoveStandby(name)) == (ok, says)
    assert play.orders() == ({"m3": [Dismiss("an operator has removed it")]} if ok else {})


def test_a_standby_that_has_rehearsed_another_role_rehearses_again() -> None:
    play = Play.training(standbys=1)
    play.replace(until="rehearse", by=90.0)
    play.say("w2", Rehearsed(1))
    play.feed(Overdue("r1"))
    play.each(("w0", "w1", "w2"), Cancelled(2))
    play.orders()
    assert play.ask("r2", Replace(("m0",))) is None
    assert play.heard() == {"w2": [Rehearse(0)]}
    play.say("w2", Rehearsed(1))  # said before it heard that
    assert play.phase() == "rehearse"
    play.say("w2", Rehearsed(0))
    assert play.phase() == "prepare"
