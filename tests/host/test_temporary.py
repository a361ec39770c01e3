"""Temporary folders, and who removes them when whoever made them is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.comm.helpers import eventually
from understudy.chaos import processes
from understudy.host.temporary import scratch, settle

pytestmark = pytest.mark.timeout(60)

BUSY = """
import os, sys
from understudy.host.temporary import scratch
with scratch("test-") as place:
    (place / "deep" / "er").mkdir(parents=True)
    print(os.fork(), flush=True)  # holds what its parent holds
    for number in range(1_000_000):
        try:
            (place / "deep" / "er" / str(number)).write_text("")
        except OSError:
            os._exit(1)
"""
"""Two processes write into the folder all the time."""

ASKED = """
import tempfile
seen = []
tempfile._get_default_tempdir = lambda *args: seen.append(args) or "/"
from understudy.host.temporary import settle
settle()
print(tempfile.gettempdir(), len(seen))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go during a test."""
    before = tempfile.tempdir
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    settle()
    yield tmp_path
    tempfile.tempdir = before


def keeper_of(place: Path) -> int:
    (pid,) = [pid for pid, process in processes.table().items() if str(place) in process.command]
    return pid


def test_it_is_ours_alone_and_goes_with_what_is_in_it(here: Path) -> None:
    with scratch("test-") as place:
        assert place.parent == here
        assert place.name.startswith("test-")
        assert place.stat().st_mode & 0o777 == 0o700
        (place / "deep").mkdir()
        (place / "deep" / "file").write_text("")
    assert not list(here.iterdir())


def test_it_goes_with_an_exception(here: Path) -> None:
    with pytest.raises(KeyError), scratch("test-"):
        raise KeyError
    assert not list(here.iterdir())


def test_a_name_with_spaces_and_dashes_is_a_name(here: Path) -> None:
    (here / "a").write_text("")
    with scratch("-rf a; b-") as place:
        assert place.is_dir()
    assert [path.name for path in here.iterdir()] == ["a"]


def test_when_its_process_is_killed_it_goes(here: Path) -> None:
    """A forked child, which is killed later, may not keep it longer than it lives."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            eventually(lambda: bool(list(here.glob("test-*/deep/er/1"))))
            (place,) = here.iterdir()
            keeper = keeper_of(place)
        finally:
            process.kill()
        os.kill(child, 9)
    eventually(lambda: not place.exists())
    eventually(lambda: keeper not in processes.table())


def test_when_the_keeper_is_killed_it_goes(here: Path) -> None:
    with scratch("test-") as place:
        (place / "file").write_text("")
        os.kill(keeper_of(place), 9)
    assert not list(here.iterdir())


def test_where_no_folder_can_be_made_the_error_says_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(here / "missing"))
    with pytest.raises(OSError, match=r"cannot make a temporary folder: .*missing"), scratch("test-"):
        pass


def test_a_folder_that_is_there_is_left_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: "same")
    (here / "test-same").mkdir()
    with pytest.raises(OSError, match="exists"), scratch("test-"):
        pass
    assert (here / "test-same").is_dir()


def test_python_does_not_try_by_writing_a_file(here: Path) -> None:
    env = {**os.environ, "TMPDIR": str(here)}
    said = subprocess.run([sys.executable, "-c", ASKED], env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said == f"{here} 0\n"


def test_what_cannot_be_written_to_is_pythons_to_judge(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(here / "missing"))
    settle()
    assert tempfile.tempdir is None


def test_what_was_known_before_does_not_hold_for_another_environment(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for workers, which come from a process with an environment of its own."""
    (here / "other").mkdir()
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setenv("TEMP", str(here / "other"))
    settle()
    assert tempfile.gettempdir() == str(here / "other")
