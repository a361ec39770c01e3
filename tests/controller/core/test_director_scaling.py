"""Replicas come and go by plan."""

from __future__ import annotations

import pytest

from tests.controller.core.play import Play
from understudy.controller.core.director import Director
from understudy.controller.core.events import AddStandby, Replace, Scale
from understudy.controller.core.replicas import target
from understudy.controller.server.views import job_view
from understudy.protocol.frames import Dismiss, StartWorker
from understudy.protocol.messages import (
    Cancel,
    Cancelled,
    Prepare,
    Prepared,
    Rehearsed,
    Resume,
    Settled,
    Switched,
    Unprepared,
)

UNITS = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}
"""Two replicas of a pipeline of two stages: roles 0 and 1, roles 2 and 3."""


def scaling(machines: int = 4, standbys: int = 0, mask: str = "anywhere", **settings: object) -> Play:
    return Play.training(machines=machines, standbys=standbys, mask=mask, **settings)  # type: ignore[arg-type]


def everybody_switches(play: Play) -> None:
    generation = play.change.generation
    play.each([uid for uid in play.change.roster.seats if uid], Switched(generation, 5))  # type: ignore[union-attr]


def replicas(play: Play) -> tuple[int, int, int]:
    view = job_view("job", play.job, {}).replicas
    assert view is not None
    return view.live, view.most, view.target


def asked(play: Play, replicas: int, **more: object) -> tuple[bool, str]:
    found = play.ask(f"s{len(play.ledger)}", Scale(replicas, **more))  # type: ignore[arg-type]
    assert found is not None
    return found.ok, found.text


def shrunk(play: Play, to: int, **more: object) -> None:
    """So many are left, and have made a step."""
    asked(play, to, **more)
    play.prepared()
    everybody_switches(play)
    play.settled()


# -- beginning ---------------------------------------------------------------------------------------------------------


def test_a_job_begins_with_some_of_its_machines() -> None:
    play = Play.opening(machines=4, mask="anywhere", first=(0, 1))
    resume = play.heard()["w0"][-1]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == ("w0", "w1", None, None)
    assert play.told("vacated") == ["the job begins with 2 of 4 machines"]


def test_those_who_come_later_wait() -> None:
    play = scaling(first=(0, 1), standbys=1)
    assert replicas(play) == (2, 4, 2)
    play.come("m9")
    play.here("m9")
    assert play.states() == {"m0": "active", "m1": "active", "m2": "standby", "m9": "standby"}
    assert play.phase() == ""


def test_the_first_cells_need_not_be_neighbours() -> None:
    play = Play.opening(machines=4, mask="anywhere", first=(0, 2))
    resume = play.heard()["w0"][-1]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == ("w0", None, "w1", None)


def test_one_who_is_missing_at_the_beginning() -> None:
    play = Play(machines=4, mask="anywhere", first=(0, 1))
    play.come("m0")
    assert play.job.absent() == "waits for 1 more of 2 machines; here: m0"


def test_a_failure_before_the_first_step_does_not_call_the_others() -> None:
    play = Play.opening(machines=4, standbys=1, mask="anywhere", first=(0, 1))
    play.each(["w0", "w1"], Switched(1, 0))
    play.lose("m1")
    play.halted("w0", holds=False, step=0)
    assert play.status() == "forming"
    play.here("m0")
    assert play.change.roster is not None
    assert play.change.roster.seats == ("w3", "w2", None, None)


# -- growing -----------------------------------------------------------------------------------------------------------


def test_growing_asks_for_machines_and_refills_with_those_that_come() -> None:
    play = scaling(first=(0, 1))
    assert asked(play, 4) == (True, "2 of 4 replicas train; 2 more as soon as machines are ready")
    assert play.told("wanted") == ["2 standby machines wanted"]
    assert job_view("job", play.job, {}).wanted == 2
    play.come("m2", standby=True)
    play.come("m3", standby=True)
    play.here("m2")
    play.say("w2", Rehearsed(2))
    assert play.told("change") == ["refill: m2 for role 2"]
    play.here("m3")
    play.prepared()
    everybody_switches(play)
    assert replicas(play) == (3, 4, 4)
    play.settled()
    assert play.told("change")[-1] == "refill: m3 for role 3"


def test_several_who_are_ready_come_at_one_boundary() -> None:
    play = scaling(first=(0, 1), standbys=2)
    asked(play, 4)
    assert play.told("wanted") == []
    assert play.told("change") == ["refill: m2 for role 2, m3 for role 3"]
    play.go_on("settled")
    assert replicas(play) == (4, 4, 4)
    assert play.told("replicas") == ["4 of 4 replicas train (target 4)"]


def test_growing_by_less_than_all() -> None:
    play = scaling(first=(0,), standbys=3)
    asked(play, 3)
    assert play.told("change") == ["refill: m1 for role 1, m2 for role 2"]


def test_a_job_that_does_not_ask_after_failures_asks_for_growth() -> None:
    play = scaling(first=(0, 1), no_standby="stop")
    asked(play, 3)
    assert play.told("wanted") == ["1 standby machine wanted"]


# -- shrinking ---------------------------------------------------------------------------------------------------------


def test_the_last_replicas_leave_without_a_halt() -> None:
    play = scaling()
    said = "4 of 4 replicas train; 2 go at a boundary, their machines are released"
    assert asked(play, 2) == (True, said)
    assert play.told("change") == ["shrink: without m2 and m3 (roles 2 and 3), 2 of 4 replicas go on"]
    heard = play.heard()
    assert heard.keys() == {"w0", "w1", "w2", "w3"}
    for messages in heard.values():
        (prepare,) = messages
        assert isinstance(prepare, Prepare)
        assert prepare.roster.seats == ("w0", "w1", None, None)
        assert (prepare.moves, prepare.roster.fresh) == ((), False)
    play.prepared()
    assert play.phase() == "armed"
    everybody_switches(play)
    assert play.status() == "training"
    assert play.states() == {"m0": "active", "m1": "active", "m2": "leaving", "m3": "leaving"}
    play.orders()
    play.settled()
    assert play.states() == {"m0": "active", "m1": "active", "m2": "gone", "m3": "gone"}
    assert {name: type(orders[-1]) for name, orders in play.orders().items()} == {"m2": Dismiss, "m3": Dismiss}
    assert replicas(play) == (2, 4, 2)
    assert play.told("halt") == []
    assert play.told("released") == ["m2 is released", "m3 is released"]


def test_a_vote_that_is_faster_than_the_controller() -> None:
    play = scaling()
    asked(play, 3)
    play.say("w3", Switched(2, 5))  # before everybody's word that it is prepared has come
    play.each(["w0", "w1"], Prepared(2))
    play.each(["w0", "w1", "w2"], Switched(2, 5))
    assert play.phase() == ""
    assert play.job.vacant() == (3,)


def test_machines_that_are_kept_wait() -> None:
    play = scaling()
    play.orders()
    shrunk(play, 3, keep=True)
    assert play.states()["m3"] == "standby"
    assert StartWorker("w4", 0) in play.orders()["m3"]
    play.here("m3")
    asked(play, 4)
    assert play.told("change")[-1] == "refill: m3 for role 3"


def test_those_that_are_named_go() -> None:
    play = scaling()
    shrunk(play, 2, without=("m0", "m2"))
    assert play.job.vacant() == (0, 2)


def test_what_is_vacant_counts_as_gone() -> None:
    play = scaling()
    play.lose("m1")
    play.halted("w0", "w2", "w3")
    everybody_switches(play)
    play.settled()
    assert asked(play, 3) == (True, "3 of 4 replicas train, as asked for")
    assert play.phase() == ""
    play.come("m9", standby=True)
    play.here("m9")
    assert play.phase() == ""  # nobody refills it any more
    asked(play, 4)
    assert play.told("change") == ["refill: m9 for role 1"]


@pytest.mark.parametrize("keep", [False, True])
def test_whoever_has_parked_goes_with_its_replica(keep: bool) -> None:
    play = scaling(twins=UNITS)
    play.lose("m1")
    play.halted("w0", "w2", "w3")
    everybody_switches(play)
    play.settled()
    asked(play, 1, keep=keep)
    assert play.states()["m0"] == ("standby" if keep else "gone")
    assert play.phase() == ""


def test_pipelines_go_as_a_whole() -> None:
    play = scaling(twins=UNITS)
    shrunk(play, 1, without=("m1",))
    assert play.job.vacant() == (0, 1)
    assert play.states() == {"m0": "gone", "m1": "gone", "m2": "active", "m3": "active"}


def test_a_replacement_of_a_machine_that_leaves_is_dropped() -> None:
    play = scaling(standbys=1)
    asked(play, 3)
    play.ask("r1", AddStandby())
    play.ask("r2", Replace(("m3",)))
    assert play.answered("r2") == (False, "m3 is being replaced already")


def test_somebody_comes_before_one_that_is_named_goes() -> None:
    play = scaling(first=(0, 1))
    asked(play, 2, without=("m0",))
    assert play.phase() == ""
    assert play.told("wanted") == ["1 standby machine wanted"]
    play.come("m9", standby=True)
    play.here("m9")
    play.rehearsed()
    play.prepared()
    everybody_switches(play)
    play.settled()
    assert play.told("change") == [
        "refill: m9 for role 2",
        "shrink: without m0 (role 0), 2 of 4 replicas go on",
    ]
    assert replicas(play) == (3, 4, 2)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "more", "said"),
    [
        (0, {}, "0 replicas cannot train; ask for at least 1, or end the job with: understudy stop"),
        (5, {}, "the mesh has 4 replicas, the most there can be; 5 need a larger mesh"),
        (3, {"without": ("m7",)}, "--without: m7 has no role; machines with roles: m0, m1, m2, m3"),
        (3, {"without": ("m1", "m1")}, "--without: a machine is named twice"),
        (
            3,
            {"without": ("m1", "m2")},
            "--without: m1 and m2 have 2 replicas, more than are to go; ask for at most 2",
        ),
    ],
)
def test_what_cannot_be(replicas: int, more: dict[str, object], said: str) -> None:
    play = scaling()
    assert asked(play, replicas, **more) == (False, said)
    assert target(play.job) == 4
    assert play.phase() == ""


def test_without_masking() -> None:
    play = Play.training(machines=2, standbys=0)
    said = "this job needs all its replicas; run it with --mask anywhere to let them come and go"
    assert asked(play, 1) == (False, said)


def test_before_the_first_step() -> None:
    play = Play.opening(machines=2, mask="anywhere")
    said = "the number of replicas is known when the first step is made; ask again then"
    assert asked(play, 1) == (False, said)


def test_data_that_nobody_else_holds() -> None:
    play = scaling(machines=7, mask="spare:r=2")
    ok, said = asked(play, 1)
    assert not ok
    assert said.startswith("1 of 7 replicas are not possible: no remaining replica would hold shard")
    assert "ask for 4 or more" in said
    asked(play, 4)
    assert play.phase() == "prepare"


def test_machines_that_replicas_share() -> None:
    play = Play.training(machines=2, nproc=2, standbys=0, mask="anywhere")
    said = "each machine is shared by 2 replicas, which come and go together; ask for 4 or more"
    assert asked(play, 3) == (False, f"3 of 4 replicas are not possible: {said}")
    shrunk(play, 2)
    assert play.states() == {"m0": "active", "m1": "gone"}


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_leaver_dies_before_the_switch() -> None:
    play = scaling()
    asked(play, 3)
    play.lose("m3")
    play.halted("w0", "w1", "w2")
    assert play.told("policy") == ["mask: role 3: 3 of 4 replicas are as many as requested"]
    everybody_switches(play)
    play.settled()
    assert replicas(play) == (3, 4, 3)
    assert play.phase() == ""


def test_a_stayer_dies_before_the_switch() -> None:
    play = scaling()
    asked(play, 2)
    play.lose("m0")
    play.halted("w1", "w2", "w3")
    everybody_switches(play)
    assert play.states() == {"m0": "gone", "m1": "active", "m2": "active", "m3": "active"}
    play.settled()
    assert play.told("change")[-1] == "shrink: without m3 (role 3), 2 of 4 replicas go on"


def test_a_stayer_dies_in_the_first_step_and_a_leaver_comes_back() -> None:
    play = scaling()
    asked(play, 2)
    play.prepared()
    everybody_switches(play)
    play.lose("m0")
    play.halted("w1", "w2", "w3")
    resume = play.heard()["w1"][-1]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == (None, "w1", "w2", None)
    everybody_switches(play)
    play.settled()
    assert replicas(play) == (2, 4, 2)
    assert play.states() == {"m0": "gone", "m1": "active", "m2": "active", "m3": "gone"}


def test_a_failure_with_vacant_replicas_takes_a_standby_for_the_lost_one_only() -> None:
    play = scaling(first=(0, 1), standbys=2, warm=1)
    for uid in ("w2", "w3"):
        role = play.job.workers[uid].rehearsing
        assert role is not None
        play.say(uid, Rehearsed(role, 1.0, (0, 1, 2, 3)))
    play.lose("m1")
    play.halted("w0", usual=3.0)
    assert play.told("policy")[0].startswith("recover: role 1: the hand-over")
    assert play.change.vacant == (2, 3)
    assert play.told("masked") == []


def test_the_last_whole_replica_of_a_small_job_comes_from_a_checkpoint() -> None:
    from understudy.protocol.messages import Saved

    play = scaling(machines=2, first=(0,), standbys=1)
    play.say("w0", Saved(0, 4), Saved(1, 4))
    play.lose("m0")
    assert play.phase() == "rehearse"
    play.say("w1", Rehearsed(0))
    resume = play.heard()["w1"][-1]
    assert isinstance(resume, Resume)
    assert (resume.back, resume.roster.seats) == ("checkpoint", ("w1", None))


def test_a_shrink_that_cannot_be_prepared_is_tried_again() -> None:
    play = scaling()
    asked(play, 3)
    play.say("w1", Unprepared(play.change.generation, "no route"))
    assert play.phase() == "cancel"
    play.each(["w0", "w1", "w2", "w3"], Cancelled(play.change.generation))
    assert play.phase() == "prepare"
    assert play.states()["m3"] == "leaving"


def test_somebody_wants_something_else_meanwhile() -> None:
    play = scaling()
    asked(play, 2)
    play.heard()
    asked(play, 4)
    assert isinstance(play.heard()["w0"][-1], Cancel)
    play.each(["w0", "w1", "w2", "w3"], Cancelled(play.change.generation))
    assert play.phase() == ""
    assert play.states() == dict.fromkeys(("m0", "m1", "m2", "m3"), "active")
    assert play.told("cancelled") == ["the target is 4 now"]


def test_fewer_are_wanted_while_more_are_coming() -> None:
    play = scaling(first=(0, 1), standbys=1)
    asked(play, 3)
    assert play.phase() == "rehearse"
    asked(play, 2)
    assert play.phase() == ""
    assert play.states()["m2"] == "standby"


def test_a_controller_that_comes_back_knows_the_target() -> None:
    play = scaling(first=(0, 1, 2), standbys=1)
    shrunk(play, 1, without=("m0",), keep=True)
    asked(play, 3)
    director = Director(play.plan)
    for at, event in play.ledger:
        director.feed(event, at)
    again = director.job
    assert target(again) == target(play.job) == 3
    assert again.roster == play.job.roster
    assert again.change == play.job.change
    assert {m.name: m.state for m in again.machines.values()} == play.states()


def test_nobody_shrinks_a_job_that_stops() -> None:
    from understudy.controller.core.events import StopJob

    play = scaling()
    play.ask("r1", StopJob())
    asked(play, 2)
    assert play.phase() == ""
    play.each(play.seats(), Settled(1, 2, None))
