"""The steward of a job: what it sees, what it asks for, and that it keeps to its limits after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.controller.core.rig import Rig
from understudy.controller.core.director import Director
from understudy.controller.core.effects import Announcement
from understudy.controller.core.events import AddStandby, Asked, Event, Noted, RemoveStandby, Replace
from understudy.controller.server.steward import Steward
from understudy.protocol.messages import Rehearsed, Settled, Switched, Tracked
from understudy.protocol.settings import StewardSettings
from understudy.steward.stragglers import Straggler

SLOW = Straggler(1, "backward", 1.3, 20, "m1 role 1: backward 1.30x its class for 20 steps", "m1")


@dataclass
class Watched:
    """A job, its steward, and the slow machines."""

    rig: Rig
    rules: StewardSettings
    slow: dict[str, Straggler] = field(default_factory=dict)
    asked: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids: Iterator[int] = count()
        self.steward = self.another()

    def another(self) -> Steward:
        job, announcements = self.rig.job, self.rig.announcements
        return Steward(self.rules, job, announcements, lambda: self.slow, lambda: f"s{next(self.ids)}")

    def looks(self, times: int) -> list[Event]:
        """So many seconds pass; what it does is done, and returned."""
        done: list[Event] = []
        for _ in range(times):
            self.rig.now += 1.0
            for event in self.steward.look(self.rig.now):
                self.rig.feed(event)
                done.append(event)
        return done


def watched(rules: StewardSettings, standbys: int = 1, **more: Any) -> Watched:
    return Watched(Rig.training(standbys=standbys, **more), rules)


def test_what_it_would_do_is_told_and_nothing_else_happens() -> None:
    job = watched(StewardSettings("tell", looks=3))
    job.slow["m1"] = SLOW
    (note,) = job.looks(20)
    text = "would replace m1: m1 role 1: backward 1.30x its class for 20 steps, in 3 checks"
    assert note == Noted("steward", text, {"act": "replace", "machine": "m1"})
    assert job.rig.told("steward") == [text]
    assert job.rig.job.change is None


def test_when_it_may_act_it_asks_as_an_operator_would_with_the_reason_before_it() -> None:
    job = watched(StewardSettings("act", looks=3))
    job.slow["m1"] = SLOW
    note, asked = job.looks(3)
    assert isinstance(note, Noted)
    assert note.text.startswith("replaces m1: ")
    assert asked == Asked("s0", Replace(("m1",)))
    assert job.looks(20) == []
    job.rig.go_on("settled")
    assert job.rig.answered("s0")[0]
    assert job.rig.states() == {"m0": "active", "m1": "gone", "m2": "active"}


def test_only_a_machine_with_a_role_can_be_slow_and_a_joiner_is_left_alone() -> None:
    job = watched(StewardSettings("act", looks=1, rest=600.0), standbys=2)
    job.looks(1)
    job.rig.replace("m1")
    job.slow |= {"m1": SLOW, "m2": SLOW, "m3": SLOW}
    notes = [event for event in job.looks(20) if isinstance(event, Noted)]
    assert [note.text.partition(" (")[0] for note in notes] == ["m2 is not replaced: it joined less than 10 min ago"]
    assert len(job.looks(600)) == 2


def test_a_machine_that_began_with_the_job_is_no_joiner() -> None:
    rig = Rig(machines=2)
    job = Watched(rig, StewardSettings("act", looks=1, rest=600.0), {"m1": SLOW})
    job.looks(2)  # a controller looks before any machine has come
    for name in ("m0", "m1", "m2"):
        rig.come(name, standby=name == "m2")
        rig.here(name)
        job.looks(2)
    for role, uid in enumerate(("w0", "w1")):
        rig.say(uid, Switched(1, 0), Tracked(role, (0, 1)))
    rig.each(rig.seats(), Settled(1, 1, None))
    assert rig.status() == "training"
    assert [type(event) for event in job.looks(1)] == [Noted, Asked]
    assert rig.job.change is not None
    assert rig.job.change.leaving == ("m1",)


def test_a_standby_that_has_not_rehearsed_is_not_ready() -> None:
    job = watched(StewardSettings("act", looks=1), warm=1)
    job.slow["m1"] = SLOW
    (note,) = job.looks(5)
    assert isinstance(note, Noted)
    assert note.text.startswith("m1 is not replaced: no standby is ready")
    job.rig.say("w2", Rehearsed(0, 1.0, (0, 1)))
    assert any(isinstance(event, Asked) for event in job.looks(2))


def test_a_standby_that_is_used_is_asked_for_while_the_other_still_joins() -> None:
    job = watched(StewardSettings(pool=1))
    assert job.looks(100) == []
    job.rig.replace("m1", until="prepare")
    note, asked = job.looks(60)
    assert note == Noted("steward", "asks for 1 standby: 0 of 1 free", {"act": "pool"})
    assert asked == Asked("s0", AddStandby(1))
    assert job.rig.told("wanted") == ["1 standby machine wanted"]
    job.rig.come("m3", standby=True)
    job.rig.here("m3")
    job.rig.go_on("settled")
    assert job.looks(200) == []


def test_what_is_too_many_goes() -> None:
    job = watched(StewardSettings(pool=1, cool_down=30.0), standbys=2)
    note, asked = job.looks(100)
    assert note == Noted("steward", "lets m3 go: 2 standbys for 31 s, 1 needed", {"act": "pool"})
    assert isinstance(asked, Asked)
    assert isinstance(asked.request, RemoveStandby)
    assert job.rig.states()["m3"] == "gone"
    assert [event.data["machine"] for event in job.rig.announcements if event.kind == "released"] == ["m3"]
    assert "too many" in job.rig.job.machines["m3"].why


def test_a_machine_that_was_lost_comes_back_before_another_is_asked_for() -> None:
    job = watched(StewardSettings(pool=1, returning=15.0), mask="anywhere")
    job.rig.lose("m2")
    assert job.looks(10) == []
    job.rig.come("m2", standby=True, incarnation="m2-b")
    job.rig.here("m2")
    assert job.looks(100) == []


def test_while_training_waits_for_a_machine_only_the_director_asks() -> None:
    job = watched(StewardSettings("act", pool=2, looks=1), standbys=0)
    job.slow["m1"] = SLOW
    job.rig.lose("m0")
    job.rig.halted("w1")
    assert job.rig.status() == "halting"
    assert job.looks(50) == []
    assert job.rig.told("wanted") == ["1 standby machine wanted"]


def test_a_controller_that_comes_back_keeps_to_the_same_limits() -> None:
    """It reads its ledger: the requests and replacements of the last hour are in it, reasons and all."""
    rules = StewardSettings("tell", pool=2, budget=2, looks=2, replacements=1, rest=5000.0, cool_down=0.0)
    job = watched(rules)
    job.rig.ask("r0", AddStandby())
    job.slow["m1"] = SLOW
    done = [event for event in job.looks(5) if not isinstance(event, Noted) or event.data["act"] == "replace"]
    assert len(done) == 1
    job.rig.feed(Asked("r1", AddStandby()))

    again = Rig(2)
    for at, event in job.rig.ledger:
        again.announcements += [event for event in again.director.feed(event, at) if isinstance(event, Announcement)]
    again.now = job.rig.now
    assert isinstance(again.director, Director)
    job.rig, before = again, job.steward
    job.steward = job.another()
    names = [[name for _, name in steward.memory.replaced] for steward in (before, job.steward)]
    assert names == [["m1"], ["m1"]]
    again.director.job.wanted = 0  # they never came
    job.slow["m0"] = SLOW
    notes = [event for event in job.looks(500) if isinstance(event, Noted)]
    assert {note.data["act"] for note in notes} == {"none"}
