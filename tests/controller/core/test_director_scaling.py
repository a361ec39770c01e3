"""Changes of the number of replicas."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig
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

TWINS = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}
"""Two replicas of a pipeline of two stages: roles 0 and 1, roles 2 and 3."""


def scaling(machines: int = 4, standbys: int = 0, mask: str = "anywhere", **settings: object) -> Rig:
    return Rig.training(machines=machines, standbys=standbys, mask=mask, **settings)  # type: ignore[arg-type]


def all_workers_switch(rig: Rig) -> None:
    generation = rig.change.generation
    rig.each([uid for uid in rig.change.roster.seats if uid], Switched(generation, 5))  # type: ignore[union-attr]


def replicas(rig: Rig) -> tuple[int, int, int]:
    view = job_view("job", rig.job, {}).replicas
    assert view is not None
    return view.live, view.most, view.target


def asked(rig: Rig, replicas: int, **more: object) -> tuple[bool, str]:
    found = rig.ask(f"s{len(rig.ledger)}", Scale(replicas, **more))  # type: ignore[arg-type]
    assert found is not None
    return found.ok, found.text


def shrunk(rig: Rig, to: int, **more: object) -> None:
    """So many are left, and have made a step."""
    asked(rig, to, **more)
    rig.prepared()
    all_workers_switch(rig)
    rig.settled()


# -- beginning ---------------------------------------------------------------------------------------------------------


def test_a_job_begins_with_some_of_its_machines() -> None:
    rig = Rig.opening(machines=4, mask="anywhere", first=(0, 1))
    resume = rig.heard()["w0"][-1]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == ("w0", "w1", None, None)
    assert rig.told("vacated") == ["the job begins with 2 of 4 machines"]


def test_machines_beyond_the_target_are_standbys() -> None:
    rig = scaling(first=(0, 1), standbys=1)
    assert replicas(rig) == (2, 4, 2)
    rig.come("m9")
    rig.here("m9")
    assert rig.states() == {"m0": "active", "m1": "active", "m2": "standby", "m9": "standby"}
    assert rig.phase() == ""


def test_the_first_cells_need_not_be_neighbours() -> None:
    rig = Rig.opening(machines=4, mask="anywhere", first=(0, 2))
    resume = rig.heard()["w0"][-1]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == ("w0", None, "w1", None)


def test_a_job_waits_for_a_machine_that_is_missing_at_the_beginning() -> None:
    rig = Rig(machines=4, mask="anywhere", first=(0, 1))
    rig.come("m0")
    assert rig.job.absent() == "waits for 1 more of 2 machines; here: m0"


def test_a_failure_before_the_first_step_does_not_call_the_others() -> None:
    rig = Rig.opening(machines=4, standbys=1, mask="anywhere", first=(0, 1))
    rig.each(["w0", "w1"], Switched(1, 0))
    rig.lose("m1")
    rig.halted("w0", holds=False, step=0)
    assert rig.status() == "forming"
    rig.here("m0")
    assert rig.change.roster is not None
    assert rig.change.roster.seats == ("w3", "w2", None, None)


# -- growing -----------------------------------------------------------------------------------------------------------


def test_growing_asks_for_machines_and_refills_with_those_that_come() -> None:
    rig = scaling(first=(0, 1))
    assert asked(rig, 4) == (True, "2 of 4 replicas train; 2 more as soon as machines are ready")
    assert rig.told("wanted") == ["2 standby machines wanted"]
    assert job_view("job", rig.job, {}).wanted == 2
    rig.come("m2", standby=True)
    rig.come("m3", standby=True)
    rig.here("m2")
    rig.say("w2", Rehearsed(2))
    assert rig.told("change") == ["refill: m2 for role 2"]
    rig.here("m3")
    rig.prepared()
    all_workers_switch(rig)
    assert replicas(rig) == (3, 4, 4)
    rig.settled()
    assert rig.told("change")[-1] == "refill: m3 for role 3"


def test_several_ready_machines_join_at_one_boundary() -> None:
    rig = scaling(first=(0, 1), standbys=2)
    asked(rig, 4)
    assert rig.told("wanted") == []
    assert rig.told("change") == ["refill: m2 for role 2, m3 for role 3"]
    rig.go_on("settled")
    assert replicas(rig) == (4, 4, 4)
    assert rig.told("replicas") == ["4 of 4 replicas train (target 4)"]


def test_growing_by_less_than_all() -> None:
    rig = scaling(first=(0,), standbys=3)
    asked(rig, 3)
    assert rig.told("change") == ["refill: m1 for role 1, m2 for role 2"]


def test_a_job_that_does_not_ask_after_failures_asks_for_growth() -> None:
    rig = scaling(first=(0, 1), no_standby="stop")
    asked(rig, 3)
    assert rig.told("wanted") == ["1 standby machine wanted"]


# -- shrinking ---------------------------------------------------------------------------------------------------------


def test_the_last_replicas_leave_without_a_halt() -> None:
    rig = scaling()
    said = "4 of 4 replicas train; 2 go at a boundary, their machines are released"
    assert asked(rig, 2) == (True, said)
    assert rig.told("change") == ["shrink: without m2 and m3 (roles 2 and 3), 2 of 4 replicas go on"]
    heard = rig.heard()
    assert heard.keys() == {"w0", "w1", "w2", "w3"}
    for messages in heard.values():
        (prepare,) = messages
        assert isinstance(prepare, Prepare)
        assert prepare.roster.seats == ("w0", "w1", None, None)
        assert (prepare.moves, prepare.roster.fresh) == ((), False)
    rig.prepared()
    assert rig.phase() == "armed"
    all_workers_switch(rig)
    assert rig.status() == "training"
    assert rig.states() == {"m0": "active", "m1": "active", "m2": "leaving", "m3": "leaving"}
    rig.orders()
    rig.settled()
    assert rig.states() == {"m0": "active", "m1": "active", "m2": "gone", "m3": "gone"}
    assert {name: type(orders[-1]) for name, orders in rig.orders().items()} == {"m2": Dismiss, "m3": Dismiss}
    assert replicas(rig) == (2, 4, 2)
    assert rig.told("halt") == []
    assert rig.told("released") == ["m2 is released", "m3 is released"]


def test_a_vote_that_is_faster_than_the_controller() -> None:
    rig = scaling()
    asked(rig, 3)
    rig.say("w3", Switched(2, 5))  # before all workers have reported that they are prepared
    rig.each(["w0", "w1"], Prepared(2))
    rig.each(["w0", "w1", "w2"], Switched(2, 5))
    assert rig.phase() == ""
    assert rig.job.vacant() == (3,)


def test_machines_that_are_kept_wait() -> None:
    rig = scaling()
    rig.orders()
    shrunk(rig, 3, keep=True)
    assert rig.states()["m3"] == "standby"
    assert StartWorker("w4", 0) in rig.orders()["m3"]
    rig.here("m3")
    asked(rig, 4)
    assert rig.told("change")[-1] == "refill: m3 for role 3"


def test_the_named_machines_leave() -> None:
    rig = scaling()
    shrunk(rig, 2, without=("m0", "m2"))
    assert rig.job.vacant() == (0, 2)


def test_what_is_vacant_counts_as_gone() -> None:
    rig = scaling()
    rig.lose("m1")
    rig.halted("w0", "w2", "w3")
    all_workers_switch(rig)
    rig.settled()
    assert asked(rig, 3) == (True, "3 of 4 replicas train, as asked for")
    assert rig.phase() == ""
    rig.come("m9", standby=True)
    rig.here("m9")
    assert rig.phase() == ""  # it is not refilled any more
    asked(rig, 4)
    assert rig.told("change") == ["refill: m9 for role 1"]


@pytest.mark.parametrize("keep", [False, True])
def test_a_parked_machine_leaves_with_its_replica(keep: bool) -> None:
    rig = scaling(twins=TWINS)
    rig.lose("m1")
    rig.halted("w0", "w2", "w3")
    all_workers_switch(rig)
    rig.settled()
    asked(rig, 1, keep=keep)
    assert rig.states()["m0"] == ("standby" if keep else "gone")
    assert rig.phase() == ""


def test_pipelines_go_as_a_whole() -> None:
    rig = scaling(twins=TWINS)
    shrunk(rig, 1, without=("m1",))
    assert rig.job.vacant() == (0, 1)
    assert rig.states() == {"m0": "gone", "m1": "gone", "m2": "active", "m3": "active"}


def test_a_replacement_of_a_machine_that_leaves_is_dropped() -> None:
    rig = scaling(standbys=1)
    asked(rig, 3)
    rig.ask("r1", AddStandby())
    rig.ask("r2", Replace(("m3",)))
    assert rig.answered("r2") == (False, "m3 is being replaced already")


def test_a_joiner_comes_before_the_named_machine_leaves() -> None:
    rig = scaling(first=(0, 1))
    asked(rig, 2, without=("m0",))
    assert rig.phase() == ""
    assert rig.told("wanted") == ["1 standby machine wanted"]
    rig.come("m9", standby=True)
    rig.here("m9")
    rig.rehearsed()
    rig.prepared()
    all_workers_switch(rig)
    rig.settled()
    assert rig.told("change") == [
        "refill: m9 for role 2",
        "shrink: without m0 (role 0), 2 of 4 replicas go on",
    ]
    assert replicas(rig) == (3, 4, 2)


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
    rig = scaling()
    assert asked(rig, replicas, **more) == (False, said)
    assert target(rig.job) == 4
    assert rig.phase() == ""


def test_without_masking() -> None:
    rig = Rig.training(machines=2, standbys=0)
    said = "this job needs all its replicas; run it with --mask anywhere to let them come and go"
    assert asked(rig, 1) == (False, said)


def test_before_the_first_step() -> None:
    rig = Rig.opening(machines=2, mask="anywhere")
    said = "the number of replicas is known when the first step is made; ask again then"
    assert asked(rig, 1) == (False, said)


def test_a_target_that_leaves_a_shard_without_a_holder_is_refused() -> None:
    rig = scaling(machines=7, mask="spare:r=2")
    ok, said = asked(rig, 1)
    assert not ok
    assert said.startswith("1 of 7 replicas are not possible: no remaining replica would hold shard")
    assert "ask for 4 or more" in said
    asked(rig, 4)
    assert rig.phase() == "prepare"


def test_machines_that_replicas_share() -> None:
    rig = Rig.training(machines=2, nproc=2, standbys=0, mask="anywhere")
    said = "each machine is shared by 2 replicas, which come and go together; ask for 4 or more"
    assert asked(rig, 3) == (False, f"3 of 4 replicas are not possible: {said}")
    shrunk(rig, 2)
    assert rig.states() == {"m0": "active", "m1": "gone"}


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_leaver_dies_before_the_switch() -> None:
    rig = scaling()
    asked(rig, 3)
    rig.lose("m3")
    rig.halted("w0", "w1", "w2")
    assert rig.told("policy") == ["mask: role 3: 3 of 4 replicas are as many as requested"]
    all_workers_switch(rig)
    rig.settled()
    assert replicas(rig) == (3, 4, 3)
    assert rig.phase() == ""


def test_a_stayer_dies_before_the_switch() -> None:
    rig = scaling()
    asked(rig, 2)
    rig.lose("m0")
    rig.halted("w1", "w2", "w3")
    all_workers_switch(rig)
    assert rig.states() == {"m0": "gone", "m1": "active", "m2": "active", "m3": "active"}
    rig.settled()
    assert rig.told("change")[-1] == "shrink: without m3 (role 3), 2 of 4 replicas go on"


def test_a_stayer_dies_in_the_first_step_and_a_leaver_comes_back() -> None:
    rig = scaling()
    asked(rig, 2)
    rig.prepared()
    all_workers_switch(rig)
    rig.lose("m0")
    rig.halted("w1", "w2", "w3")
    resume = rig.heard()["w1"][-1]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == (None, "w1", "w2", None)
    all_workers_switch(rig)
    rig.settled()
    assert replicas(rig) == (2, 4, 2)
    assert rig.states() == {"m0": "gone", "m1": "active", "m2": "active", "m3": "gone"}


def test_a_failure_with_vacant_replicas_takes_a_standby_for_the_lost_one_only() -> None:
    rig = scaling(first=(0, 1), standbys=2, warm=1)
    for uid in ("w2", "w3"):
        role = rig.job.workers[uid].rehearsing
        assert role is not None
        rig.say(uid, Rehearsed(role, 1.0, (0, 1, 2, 3)))
    rig.lose("m1")
    rig.halted("w0", usual=3.0)
    assert rig.told("policy")[0].startswith("recover: role 1: the hand-over")
    assert rig.change.vacant == (2, 3)
    assert rig.told("masked") == []


def test_the_last_whole_replica_of_a_small_job_comes_from_a_checkpoint() -> None:
    from understudy.protocol.messages import Saved

    rig = scaling(machines=2, first=(0,), standbys=1)
    rig.say("w0", Saved(0, 4), Saved(1, 4))
    rig.lose("m0")
    assert rig.phase() == "rehearse"
    rig.say("w1", Rehearsed(0))
    resume = rig.heard()["w1"][-1]
    assert isinstance(resume, Resume)
    assert (resume.back, resume.roster.seats) == ("checkpoint", ("w1", None))


def test_a_shrink_that_cannot_be_prepared_is_tried_again() -> None:
    rig = scaling()
    asked(rig, 3)
    rig.say("w1", Unprepared(rig.change.generation, "no route"))
    assert rig.phase() == "cancel"
    rig.each(["w0", "w1", "w2", "w3"], Cancelled(rig.change.generation))
    assert rig.phase() == "prepare"
    assert rig.states()["m3"] == "leaving"


def test_a_new_target_cancels_the_change_under_way() -> None:
    rig = scaling()
    asked(rig, 2)
    rig.heard()
    asked(rig, 4)
    assert isinstance(rig.heard()["w0"][-1], Cancel)
    rig.each(["w0", "w1", "w2", "w3"], Cancelled(rig.change.generation))
    assert rig.phase() == ""
    assert rig.states() == dict.fromkeys(("m0", "m1", "m2", "m3"), "active")
    assert rig.told("cancelled") == ["the target is 4 now"]


def test_fewer_are_wanted_while_more_are_coming() -> None:
    rig = scaling(first=(0, 1), standbys=1)
    asked(rig, 3)
    assert rig.phase() == "rehearse"
    asked(rig, 2)
    assert rig.phase() == ""
    assert rig.states()["m2"] == "standby"


def test_a_controller_that_comes_back_knows_the_target() -> None:
    rig = scaling(first=(0, 1, 2), standbys=1)
    shrunk(rig, 1, without=("m0",), keep=True)
    asked(rig, 3)
    director = Director(rig.plan)
    for at, event in rig.ledger:
        director.feed(event, at)
    again = director.job
    assert target(again) == target(rig.job) == 3
    assert again.roster == rig.job.roster
    assert again.change == rig.job.change
    assert {m.name: m.state for m in again.machines.values()} == rig.states()


def test_a_job_that_stops_does_not_shrink() -> None:
    from understudy.controller.core.events import StopJob

    rig = scaling()
    rig.ask("r1", StopJob())
    asked(rig, 2)
    assert rig.phase() == ""
    rig.each(rig.seats(), Settled(1, 2, None))
