"""Training continues without a replica, and its roles are refilled later."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig
from understudy.controller.core.events import Replace
from understudy.controller.core.state import FailureCause
from understudy.controller.server.views import job_view, machines_view
from understudy.protocol.frames import StartWorker
from understudy.protocol.messages import (
    Arm,
    Conclude,
    Park,
    Parked,
    Prepare,
    Prepared,
    Rehearse,
    Rehearsed,
    Resume,
    Switched,
)

TWINS = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}
"""Two replicas of a pipeline of two stages: roles 0 and 1, roles 2 and 3."""


def masking(machines: int = 3, standbys: int = 0, **settings: object) -> Rig:
    return Rig.training(machines=machines, standbys=standbys, mask="anywhere", **settings)  # type: ignore[arg-type]


def masked(rig: Rig, name: str) -> None:
    """A machine is lost, and the others have made a step without it."""
    rig.lose(name)
    rig.halted(*sorted(rig.job.unreported))
    all_workers_switch(rig)


def all_workers_switch(rig: Rig) -> None:
    generation = rig.change.generation
    rig.each([uid for uid in rig.change.roster.seats if uid], Switched(generation, 5))  # type: ignore[union-attr]
    assert rig.status() == "training"
    rig.settled()


def test_a_replica_is_masked_if_there_is_no_standby() -> None:
    rig = masking()
    rig.lose("m1")
    rig.halted("w0", "w2")
    resume = rig.heard()["w0"][-1]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == ("w0", None, "w2")
    assert (resume.moves, resume.step, resume.back) == ((), 5, "")
    assert rig.told("policy") == ["mask: role 1: there is no standby"]
    all_workers_switch(rig)
    assert rig.told("masked") == ["1 of 3 replicas vacant: training goes on with the others"]
    assert job_view("job", rig.job, {}).vacant == (1,)


def test_without_masking_it_waits() -> None:
    rig = Rig.training(machines=3, standbys=0)
    rig.lose("m1")
    rig.halted("w0", "w2")
    assert rig.status() == "halting"
    assert rig.told("policy") == []


def test_the_rest_of_a_wounded_replica_parks() -> None:
    rig = masking(machines=4, twins=TWINS)
    rig.lose("m1")
    rig.halted("w0", "w2", "w3")
    heard = rig.heard()
    assert heard["w0"][-1] == Park()
    assert isinstance(heard["w2"][-1], Resume)
    assert heard["w2"][-1].roster.seats == (None, None, "w2", "w3")
    all_workers_switch(rig)
    assert {view.name: view.state for view in machines_view(rig.job)}["m0"] == "parked"
    assert rig.states()["m0"] == "active"


def test_the_rest_of_a_wounded_replica_parks_also_on_a_leaver_that_goes_on() -> None:
    stages = {role: tuple(sorted((role, (role + 3) % 6))) for role in range(6)}
    rig = masking(machines=3, standbys=1, nproc=2, twins=stages)  # m1 has a role of either replica
    rig.replace("m1", until="seated")
    rig.heard()
    rig.exits("w0")
    rig.halted(*sorted(rig.job.unreported))
    resume = rig.heard()
    assert rig.change.places == {1: "m1", 2: "m2"}
    assert rig.change.vacant == (0, 1, 2)
    assert [uid for uid, words in resume.items() if Park() in words] == ["w1", "w2"]


def test_a_machine_that_comes_refills_the_hole_beside_training() -> None:
    rig = masking(machines=4, twins=TWINS)
    rig.lose("m1")
    rig.halted("w0", "w2", "w3")
    all_workers_switch(rig)
    rig.say("w0", Parked(0))
    assert rig.phase() == ""
    rig.heard()
    rig.come("m4", standby=True)
    rig.here("m4")
    assert rig.told("change") == ["refill: m0 for role 0, m4 for role 1"]
    assert rig.heard() == {"w4": [Rehearse(1)]}
    rig.say("w4", Rehearsed(1))
    heard = rig.heard()
    assert heard.keys() == {"w0", "w2", "w3", "w4"}
    for messages in heard.values():
        (prepare,) = messages
        assert isinstance(prepare, Prepare)
        assert prepare.roster.seats == ("w0", "w4", "w2", "w3")
        assert not prepare.roster.fresh
        assert [(m.role, m.giver.uid, m.taker.uid) for m in prepare.moves] == [(0, "w2", "w0"), (1, "w3", "w4")]
    rig.each(["w0", "w2", "w3", "w4"], Prepared(rig.change.generation))
    assert {uid: type(messages[-1]) for uid, messages in rig.heard().items()} == {"w2": Arm, "w3": Arm}
    all_workers_switch(rig)
    assert rig.states() == {"m0": "active", "m1": "gone", "m2": "active", "m3": "active", "m4": "active"}
    assert rig.job.vacant() == ()


def test_a_parked_worker_is_asked_once_it_has_left() -> None:
    rig = masking(machines=4, twins=TWINS, standbys=0)
    rig.lose("m1")
    rig.halted("w0", "w2", "w3")
    all_workers_switch(rig)
    rig.come("m4", standby=True)
    rig.here("m4")
    rig.say("w4", Rehearsed(1))
    assert rig.phase() == "rehearse"  # w0 has not said that it has left
    rig.say("w0", Parked(0))
    assert rig.phase() == "prepare"


def test_a_worker_that_died_is_started_again_for_its_place() -> None:
    rig = masking(machines=3)
    rig.exits("w1")
    rig.halted("w0", "w2")
    rig.orders()
    all_workers_switch(rig)
    assert rig.orders()["m1"] == [StartWorker("w3", 0)]
    rig.here("m1")
    assert rig.told("change") == ["refill: m1 for role 1"]


def test_a_standby_that_is_ready_comes_before_the_own_machine() -> None:
    rig = masking(machines=3, standbys=1, warm=1)
    rig.say("w3", Rehearsed(0, 1.0, (0, 1, 2)))
    rig.exits("w1")
    rig.halted("w0", "w2")
    assert rig.told("policy")[0].startswith("mask: role 1: masking costs about 0 s")
    all_workers_switch(rig)
    assert rig.told("change") == ["refill: m3 for role 1"]
    assert rig.states()["m1"] == "standby"


def test_a_hand_over_that_is_quick_is_waited_for() -> None:
    rig = masking(machines=3, standbys=1, warm=1)
    rig.say("w3", Rehearsed(0, 1.0, (0, 1, 2)))
    rig.lose("m1")
    rig.halted("w0", "w2", usual=3.0)
    assert rig.told("policy")[0].startswith("recover: role 1: the hand-over takes about 0.1 s")
    rig.say("w3", Rehearsed(1))
    resume = rig.heard()["w0"][-1]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == ("w0", "w3", "w2")


def test_a_joiner_that_dies_in_its_rehearsal_stops_no_worker() -> None:
    rig = masking(machines=3)
    masked(rig, "m1")
    rig.come("m3", standby=True)
    rig.here("m3")
    assert rig.phase() == "rehearse"
    rig.lose("m3")
    assert rig.status() == "training"
    assert rig.phase() == ""
    rig.come("m4", standby=True)
    rig.here("m4")
    assert rig.told("change")[-1] == "refill: m4 for role 1"


def test_another_failure_while_masked() -> None:
    rig = masking(machines=4)
    masked(rig, "m1")
    rig.lose("m3")
    rig.halted("w0", "w2")
    resume = rig.heard()["w0"][-1]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == ("w0", None, "w2", None)
    all_workers_switch(rig)
    assert rig.told("masked")[-1] == "2 of 4 replicas vacant: training goes on with the others"


def test_the_last_replica_is_not_masked() -> None:
    rig = masking(machines=2)
    masked(rig, "m1")
    rig.lose("m0")
    assert rig.status() == "failed"
    assert rig.job.failure is FailureCause.STATE_LOST


def test_the_warning_before_a_wipe_out() -> None:
    rig = Rig.training(machines=7, standbys=0, mask="spare:r=2")
    masked(rig, "m1")
    (said,) = rig.told("masked")
    assert said.startswith(
        "1 of 7 replicas vacant: training goes on with the others; 2 shards have a single live holder"
    )


def test_local_data_that_is_gone_is_waited_for() -> None:
    rig = Rig.training(machines=7, standbys=0, mask="spare:r=2")
    masked(rig, "m1")
    rig.lose("m0")
    rig.halted(*sorted(rig.job.unreported))
    assert rig.status() == "halting"
    said = "recover: role 0 and role 1: wipe-out: no live replica holds shard 0 (spare:r=2)"
    assert rig.told("policy")[-1] == said
    rig.come("m7", standby=True)
    rig.here("m7")
    assert rig.status() == "halting", "all replicas are to be back"
    rig.come("m8", standby=True)
    rig.here("m8")
    rig.rehearsed()
    resume = rig.heard()["w2"][-1]
    assert isinstance(resume, Resume)
    assert resume.roster.seats == ("w7", "w8", "w2", "w3", "w4", "w5", "w6")
    assert (resume.step, resume.back) == (5, ""), "those who are left have the state"


def test_a_wipe_out_ends_a_job_that_is_not_to_wait() -> None:
    rig = Rig.training(machines=7, standbys=0, mask="spare:r=2", no_standby="stop")
    masked(rig, "m1")
    rig.heard()
    rig.lose("m0")
    rig.halted(*sorted(rig.job.unreported))
    assert rig.status() == "closing"
    last = {uid: type(messages[-1]) for uid, messages in rig.heard().items()}
    assert last == dict.fromkeys(("w2", "w3", "w4", "w5", "w6"), Conclude)


@pytest.mark.parametrize("coming", [True, False])
def test_a_job_shrinks_only_if_there_is_no_standby(coming: bool) -> None:
    rig = masking(machines=3, standbys=int(coming), no_standby="shrink")
    rig.lose("m1")
    rig.halted("w0", "w2")
    assert rig.told("policy")[0] == (
        "recover: role 1: there is a standby" if coming else "mask: role 1: there is no standby"
    )


def test_replacing_a_parked_machine_waits_until_it_has_its_role_again() -> None:
    rig = masking(machines=4, twins=TWINS)
    rig.lose("m1")
    rig.halted("w0", "w2", "w3")
    all_workers_switch(rig)
    rig.say("w0", Parked(0))
    rig.come("m4", standby=True)
    rig.come("m5", standby=True)
    rig.here("m4")
    rig.here("m5")
    assert rig.ask("r1", Replace(("m0",))) is None
    assert rig.told("change") == ["refill: m0 for role 0, m4 for role 1"]


def test_what_is_weighed_again_is_said_once() -> None:
    rig = masking(machines=2, standbys=1, no_standby="shrink")
    rig.exits("w2")
    rig.lose("m1")
    rig.halted("w0")
    said = rig.told("policy")
    assert len(said) == 1
    rig.come("m5", standby=True)
    assert rig.told("policy")[: len(said)] == said
    assert len(set(rig.told("policy"))) == len(rig.told("policy"))


def test_the_primary_role_is_announced_when_it_changes() -> None:
    rig = masking(machines=4, twins=TWINS)
    assert rig.told("primary") == ["role 0 is the primary role: job.is_primary is true there"]
    rig.lose("m1")
    rig.halted("w0", "w2", "w3")
    all_workers_switch(rig)
    assert rig.told("primary")[1:] == ["role 2 is the primary role: job.is_primary is true there"]
