"""The director's work for an event does not depend on the number of machines, and it misses no event."""

from __future__ import annotations

import pytest

from tests.controller.core.rig import Rig
from understudy.controller.core import standbys
from understudy.controller.core.events import Replace
from understudy.protocol.messages import Prepared, Saved, Switched

pytestmark = pytest.mark.timeout(60)


def addressed(rig: Rig) -> list[str]:
    """The machines that were given orders since the last call."""
    found = sorted(rig.job.addressed)
    rig.job.addressed.clear()
    return found


def test_exactly_the_machines_with_orders_are_named() -> None:
    rig = Rig.training(machines=3, standbys=1)
    addressed(rig)
    rig.ask("r1", Replace(("m1",)))
    assert addressed(rig) == ["m3"]  # it rehearses
    rig.rehearsed()
    assert addressed(rig) == ["m0", "m1", "m2", "m3"]
    rig.say("w0", Prepared(rig.change.generation))
    assert addressed(rig) == []


def test_words_that_are_only_counted_do_not_lead_to_another_look(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig.training(machines=3, standbys=1)
    rig.replace("m1", until="prepare")
    looks: list[str] = []
    monkeypatch.setattr(standbys, "anticipate", lambda job: looks.append(job.status))
    *others, last = sorted(rig.change.waiting)
    for uid in others:
        rig.say(uid, Prepared(rig.change.generation))
    rig.say("w0", Saved(0, 5))
    assert looks == []
    rig.say(last, Prepared(rig.change.generation))
    assert looks == ["training"]
    assert rig.phase() == "armed"
    rig.say("w0", Switched(rig.change.generation, 5))
    assert len(looks) == 2  # another roster is played in


def test_a_worker_that_died_before_the_first_switch_is_noticed_with_it() -> None:
    rig = Rig.training(machines=3, standbys=1)
    rig.replace("m1", until="armed")
    rig.job.workers["w2"].alive = False  # unseen so far
    rig.say("w0", Switched(rig.change.generation, 5))
    assert rig.status() == "halting"


def test_the_first_generation_waits_for_the_last_worker_with_a_role() -> None:
    rig = Rig(machines=3)
    for name in ("m0", "m1", "m2"):
        rig.come(name)
    rig.come("m3", standby=True)
    rig.here("m2")
    rig.here("m0")
    assert rig.job.change is None
    rig.here("m1")
    assert rig.phase() == "open"  # m3, which has not said so yet, is none of them


def test_machines_with_roles_are_computed_anew_for_each_roster() -> None:
    rig = Rig.training(machines=2, standbys=1)
    assert rig.job.homes() == {"m0": 0, "m1": 1}
    rig.replace("m1")
    assert rig.job.homes() == {"m0": 0, "m2": 1}
