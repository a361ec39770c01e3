"""What keeps the director's work for an event apart from the number of machines, and that nothing is missed by it."""

from __future__ import annotations

import pytest

from tests.controller.core.play import Play
from understudy.controller.core import standbys
from understudy.controller.core.events import Replace
from understudy.protocol.messages import Prepared, Saved, Switched

pytestmark = pytest.mark.timeout(60)


def addressed(play: Play) -> list[str]:
    """Who was given orders since the last look."""
    found = sorted(play.job.addressed)
    play.job.addressed.clear()
    return found


def test_exactly_those_who_were_given_orders_are_named() -> None:
    play = Play.training(machines=3, standbys=1)
    addressed(play)
    play.ask("r1", Replace(("m1",)))
    assert addressed(play) == ["m3"]  # it rehearses
    play.rehearsed()
    assert addressed(play) == ["m0", "m1", "m2", "m3"]
    play.say("w0", Prepared(play.change.generation))
    assert addressed(play) == []


def test_words_that_are_only_counted_do_not_lead_to_another_look(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play.training(machines=3, standbys=1)
    play.replace("m1", until="prepare")
    looks: list[str] = []
    monkeypatch.setattr(standbys, "anticipate", lambda job: looks.append(job.status))
    *others, last = sorted(play.change.waiting)
    for uid in others:
        play.say(uid, Prepared(play.change.generation))
    play.say("w0", Saved(0, 5))
    assert looks == []
    play.say(last, Prepared(play.change.generation))
    assert looks == ["training"]
    assert play.phase() == "armed"
    play.say("w0", Switched(play.change.generation, 5))
    assert len(looks) == 2  # another roster is played in


def test_a_worker_that_died_before_the_first_switch_is_noticed_with_it() -> None:
    play = Play.training(machines=3, standbys=1)
    play.replace("m1", until="armed")
    play.job.workers["w2"].alive = False  # unseen so far
    play.say("w0", Switched(play.change.generation, 5))
    assert play.status() == "halting"


def test_the_first_generation_waits_for_the_last_worker_of_those_who_are_to_play() -> None:
    play = Play(machines=3)
    for name in ("m0", "m1", "m2"):
        play.come(name)
    play.come("m3", standby=True)
    play.here("m2")
    play.here("m0")
    assert play.job.change is None
    play.here("m1")
    assert play.phase() == "open"  # m3, which has not said so yet, is none of them


def test_machines_that_play_are_known_anew_with_each_roster() -> None:
    play = Play.training(machines=2, standbys=1)
    assert play.job.homes() == {"m0": 0, "m1": 1}
    play.replace("m1")
    assert play.job.homes() == {"m0": 0, "m2": 1}
