"""The leftovers of a job, apart from what was there before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from understudy.verify import leftovers, processes
from understudy.verify.leftovers import enclosure

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_GRACE_S", 0.1)


def test_a_process_that_still_runs_is_named_until_it_ends() -> None:
    with enclosure() as place:
        child = subprocess.Popen(SLEEP)
        try:
            found = place.leftovers({child.pid: processes.table()[child.pid]})
        finally:
            child.kill()
            child.wait()
        assert len(found) == 1
        assert f"process {child.pid} still runs" in found[0]
        assert place.leftovers({}) == []


def test_processes_from_before_the_job_are_no_leftovers() -> None:
    child = subprocess.Popen(SLEEP)
    try:
        with enclosure() as place:
            assert place.leftovers({child.pid: processes.table()[child.pid]}) == []
    finally:
        child.kill()
        child.wait()


def test_a_file_that_is_left_is_named() -> None:
    with enclosure() as place:
        (place.folder / "left").write_text("")
        assert place.leftovers({}) == [f"temporary file {place.folder / 'left'}"]
    assert not place.folder.exists()
