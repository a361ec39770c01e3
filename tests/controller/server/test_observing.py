"""From heartbeats to announcements: each step is announced once, when all workers have reported it."""

from __future__ import annotations

from tests.controller.core.rig import Rig
from understudy.controller.core.events import Noted
from understudy.controller.server.observing import Observing, classes_of
from understudy.controller.server.views import job_view
from understudy.protocol.samples import Sample
from understudy.protocol.settings import StragglerSettings

MESH = (("dp", 3),)


class Watched:
    """Three machines with a role each, of which the last may be slow."""

    def __init__(self, **settings: float) -> None:
        self.rig = Rig.training(3)
        self.observing = Observing(StragglerSettings(**{"window": 10, **settings}), MESH)  # type: ignore[arg-type]
        self.step, self.now = 0, 0.0
        self.look()

    def steps(self, count: int, slow: float = 1.0, *, silent: int = -1, uid: str = "w2") -> list[Noted]:
        told = []
        for _ in range(count):
            self.step += 1
            uids = ("w0", "w1", uid)
            times = (1.0 + self.step % 3 / 100, 1.01, slow)
            for role in range(3):
                if role != silent:
                    self.observing.hear([Sample(uids[role], role, self.step, times[role], (), 0.0)])
            told += self.look()
        return told

    def look(self) -> list[Noted]:
        self.now += 1.0
        return self.observing.look(self.rig.job, self.now)


def test_a_straggler_is_told_once_with_its_machine() -> None:
    watched = Watched()
    assert not watched.steps(30)
    (noted,) = watched.steps(40, slow=1.4)
    assert noted.kind == "straggler"
    assert (noted.data["machine"], noted.data["role"], noted.data["part"]) == ("m2", 2, "compute")
    assert noted.text.startswith("m2 role 2: compute 1.")
    (event,) = watched.rig.feed(noted)
    assert (getattr(event, "kind", ""), getattr(event, "text", "")) == ("straggler", noted.text)
    finding = watched.observing.suspects["m2"]
    assert finding.steps > 10
    view = job_view("gpt", watched.rig.job, {}, watched.observing.findings)
    assert [each.machine for each in view.stragglers] == ["m2"]
    (over,) = watched.steps(40)
    assert over.kind == "caught-up"
    assert not watched.observing.suspects


def test_a_step_waits_until_all_have_told_but_not_for_ever() -> None:
    watched = Watched()
    watched.steps(5, silent=1)
    assert len(watched.observing._steps) == 5
    watched.steps(30, silent=1)
    assert len(watched.observing._steps) <= 31


def test_a_replaced_worker_is_forgotten_and_its_late_reports_do_not_count() -> None:
    watched = Watched()
    watched.steps(40, slow=1.4)
    assert watched.observing.suspects
    watched.rig.replace("m2")
    assert not watched.steps(40, slow=1.4)
    assert not watched.observing.suspects
    assert [noted.kind for noted in watched.steps(40, slow=1.4, uid="w3")] == ["straggler"]
    assert list(watched.observing.suspects) == ["m3"]


def test_the_detection_of_stragglers_can_be_switched_off() -> None:
    watched = Watched(threshold=0.0)
    assert not watched.steps(40, slow=2.0)
    assert not watched.observing._steps


def test_samples_are_examined_about_once_a_second() -> None:
    watched = Watched()
    watched.observing.hear([Sample(f"w{role}", role, 1, 1.0, (), 0.0) for role in range(3)])
    assert not watched.observing.look(watched.rig.job, watched.now + 0.5)
    assert watched.observing._steps
    watched.look()
    assert not watched.observing._steps


def test_before_the_first_generation_there_is_nothing_to_look_at() -> None:
    assert not Observing(StragglerSettings(), MESH).look(Rig(machines=2).job, 5.0)


def test_roles_of_a_stage_do_the_same_work() -> None:
    mesh = (("pp", 2), ("dp", 2), ("tp", 2))
    classes = classes_of(mesh)
    assert classes[0] == classes[3] == (0, 1, 2, 3)
    assert classes[4] == (4, 5, 6, 7)
    assert classes_of((("dp_replicate", 2), ("expert", 2)))[0] == (0, 2)
