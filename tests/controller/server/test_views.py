"""What operators see of a job, from its first machine to its end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.controller.core.rig import STAGES, Rig, Stage
from understudy.controller.core.events import AddStandby, RemoveStandby, Replace, StopJob
from understudy.controller.server.views import (
    ChangeView,
    JobView,
    MachineView,
    RoleView,
    job_view,
    machines_view,
    roster_view,
)
from understudy.protocol.frames import Beat
from understudy.protocol.messages import Done, Halted, Switched

DP = (("dp", 2),)


def job(rig: Rig, **beats: Beat) -> JobView:
    return job_view("gpt", rig.job, beats)


def machine(rig: Rig, name: str) -> MachineView:
    (found,) = [view for view in machines_view(rig.job) if view.name == name]
    return found


def forming() -> Rig:
    rig = Rig(machines=2)
    rig.come("m0")
    return rig


# -- the job -----------------------------------------------------------------------------------------------------------


def test_the_views_before_any_machine_has_come() -> None:
    rig = Rig(machines=2)
    waits = "waits for 2 more of 2 machines; here: none"
    assert job(rig) == JobView("gpt", "forming", waits, 0, -1, 0.0, {}, None, 0, {})
    assert machines_view(rig.job) == []
    assert roster_view(rig.job, DP) == []


def test_the_first_generation_opens() -> None:
    rig = forming()
    rig.come("m1")
    for name in ("m0", "m1"):
        rig.here(name)
    view = job(rig)
    assert (view.status, view.generation) == ("forming", 0)
    assert view.change == ChangeView("form", "open", 1, (), ("m0", "m1"))
    rig.say("w0", Switched(1, 0))
    view = job(rig)
    assert (view.status, view.generation) == ("forming", 1)
    assert view.change == ChangeView("form", "switch", 1, (), ("m0", "m1"))
    rig.say("w1", Switched(1, 0))
    view = job(rig)
    assert (view.status, view.generation, view.change) == ("training", 1, None)


@pytest.mark.parametrize(
    ("until", "change", "generation", "standbys"),
    [
        ("rehearse", ChangeView("replace", "rehearse", 0, ("m1",), ("m2",)), 1, 2),
        ("prepare", ChangeView("replace", "prepare", 2, ("m1",), ("m2",)), 1, 2),
        ("armed", ChangeView("replace", "armed", 2, ("m1",), ("m2",)), 1, 2),
        ("switch", ChangeView("replace", "switch", 2, ("m1",), ("m2",)), 2, 2),
        ("seated", None, 2, 1),
        ("settled", None, 2, 1),
    ],
)
def test_a_replacement(until: Stage, change: ChangeView | None, generation: int, standbys: int) -> None:
    rig = Rig.training(standbys=2)
    rig.replace(until=until)
    view = job(rig)
    assert (view.status, view.change, view.generation, view.standbys) == ("training", change, generation, standbys)


def test_a_replacement_that_is_given_up() -> None:
    rig = Rig.training()
    rig.replace(until="prepare")
    rig.lose("m2")
    assert job(rig).change == ChangeView("replace", "cancel", 2, ("m1",), ("m2",))


def test_a_failure_and_its_end() -> None:
    rig = Rig.training()
    rig.exits("w1")
    assert (job(rig).status, job(rig).change) == ("halting", None)
    rig.halted("w0")
    assert job(rig).status == "recovering"
    assert job(rig).change == ChangeView("recover", "rehearse", 0, (), ("m0", "m2"))
    rig.rehearsed()
    assert job(rig).change == ChangeView("recover", "open", 2, (), ("m0", "m2"))
    rig.all_switch()
    assert (job(rig).status, job(rig).change) == ("training", None)
    rig.settled()
    assert job(rig).standbys == 1  # m1: its agent lives


def test_the_reason_of_a_failed_job() -> None:
    rig = Rig.training()
    rig.say("w1", Halted(0, 1, 3, False, True, how="mismatch", reason="all_reduce of 3 and of 4 numbers"))
    view = job(rig)
    assert (view.status, view.reason) == ("failed", "role 1 (w1 on m1) in step 3: all_reduce of 3 and of 4 numbers")


def test_what_training_waits_for() -> None:
    rig = Rig.training(standbys=0)
    rig.lose("m1")
    rig.halted("w0")
    view = job(rig)
    assert (view.status, view.reason) == ("halting", "m1 is gone: no heartbeat; no standby is left for role 1")


@pytest.mark.parametrize("stopped", [False, True])
def test_the_digests_come_as_the_roles_are_done(stopped: bool) -> None:
    rig = Rig.training()
    if stopped:
        rig.ask("r1", StopJob())
    assert job(rig).digests == {}
    rig.say("w1", Done(9, "bb", stopped))
    assert (job(rig).status, job(rig).step, job(rig).digests) == ("training", 9, {1: "bb"})
    rig.say("w0", Done(9, "aa", stopped))
    assert job(rig).digests == {0: "aa", 1: "bb"}
    assert job(rig).status == ("stopped" if stopped else "finished")


@pytest.mark.parametrize(
    ("beats", "step", "values", "seconds"),
    [
        ({}, -1, {}, 0.0),
        ({"m0": Beat(3, {"loss": 2.5}, 0.25, True)}, 3, {"loss": 2.5}, 0.25),
        ({"m0": Beat(3, {"loss": 2.5}, 0.25), "m1": Beat(4, {"loss": 2.0}, 0.5)}, 4, {"loss": 2.0}, 0.5),
        ({"m0": Beat(4, {"loss": 2.5}, 0.25, True), "m1": Beat(4, {}, 0.5)}, 4, {"loss": 2.5}, 0.25),
        ({"m0": Beat(4, {}, 0.5), "m1": Beat(4, {"loss": 2.5}, 0.25, True)}, 4, {"loss": 2.5}, 0.25),
        ({"m0": Beat(5, {}, 0.5), "m1": Beat(4, {"loss": 2.5}, 0.25, True)}, 5, {"loss": 2.5}, 0.5),
    ],
    ids=["none", "one", "the latest", "the primary's", "the primary's last", "the primary is behind"],
)
def test_progress_is_what_the_latest_beat_says(
    beats: dict[str, Beat], step: int, values: dict[str, float], seconds: float
) -> None:
    view = job(Rig.training(), **beats)
    assert (view.step, view.values, view.seconds) == (step, values, seconds)


def test_the_last_step_is_known_without_a_heartbeat() -> None:
    rig = Rig.training()
    rig.say("w0", Done(9))
    assert job(rig, m0=Beat(7)).step == 9


@pytest.mark.parametrize("until", STAGES)
def test_a_view_is_plain_json(until: Stage) -> None:
    rig = Rig.training()
    rig.replace(until=until)
    views: list[Any] = [
        job(rig, m0=Beat(3, {"loss": 2.5})),
        machines_view(rig.job),
        roster_view(rig.job, DP),
    ]
    types = [JobView, list[MachineView], list[RoleView]]
    for view, kind in zip(views, types, strict=True):
        assert msgspec.json.decode(msgspec.json.encode(view), type=kind) == view


# -- machines ----------------------------------------------------------------------------------------------------------


def test_a_machine_from_its_coming_on() -> None:
    rig = forming()
    assert machines_view(rig.job) == [MachineView("m0", "active", (), ("w0",), (0,))]
    rig.here("m0")
    assert machine(rig, "m0").pids == (100,)
    assert machine(rig, "m0").roles == ()
    rig.come("m1")
    rig.here("m1")
    rig.all_switch(step=0)
    assert machines_view(rig.job) == [
        MachineView("m0", "active", (0,), ("w0",), (100,)),
        MachineView("m1", "active", (1,), ("w1",), (101,)),
    ]


@pytest.mark.parametrize(
    ("until", "leaver", "joiner"),
    [
        ("rehearse", ("leaving", (2, 3)), ("standby", ())),
        ("armed", ("leaving", (2, 3)), ("standby", ())),
        ("switch", ("leaving", ()), ("standby", (2, 3))),
        ("seated", ("leaving", ()), ("active", (2, 3))),
        ("settled", ("gone", ()), ("active", (2, 3))),
    ],
)
def test_the_machines_of_a_replacement(
    until: Stage, leaver: tuple[str, tuple[int, ...]], joiner: tuple[str, tuple[int, ...]]
) -> None:
    rig = Rig.training(nproc=2)
    rig.replace(until=until)
    views = {view.name: (view.state, view.roles) for view in machines_view(rig.job)}
    assert views == {"m0": ("active", (0, 1)), "m1": leaver, "m2": joiner}


def test_a_machine_that_is_gone_has_a_reason_and_no_workers() -> None:
    rig = Rig.training(standbys=2)
    rig.replace()
    rig.ask("r2", RemoveStandby("m3"))
    rig.lose("m0", "no power")
    assert {name: (machine(rig, name).state, machine(rig, name).why) for name in ("m0", "m1", "m2", "m3")} == {
        "m0": ("gone", "no power"),
        "m1": ("gone", "it was replaced"),
        "m2": ("active", ""),
        "m3": ("gone", "an operator has removed it"),
    }
    for name in ("m0", "m1", "m3"):
        assert (machine(rig, name).workers, machine(rig, name).pids) == ((), ())
    assert machine(rig, "m0").roles == (0,)  # it is known to be its until another one has it


def test_a_worker_that_died_is_not_listed() -> None:
    rig = Rig.training(nproc=2)
    rig.exits("w3")
    assert machine(rig, "m1") == MachineView(
        "m1", "active", (2, 3), ("w2",), (102,), failures=1, history=((22.0, "w3 was killed by signal 9"),)
    )
    rig.exits("w4")  # of the standby, which gets another one
    assert machine(rig, "m2") == MachineView(
        "m2", "standby", (), ("w6", "w5"), (0, 105), failures=1, history=((23.0, "w4 was killed by signal 9"),)
    )


def test_a_machine_that_comes_again_is_listed_once() -> None:
    rig = Rig.training()
    rig.come("m2", standby=True, incarnation="m2-b")
    assert [view.name for view in machines_view(rig.job)] == ["m0", "m1", "m2"]
    assert machine(rig, "m2") == MachineView(
        "m2", "standby", (), ("w3",), (0,), failures=1, history=((13.0, "its agent was started again"),)
    )


def test_standbys_that_are_wanted_are_not_there_yet() -> None:
    rig = Rig.training(standbys=1)
    rig.ask("r1", AddStandby(2))
    assert job(rig).standbys == 1
    rig.come("m3", standby=True)
    assert job(rig).standbys == 2


# -- roles -------------------------------------------------------------------------------------------------------------


def test_the_roster_view_names_the_coordinates_and_the_worker_of_each_role() -> None:
    rig = Rig.training(nproc=2)
    mesh, twins = (("pp", 2), ("dp", 2)), (0, 1, 2, 3)
    assert roster_view(rig.job, mesh) == [
        RoleView(0, {"pp": 0, "dp": 0}, "w0", "m0", twins, "live replica"),
        RoleView(1, {"pp": 0, "dp": 1}, "w1", "m0", twins, "live replica"),
        RoleView(2, {"pp": 1, "dp": 0}, "w2", "m1", twins, "live replica"),
        RoleView(3, {"pp": 1, "dp": 1}, "w3", "m1", twins, "live replica"),
    ]
    rig.replace(until="armed")
    assert [view.machine for view in roster_view(rig.job, mesh)] == ["m0", "m0", "m1", "m1"]
    rig.all_switch()
    assert roster_view(rig.job, mesh)[2:] == [
        RoleView(2, {"pp": 1, "dp": 0}, "w4", "m2", twins, "live replica"),
        RoleView(3, {"pp": 1, "dp": 1}, "w5", "m2", twins, "live replica"),
    ]


def test_the_roster_view_of_a_halting_job_is_the_last_roster_in_use() -> None:
    rig = Rig.training()
    rig.lose("m1")
    assert [(view.worker, view.machine) for view in roster_view(rig.job, DP)] == [("w0", "m0"), ("w1", "m1")]
    rig.halted("w0")
    rig.rehearsed()
    rig.all_switch()
    assert [(view.worker, view.machine) for view in roster_view(rig.job, DP)] == [("w0", "m0"), ("w2", "m2")]


def test_a_request_that_waits_is_not_a_change() -> None:
    rig = Rig.training(standbys=0)
    rig.ask("r0", AddStandby())
    assert rig.ask("r1", Replace(("m1",))) is None
    assert job(rig).change is None
    assert machine(rig, "m1").state == "active"
