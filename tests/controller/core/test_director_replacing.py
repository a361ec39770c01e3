"""Planned replacement: what each party is told, in which phase, and what the operator is answered."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import STAGES, Rig, Stage, worker
from understudy.controller.core.events import RemoveStandby, Replace
from understudy.protocol.frames import Dismiss
from understudy.protocol.messages import (
    Arm,
    Gave,
    Halt,
    Move,
    Prepare,
    Prepared,
    Rehearse,
    Rehearsed,
    Resume,
    Settled,
    Switched,
)
from understudy.protocol.roster import Roster

PHASES = ["rehearse", "prepare", "armed", "switch", "hand-over", "first step"]


def test_a_replacement_and_the_messages_to_all_workers() -> None:
    """Two machines of two workers; m2 takes the place of m1."""
    rig = Rig.training(machines=2, nproc=2)
    assert rig.ask("r1", Replace(("m1",))) is None
    mates = Roster.of(2, [(2, "w4"), (3, "w5")], [worker("w4", "m2"), worker("w5", "m2")], cells=(0, 0, 1, 1))
    assert rig.heard() == {"w4": [Rehearse(2, None, mates)], "w5": [Rehearse(3, None, mates)]}
    assert rig.states() == {"m0": "active", "m1": "leaving", "m2": "standby"}
    assert [(event.text, event.data) for event in rig.announcements if event.kind == "change"] == [
        ("m1 → m2", {"kind": "replace", "change": "r1"})
    ]

    rig.say("w5", Rehearsed(3))
    assert rig.heard() == {}
    rig.say("w4", Rehearsed(2))
    heard = rig.heard()
    (prepare,) = heard["w0"]
    assert isinstance(prepare, Prepare)
    assert heard == {f"w{number}": [prepare] for number in range(6)}
    assert prepare.roster.generation == 3
    assert prepare.roster.seats == ("w0", "w1", "w4", "w5")
    assert prepare.roster.since == (1, 1, 3, 3)
    assert not prepare.roster.fresh
    assert prepare.moves == (
        Move(2, worker("w2", "m1"), worker("w4", "m2")),
        Move(3, worker("w3", "m1"), worker("w5", "m2")),
    )

    for uid in ("w5", "w1", "w3", "w0", "w4"):
        rig.say(uid, Prepared(3))
        assert rig.heard() == {}
    rig.say("w2", Prepared(3))
    assert rig.heard() == {"w2": [Arm(3)], "w3": [Arm(3)]}
    assert rig.generation == 1

    rig.say("w0", Switched(3, 5))
    assert rig.phase() == "switch"
    assert rig.generation == 3
    rig.each(("w2", "w3"), Switched(3, 5), Gave(3))
    rig.say("w4", Switched(3, 5, 0.5, 1000))
    rig.say("w5", Switched(3, 5, 0.4, 2000, True))
    assert rig.phase()
    rig.say("w1", Switched(3, 5))
    assert not rig.phase()
    assert rig.states() == {"m0": "active", "m1": "leaving", "m2": "active"}
    assert rig.told("seated")[-1] == "m2 has roles 2 to 3"
    assert rig.orders() == {}
    assert "r1" not in rig.job.answers

    for uid, lost in [("w0", 0.1), ("w1", 0.3), ("w4", 0.2)]:
        rig.say(uid, Settled(3, 6, lost))
        assert rig.orders() == {}
    rig.say("w5", Settled(3, 6, 0.2))
    assert rig.orders() == {"m1": [Dismiss("it was replaced")]}
    reply = rig.reply()
    assert (reply.ok, reply.text) == (True, "training lost 0.300 s")
    assert (reply.data["lost"], reply.data["bytes"], reply.data["again"]) == (0.3, 3000, True)
    phases = reply.data["phases"]
    assert isinstance(phases, dict)
    assert list(phases) == rig.told("phase")[-6:] == PHASES
    assert phases["prepare"] == 6.0  # one event a second
    assert rig.status() == "training"
    assert rig.states() == {"m0": "active", "m1": "gone", "m2": "active"}


def test_two_machines_at_one_boundary() -> None:
    rig = Rig.training(machines=3, standbys=2)
    assert rig.ask("r1", Replace(("m2", "m0"), ("m3", "m4"))) is None
    mates = Roster.of(2, [(2, "w3"), (0, "w4")], [worker("w3", "m3"), worker("w4", "m4")], cells=(0, 1, 2))
    assert rig.heard() == {"w3": [Rehearse(2, None, mates)], "w4": [Rehearse(0, None, mates)]}
    rig.go_on("settled")
    assert rig.seats() == ["w4", "w1", "w3"]
    assert rig.reply().ok
    assert rig.states() == {"m0": "gone", "m1": "active", "m2": "gone", "m3": "active", "m4": "active"}


def test_a_replacement_with_the_world_stopped() -> None:
    """All workers wait for the rehearsal, and all links are opened anew."""
    rig = Rig.training()
    assert rig.ask("r1", Replace(("m1",), stop_the_world=True)) is None
    why = "m1 → m2, with the world stopped"
    assert rig.heard() == {"w0": [Halt(1, why)], "w1": [Halt(1, why)]}
    rig.halted("w0", "w1", step=5)
    assert rig.heard() == {"w2": [Rehearse(1)]}
    rig.rehearsed()
    heard = rig.heard()
    (resume,) = heard["w1"]
    assert isinstance(resume, Resume)
    assert list(heard) == ["w0", "w1", "w2"]
    assert (resume.roster.seats, resume.roster.fresh) == (("w0", "w2"), True)
    assert resume.moves == (Move(1, worker("w1", "m1"), worker("w2", "m2")),)
    rig.all_switch()
    rig.settled()
    assert rig.reply().ok
    assert rig.states() == {"m0": "active", "m1": "gone", "m2": "active"}


@pytest.mark.parametrize("all_links", [False, True])
def test_every_link_is_opened_anew_on_request(all_links: bool) -> None:
    rig = Rig.training()
    assert rig.ask("r1", Replace(("m1",), all_links=all_links)) is None
    rig.heard()
    rig.rehearsed()
    (prepare,) = rig.heard()["w0"]
    assert isinstance(prepare, Prepare)
    assert prepare.roster.fresh is all_links
    rig.go_on("settled")
    assert rig.reply().ok
    assert rig.seats() == ["w0", "w2"]


@pytest.mark.parametrize("last", ["w0", "w2"])
def test_the_leaver_is_released_once_all_workers_have_made_the_first_step(last: str) -> None:
    rig = Rig.training()
    rig.replace(until="seated")
    rig.orders()
    rig.each(sorted({"w0", "w2"} - {last}), Settled(2, 6, 0.1))
    assert rig.states()["m1"] == "leaving"
    assert rig.orders() == {}
    rig.say(last, Settled(2, 6, 0.1))
    assert rig.states()["m1"] == "gone"
    assert rig.orders() == {"m1": [Dismiss("it was replaced")]}


def test_the_first_step_of_an_earlier_generation_releases_no_leaver() -> None:
    rig = Rig.training()
    rig.replace(until="seated")
    rig.each(("w0", "w2"), Settled(1, 1, 0.1))
    assert rig.states()["m1"] == "leaving"


def test_a_worker_that_settles_before_the_last_one_switches_is_counted() -> None:
    rig = Rig.training()
    rig.replace(until="switch")
    rig.say("w0", Settled(2, 6, 0.1))
    rig.say("w2", Switched(2, 5, 0.5, 10), Settled(2, 6, 0.4))
    assert "r1" not in rig.job.answers
    rig.say("w1", Switched(2, 5), Gave(2))
    assert rig.reply().text == "training lost 0.400 s"
    assert rig.states()["m1"] == "gone"


def test_a_change_that_came_too_early_to_be_measured_is_done_all_the_same() -> None:
    rig = Rig.training()
    rig.replace(until="seated")
    rig.settled(lost=None)
    assert rig.answered() == (True, "done; what training lost by it could not be measured")
    assert rig.states()["m1"] == "gone"


@pytest.mark.parametrize("standbys", [1, 2])
def test_the_leaver_keeps_its_role_if_the_joiner_dies_in_its_first_step(standbys: int) -> None:
    """The request is tried again if there is another standby."""
    rig = Rig.training(standbys=standbys)
    rig.replace(until="seated")
    rig.say("w0", Settled(2, 6, 0.1))
    rig.orders()
    rig.lose("m2")
    assert rig.heard() == {"w0": [Halt(1, "m2 is gone: no heartbeat")], "w1": [Halt(1, "m2 is gone: no heartbeat")]}
    rig.halted("w0", "w1")
    (resume,) = rig.heard()["w1"]
    assert isinstance(resume, Resume)
    assert (resume.roster.seats, resume.roster.fresh, resume.step, resume.moves) == (("w0", "w1"), True, 5, ())
    rig.all_switch()
    assert rig.status() == "training"
    assert rig.seats() == ["w0", "w1"]
    if standbys == 1:
        assert rig.states()["m1"] == "active"
        assert rig.answered() == (False, "m2 is gone: no heartbeat; training goes on as before")
    else:
        assert rig.states()["m1"] == "leaving"
        assert rig.heard() == {"w3": [Rehearse(1)]}
        rig.go_on("settled")
        assert rig.reply().ok
        assert rig.seats() == ["w0", "w3"]
        assert rig.states() == {"m0": "active", "m1": "gone", "m2": "gone", "m3": "active"}


def test_a_leaver_that_dies_after_it_gave_its_role_away_is_no_loss() -> None:
    rig = Rig.training()
    rig.replace(until="seated")
    rig.exits("w1")
    assert rig.status() == "training"
    rig.settled()
    assert rig.reply().ok


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Replace(()), "name the machines to replace"),
        (Replace(("m9",)), "there is no machine m9; machines with roles: m0, m1"),
        (Replace(("m3",)), "m3 is a standby and has no role; remove it with: understudy standby remove m3"),
        (Replace(("m2",)), "m2 is gone already: an operator has removed it"),
        (Replace(("m1", "m1")), "a machine is named twice"),
        (Replace(("m0", "m1"), ("m3",)), "2 machines but 1 standbys; name one for each or none"),
        (Replace(("m0",), ("m3", "m4")), "1 machines but 2 standbys; name one for each or none"),
        (Replace(("m0",), ("m1",)), "m1 is not a standby; standbys: m3"),
        (Replace(("m0",), ("m9",)), "m9 is not a standby; standbys: m3"),
        (Replace(("m0",), ("m2",)), "m2 is not a standby; standbys: m3"),
        (
            Replace(("m0", "m1")),
            "2 standby machines are needed and there are 1; add one with: understudy standby add",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_done_is_refused_at_once(request_: Replace, says: str) -> None:
    """m0 and m1 rig, m2 was a standby and is gone, m3 is one."""
    rig = Rig.training(standbys=2)
    rig.ask("r0", RemoveStandby("m2"))
    rig.orders()
    assert rig.at_once("r1", request_) == (False, says)
    assert rig.orders() == {}
    assert not rig.phase()


def test_a_standby_cannot_come_twice() -> None:
    rig = Rig.training(standbys=2)
    reply = rig.ask("r1", Replace(("m0", "m1"), ("m2", "m2")))
    assert reply is not None
    assert not reply.ok


@pytest.mark.parametrize("until", STAGES)
def test_a_machine_is_replaced_only_once(until: Stage) -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until=until)
    says = "m1 is gone already: it was replaced" if until == "settled" else "m1 is being replaced already"
    assert rig.at_once("r2", Replace(("m1",))) == (False, says)


def test_requests_wait_for_their_turn_while_the_joiner_rehearses() -> None:
    rig = Rig.training(standbys=2)
    rig.replace("m1", until="rehearse", id="r1")
    assert rig.ask("r2", Replace(("m0",))) is None
    assert rig.at_once("r3", Replace(("m0",))) == (False, "m0 is being replaced already")  # it waits, and yet
    assert rig.heard()["w3"] == [Rehearse(0)]
    rig.go_on("switch")
    assert "w3" not in rig.heard()
    rig.all_switch()
    assert rig.change.phase == "rehearse"
    assert "w3" not in rig.heard()  # it does already
    rig.settled()  # of the first, while the second is under way
    assert rig.reply("r1").ok
    assert rig.states() == {"m0": "leaving", "m1": "gone", "m2": "active", "m3": "standby"}
    rig.go_on("settled")
    assert rig.reply("r2").ok
    assert rig.seats() == ["w3", "w2"]


def test_a_request_from_before_the_start_is_carried_out_afterwards() -> None:
    rig = Rig.opening(standbys=1)
    assert rig.ask("r1", Replace(("m1",))) is None
    rig.all_switch(step=0)
    assert rig.change.kind == "replace"
    assert rig.heard()["w2"] == [Rehearse(1)]


@pytest.mark.parametrize(
    ("standbys", "says"),
    [
        (("m3",), "standby m3 is gone; ask for another one"),
        ((), "no standby is left; add one with: understudy standby add"),
    ],
)
def test_a_standby_that_is_gone_when_its_turn_comes(standbys: tuple[str, ...], says: str) -> None:
    rig = Rig.training(standbys=2)
    rig.replace("m1", until="rehearse", id="r1")
    assert rig.ask("r2", Replace(("m0",), standbys)) is None
    rig.lose("m3")
    assert "r2" not in rig.job.answers
    rig.go_on("settled")
    assert rig.reply("r1").ok
    assert rig.answered("r2") == (False, says)
    assert rig.status() == "training"


def test_a_machine_that_died_before_its_turn_needs_no_replacement() -> None:
    rig = Rig.training(machines=3, standbys=2)
    rig.replace("m1", until="rehearse", id="r1")
    assert rig.ask("r2", Replace(("m2",))) is None
    rig.lose("m2")
    rig.halted("w0", "w1")
    rig.rehearsed()
    rig.all_switch()
    assert rig.job.machines["m2"].state == "gone"
    assert "r1" not in rig.job.answers  # it has one standby left
    assert rig.change.leaving == ("m1",)
    rig.go_on("settled")
    assert rig.reply("r1").ok
    assert rig.reply("r2").text == "no longer needed: the machine has no role any more"
