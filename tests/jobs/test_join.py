"""Machines that join by themselves, and leave: dismissed, on request, killed, or because the job was ended at once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.jobs.joined import JoinedJob
from understudy.verify.leftovers import enclosure

pytestmark = [pytest.mark.job, pytest.mark.timeout(200)]

HERE = "127.0.0.1"


def test_machines_come_and_go(tmp_path: Path) -> None:
    with enclosure() as place:
        joined = JoinedJob(tmp_path / "job", HERE)
        try:
            _direct(joined)
        finally:
            joined.close()
        assert place.leftovers({}) == []


def _direct(joined: JoinedJob) -> None:
    first, second = joined.join("m0", HERE), joined.join("a", HERE)
    joined.until(lambda: joined.step >= 1, "the first step")
    assert joined.machine("m0")["roles"] == [1], "places go by name, the shortest first"
    third = joined.join("b", HERE)
    joined.is_refused("x", HERE)
    joined.waits("b")

    second.send_signal(signal.SIGTERM)
    joined.has_role("b", 0)
    assert second.wait(60) == 0, joined.said("a")
    assert joined.said("a") == "understudy: a has left\n"
    assert "a is released" in joined.texts("released")

    fourth = joined.join("c", HERE)
    joined.waits("c")
    third.kill()  # its agent and workers go with it
    joined.has_role("c", 0)
    joined.steps(2)

    joined.run.send_signal(signal.SIGINT)
    joined.run.send_signal(signal.SIGINT)
    assert joined.run.wait(20) == 130
    for process, name in ((first, "m0"), (fourth, "c")):
        assert process.wait(15) == 0, joined.said(name)
        assert f"{name} is dismissed" in joined.said(name)
