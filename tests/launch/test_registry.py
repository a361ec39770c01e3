from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from understudy.launch.registry import Entry, NoJob, enter, find, home, running


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path))


def entry(job: str = "gpt", pid: int | None = None) -> Entry:
    return Entry(job, "http://127.0.0.1:1", "ab" * 32, os.getpid() if pid is None else pid, "/runs/1")


def dead() -> int:
    """The pid of a process that has just ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_job_is_found_by_name_and_as_the_only_one() -> None:
    enter(entry())
    assert running() == [entry()]
    assert find() == find("gpt") == entry()


def test_only_the_user_can_read_it() -> None:
    old = os.umask(0)
    try:
        path = enter(entry())
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    assert home().stat().st_mode & 0o777 == 0o700
    assert [found.name for found in home().iterdir()] == [path.name]


def test_a_leftover_draft_does_not_decide_the_permissions(tmp_path: Path) -> None:
    """A file with other permissions may lie where the draft is to be."""
    path = enter(entry())
    path.unlink()
    draft = path.with_suffix(".tmp")
    draft.write_text("old")
    draft.chmod(0o644)
    assert enter(entry()).stat().st_mode & 0o777 == 0o600


def test_entries_of_dead_jobs_are_removed() -> None:
    kept, gone = enter(entry("alive")), enter(entry("dead", dead()))
    assert running() == [entry("alive")]
    assert kept.exists()
    assert not gone.exists()


def test_several_jobs_must_be_told_apart() -> None:
    enter(entry("a"))
    enter(entry("b"))
    assert find("b") == entry("b")
    with pytest.raises(NoJob) as raised:
        find()
    text = str(raised.value)
    assert f"a (pid {os.getpid()})" in text
    assert f"b (pid {os.getpid()})" in text
    assert "--job NAME" in text


def test_two_jobs_of_one_name_can_be_told_apart_too() -> None:
    """By their pids, which is what the message shows."""
    enter(entry("a"))
    enter(entry("a", os.getppid()))
    with pytest.raises(NoJob, match=r"several jobs run here: .*--job PID"):
        find("a")
    assert find(str(os.getppid())) == entry("a", os.getppid())


def test_without_a_job_the_error_says_how_to_start_one() -> None:
    with pytest.raises(NoJob, match=r"no job runs here; start one with understudy run, or give --controller"):
        find()


def test_an_unknown_name_is_answered_with_the_running_jobs() -> None:
    with pytest.raises(NoJob, match=r"no job 'gtp' runs here; start one with understudy run"):
        find("gtp")
    enter(entry("gpt"))
    with pytest.raises(NoJob, match=r"no job 'gtp' runs here; running: gpt"):
        find("gtp")


@pytest.mark.parametrize("garbage", [b"", b"{", b"\xff\xff", b'{"job": 3}', b"[]"])
def test_a_file_that_is_no_entry_does_not_hide_the_others(garbage: bytes) -> None:
    enter(entry())
    (home() / "zzz.json").write_bytes(garbage)
    (home() / "aaa.json").write_bytes(garbage)
    assert running() == [entry()]


def test_the_state_folder_of_the_desktop_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDERSTUDY_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert home() == tmp_path / "state" / "understudy" / "jobs"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert home() == Path.home() / ".local" / "state" / "understudy" / "jobs"


def test_a_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    enter(entry())
    assert running() == [entry()]
