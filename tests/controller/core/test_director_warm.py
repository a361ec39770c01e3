"""Standbys rehearse before they are needed, and then take a role of that class at once."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig
from understudy.controller.core.events import Replace
from understudy.controller.server.views import machines_view
from understudy.protocol.frames import EndWorker, StartWorker
from understudy.protocol.messages import EarlyReading, Halted, Rehearse, Rehearsed

TWINS = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
"""Two stages of a pipeline, two copies of each."""


def pipeline(standbys: int = 1) -> Rig:
    return Rig.training(machines=4, standbys=standbys, twins=TWINS, warm=1)


def rehearses(rig: Rig, uid: str, role: int, *also: int, seconds: float = 2.0) -> None:
    assert rig.job.workers[uid].rehearsing == role
    rig.say(uid, Rehearsed(role, seconds, also))


def test_a_standby_rehearses_each_kind_of_role_and_waits_in_the_most_common() -> None:
    rig = Rig.training(machines=3, standbys=1, twins={0: (0,), 1: (1, 2), 2: (1, 2)}, warm=1)
    rehearses(rig, "w3", 0)
    rehearses(rig, "w3", 1, 1, 2)
    assert rig.job.workers["w3"].rehearsing is None
    (view,) = [view for view in machines_view(rig.job) if view.name == "m3"]
    assert (view.rehearsed, view.rehearsal_seconds) == ((1, 2), {0: 2.0, 1: 2.0})


def test_one_rehearsal_is_enough_for_one_role_class() -> None:
    rig = Rig.training(machines=3, standbys=1, warm=1)
    rehearses(rig, "w3", 0, 0, 1, 2)
    assert rig.job.workers["w3"].rehearsing is None


def test_standbys_wait_in_different_kinds() -> None:
    rig = pipeline(standbys=2)
    for _ in range(2):
        for uid in ("w4", "w5"):
            role = rig.job.workers[uid].rehearsing
            if role is not None:
                rehearses(rig, uid, role, *TWINS[role])
    waiting = [rig.job.workers[uid].rehearsed for uid in ("w4", "w5")]
    assert None not in waiting
    assert {role // 2 for role in waiting if role is not None} == {0, 1}


def test_a_script_that_knows_its_replica_is_covered_role_by_role() -> None:
    rig = Rig.training(machines=2, standbys=2, warm=1)
    rehearses(rig, "w2", 0)
    assert rig.job.workers["w3"].rehearsing == 1


def test_a_role_of_the_same_kind_is_taken_at_once() -> None:
    rig = pipeline(standbys=1)
    while (role := rig.job.workers["w4"].rehearsing) is not None:
        rehearses(rig, "w4", role, *TWINS[role])
    parked = rig.job.workers["w4"].rehearsed
    assert parked is not None
    (other,) = set(TWINS[parked]) - {parked}
    rig.heard()
    rig.exits(f"w{other}")
    rig.halted(*sorted(rig.job.unreported))
    assert rig.heard()["w4"][-1] == Rehearse(other)
    rig.say("w4", Rehearsed(other, 0.0, TWINS[parked]))
    assert rig.phase() == "open"


def test_a_role_of_another_kind_is_rehearsed_by_the_same_worker() -> None:
    rig = pipeline(standbys=1)
    while (role := rig.job.workers["w4"].rehearsing) is not None:
        rehearses(rig, "w4", role, *TWINS[role])
    parked = rig.job.workers["w4"].rehearsed
    other = 2 if parked in (0, 1) else 0
    rig.orders()
    rig.exits(f"w{other}")
    rig.halted(*sorted(rig.job.unreported))
    orders = rig.orders()["m4"]
    assert not any(isinstance(order, StartWorker) for order in orders)
    assert rig.job.workers["w4"].rehearsing == other


def test_a_worker_that_had_to_be_started_anew_begins_again() -> None:
    rig = Rig.training(machines=2, standbys=1, warm=1)
    rehearses(rig, "w2", 0, 0, 1)
    rig.exits("w2")
    assert rig.job.machines["m2"].rehearsal_seconds == {}
    rig.here("m2")
    assert rig.job.workers["w3"].rehearsing == 0


@pytest.mark.parametrize("warm", [0, 2])
def test_how_many_are_kept(warm: int) -> None:
    """None: nothing is rehearsed. Two: a second set of workers, for what the first cannot take at once."""
    rig = Rig.training(machines=2, standbys=1, copies=False, warm=warm)
    if not warm:
        assert rig.job.workers["w2"].rehearsing is None
        return
    while (role := rig.job.workers["w2"].rehearsing) is not None:
        rehearses(rig, "w2", role)
    rig.here("m2")
    assert rig.job.workers["w3"].rehearsing == 1 - rig.job.workers["w2"].rehearsed  # type: ignore[operator]


def test_a_standby_with_which_the_job_begins_anew_keeps_one_set_of_workers() -> None:
    rig = Rig.training(machines=2, standbys=1, copies=False, warm=2)
    while (role := rig.job.workers["w2"].rehearsing) is not None:
        rehearses(rig, "w2", role)
    rig.here("m2")
    assert rig.job.machines["m2"].warm_sets
    rig.lose("m1")
    rig.say("w0", Halted(rig.job.halts, 1, 1, False, True))
    rig.say("w2", Halted(rig.job.halts, 0, 0, False, False))
    assert rig.job.restarts == 1
    assert rig.states()["m2"] == "active"
    assert not rig.job.machines["m2"].warm_sets


def test_a_process_that_knows_its_role_from_its_imports_waits_there_and_another_one_takes_other_roles() -> None:
    rig = Rig.training(machines=2, standbys=1, copies=False, warm=1)
    rig.say("w2", Rehearsed(rig.job.workers["w2"].rehearsing or 0, 2.0, fixed=True))
    parked = rig.job.workers["w2"].rehearsed
    assert parked is not None
    assert rig.job.workers["w2"].rehearsing is None  # no further rehearsal
    rig.orders()
    rig.ask("r1", Replace((f"m{1 - parked}",)))
    assert rig.orders()["m2"] == [EndWorker("w2"), StartWorker("w3", 0)]
    rig.here("m2")
    assert rig.job.workers["w3"].rehearsing == 1 - parked


def test_a_standby_worker_that_ends_to_change_its_role_has_not_failed() -> None:
    rig = Rig.training(machines=2, standbys=1, warm=1)
    rig.exits("w2", code=0)
    assert rig.job.machines["m2"].failures == 0
    rig.here("m2")
    assert rig.job.workers["w3"].rehearsing == 0


def test_a_flag_that_was_evaluated_too_early_is_announced_once() -> None:
    rig = Rig.training(standbys=2, warm=1)
    reading = EarlyReading("job.is_primary", value=False, file="train.py", line=83)
    for uid in ("w2", "w3"):
        rig.say(uid, Rehearsed(rig.job.workers[uid].rehearsing or 0, 2.0, early=(reading,)))
    (text,) = rig.told("rehearsal")
    assert text.startswith(
        "train.py line 83 evaluates job.is_primary before the first step: it is False in a rehearsal and can be True "
        "once this standby has a role (role 0 is the primary one); keep the flag itself"
    )
