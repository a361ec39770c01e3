"""Machines that come by themselves, and go: dismissed, asked to, killed, or because the job was ended at once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.jobs.joined import Play
from understudy.verify.leftovers import enclosure

pytestmark = [pytest.mark.job, pytest.mark.timeout(200)]

HERE = "127.0.0.1"


def test_machines_come_and_go(tmp_path: Path) -> None:
    with enclosure() as place:
        play = Play(tmp_path / "job", HERE)
        try:
            _direct(play)
        finally:
            play.close()
        assert place.leftovers({}) == []


def _direct(play: Play) -> None:
    first, second = play.join("m0", HERE), play.join("a", HERE)
    play.until(lambda: play.step >= 1, "the first step")
    assert play.machine("m0")["roles"] == [1], "places go by name, the shortest first"
    third = play.join("b", HERE)
    play.is_refused("x", HERE)
    play.waits("b")

    second.send_signal(signal.SIGTERM)
    play.plays("b", 0)
    assert second.wait(60) == 0, play.said("a")
    assert play.said("a") == "understudy: a has left\n"
    assert "a is released" in play.texts("released")

    fourth = play.join("c", HERE)
    play.waits("c")
    third.kill()  # its agent and workers go with it
    play.plays("c", 0)
    play.steps(2)

    play.run.send_signal(signal.SIGINT)
    play.run.send_signal(signal.SIGINT)
    assert play.run.wait(20) == 130
    for process, name in ((first, "m0"), (fourth, "c")):
        assert process.wait(15) == 0, play.said(name)
        assert f"{name} is dismissed" in play.said(name)
