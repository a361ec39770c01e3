"""Temporary folders, which are removed even if the process that made them is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.comm.helpers import eventually
from understudy.host.temporary import nameless, scratch, settle
from understudy.verify import processes

pytestmark = pytest.mark.timeout(60)

ALIVE = """
import sys
from understudy.host.temporary import scratch
with scratch("test-") as place:
    (place / "deep" / "er").mkdir(parents=True)
    print(place, flush=True)
    sys.stdin.read()
"""
HELD = """
import os
from understudy.host.temporary import scratch
with scratch("test-") as place:
    child = os.fork()
    if child == 0:
        os.read(0, 1)
        os._exit(0)
    print(child, flush=True)
print("gone" if not place.exists() else "there", flush=True)
"""
"""A child has all that its parent had open."""
RM = """#!/bin/sh
mkdir "$0.failed" 2>/dev/null && exit 1
exec {rm} "$@"
"""
"""Fails once, as if another process were still writing."""

ASKED = """
import tempfile
seen = []
tempfile._get_default_tempdir = lambda *args: seen.append(args) or "/"
from understudy.host.temporary import settle
settle()
print(tempfile.gettempdir(), len(seen))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go during a test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def unknown(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder for temporary files is not determined yet. Not every file system has files without names."""
    try:
        os.close(os.open(here, os.O_RDWR | os.O_TMPFILE))
    except OSError as error:
        pytest.skip(f"no file without a name here: {error}")
    monkeypatch.setattr(tempfile, "tempdir", None)


def keeper_of(place: Path) -> int:
    commands = {pid: process.command for pid, process in processes.table().items()}
    (pid,) = [pid for pid, command in commands.items() if "mkdir" in command and str(place) in command]
    return pid


def test_a_temporary_folder_is_private_and_removed_with_its_content(here: Path) -> None:
    with scratch("test-") as place:
        assert place.parent == here
        assert place.name.startswith("test-")
        assert place.stat().st_mode & 0o777 == 0o700
        (place / "deep").mkdir()
        (place / "deep" / "file").write_text("")
    assert not list(here.iterdir())


def test_a_temporary_folder_is_removed_after_an_exception(here: Path) -> None:
    with pytest.raises(KeyError), scratch("test-"):
        raise KeyError
    assert not list(here.iterdir())


def test_a_name_with_spaces_is_a_name(here: Path) -> None:
    (here / "a").write_text("")
    with scratch("x a; b-") as place:
        assert place.is_dir()
    assert [path.name for path in here.iterdir()] == ["a"]


def test_when_its_process_is_killed_it_goes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it can't be removed at once."""
    rm = here / "bin" / "rm"
    rm.parent.mkdir()
    rm.write_text(RM.format(rm=shutil.which("rm")))
    rm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{rm.parent}:{os.environ['PATH']}")
    with subprocess.Popen([sys.executable, "-c", ALIVE], stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            place = Path(process.stdout.readline().rstrip())
            assert (place / "deep" / "er").is_dir()
            keeper = keeper_of(place)
        finally:
            process.kill()
    eventually(lambda: not place.exists())
    eventually(lambda: keeper not in processes.table())
    assert (here / "bin" / "rm.failed").exists()


def test_a_forked_child_does_not_keep_it(here: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HELD], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert process.stdout.readline() == "gone\n"
        finally:
            os.kill(child, signal.SIGKILL)
    assert not list(here.iterdir())


def test_after_an_interruption_the_keeper_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper, however slow, continues only if the parent waits for it without a limit; `Popen` alone does not."""
    keepers: list[int] = []
    wait = subprocess.Popen.wait

    def waited(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            os.kill(self.pid, signal.SIGCONT)
        return wait(self, timeout)

    def interrupted() -> None:
        with scratch("test-") as place:
            keepers.append(keeper_of(place))
            os.kill(keepers[0], signal.SIGSTOP)
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", waited)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    left = keepers[0] in processes.table()
    if left:
        os.kill(keepers[0], signal.SIGCONT)
    assert not left


def test_when_the_keeper_is_killed_it_goes(here: Path) -> None:
    with scratch("test-") as place:
        (place / "file").write_text("")
        os.kill(keeper_of(place), signal.SIGKILL)
    assert not list(here.iterdir())


def test_an_error_names_the_folder_that_cannot_be_made(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(here / "missing"))
    with pytest.raises(OSError, match=r"cannot create a temporary folder: .*missing"), scratch("test-"):
        pass


def test_a_folder_that_is_there_is_left_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: "same")
    (here / "test-same").mkdir()
    with pytest.raises(OSError, match="exists"), scratch("test-"):
        pass
    assert (here / "test-same").is_dir()


@pytest.mark.usefixtures("unknown")
def test_python_does_not_try_by_writing_a_file(here: Path) -> None:
    said = subprocess.run([sys.executable, "-c", ASKED], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said == f"{here} 0\n"


@pytest.mark.usefixtures("unknown")
def test_what_cannot_be_written_to_is_pythons_to_judge(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(here / "missing"))
    settle()
    assert tempfile.tempdir is None


@pytest.mark.usefixtures("unknown")
def test_other_names_of_the_place(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "other").mkdir()
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setenv("TEMP", str(here / "other"))
    settle()
    assert tempfile.tempdir == str(here / "other")


def test_what_is_known_stays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/")
    settle()
    assert tempfile.tempdir == str(here)


@pytest.mark.usefixtures("unknown")
def test_a_nameless_file_does_not_fix_the_folder_of_other_files(here: Path) -> None:
    (here / "other").mkdir()
    for folder, device in (("", here), (str(here / "other"), here / "other")):
        with nameless(folder) as file:
            file.write(b"something")
            assert os.fstat(file.fileno()).st_nlink == 0
            assert Path(f"/proc/self/fd/{file.fileno()}").readlink().parent == device
    assert tempfile.tempdir is None
    assert [path.name for path in here.rglob("*")] == ["other"]
