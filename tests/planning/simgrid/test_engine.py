"""The process around SimGrid: none there, damaged answers, limits and interruptions. Without SimGrid."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from numpy.random import SeedSequence

from tests.planning.simgrid.cases import PERIOD, REPAIR, failures, setting
from understudy.planning.outcome import Waste
from understudy.planning.simgrid import engine
from understudy.planning.simgrid.engine import SimgridError, SimgridMissing, SimgridResult
from understudy.planning.simgrid.prepare import PreparedRun, prepare
from understudy.planning.simgrid.script import RESULT
from understudy.planning.strategy import trainmover

RESULT_JSON = '{"seconds": 12.0, "useful": 10.0, "wasted": {"SAVING": 2.0}, "failures": 1, "restarts": 0, "beyond": %s}'


def prepared_run() -> PreparedRun:
    s = setting()
    return prepare(s, failures(s), trainmover(s, 1, PERIOD), REPAIR, horizon=1e15, known=500.0, seed=SeedSequence(0))


def stand_in(folder: Path, *lines: str) -> str:
    """A program in the place of an interpreter with SimGrid; it runs in the folder of the run."""
    file = folder / "python"
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary folders are made here; a test can look whether they are gone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_without_simgrid_there_is_one_sentence_and_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        SimgridMissing, match=r"no Python on this computer has SimGrid: `make simgrid` .*python3-simgrid\)$"
    ):
        engine.interpreter([stand_in(tmp_path, "exit 1"), str(tmp_path / "nothing")])


def test_the_first_interpreter_that_has_it_is_taken(tmp_path: Path) -> None:
    has = stand_in(tmp_path, "exit 0")
    assert engine.interpreter([str(tmp_path / "nothing"), has]) == has


def test_a_result_is_read(tmp_path: Path, nothing_is_left: Path) -> None:
    python = stand_in(
        tmp_path,
        "test -f input.json && test -f platform.xml && test -f understudy_simgrid/script.py || exit 3",
        f"echo '{RESULT_JSON % 'false'}' > {RESULT}",
    )
    assert engine.run_script(python, prepared_run()) == SimgridResult(12.0, 10.0, {"SAVING": 2.0}, 1, 0, False)
    assert not list(nothing_is_left.iterdir())


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["exit 0"], "left no result"),
        (["echo oh dear", "exit 0"], "left no result: oh dear"),
        ([f"echo '{{' > {RESULT}"], "left a damaged result"),
        ([f"echo '{{}}' > {RESULT}"], "left a damaged result: Object missing required field `seconds`"),
        ([f"printf '\\377' > {RESULT}"], "left a damaged result"),
        (["echo x.cpp:1 [root/CRITICAL] Cannot open; echo backtrace", "exit 7"], "exit code 7: .*Cannot open"),
        (["kill -9 $$"], "ended with signal 9"),
    ],
)
def test_whatever_comes_instead_of_a_result_is_said(
    tmp_path: Path, nothing_is_left: Path, lines: list[str], sentence: str
) -> None:
    with pytest.raises(SimgridError, match=sentence):
        engine.run_script(stand_in(tmp_path, *lines), prepared_run())
    assert not list(nothing_is_left.iterdir())


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path, nothing_is_left: Path) -> None:
    noted = tmp_path / "pid"
    with pytest.raises(SimgridError, match=r"took more than 0\.5 s; use fewer machines or steps"):
        engine.run_script(stand_in(tmp_path, f"echo $$ > {noted}", "exec sleep 60"), prepared_run(), limit=0.5)
    assert not list(nothing_is_left.iterdir())
    assert_ended(noted)


def test_ctrl_c_ends_the_process_too(tmp_path: Path, nothing_is_left: Path) -> None:
    noted, started = tmp_path / "pid", tmp_path / "started"
    os.mkfifo(started)
    python = stand_in(tmp_path, f"echo $$ > {noted}", f"echo > {started}", "exec sleep 60")

    def interrupt() -> None:
        started.read_text(encoding="utf-8")  # until it has started
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the caller of the tests may ignore it
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.run_script(python, prepared_run())
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert not list(nothing_is_left.iterdir())
    assert_ended(noted)


def assert_ended(noted: Path) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text(encoding="utf-8")), 0)


def test_failures_are_drawn_for_longer_until_the_run_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two answers are that the failures have run out."""
    again = tmp_path / "again"
    python = stand_in(
        tmp_path,
        f"echo x >> {again}",
        f"if [ $(wc -l < {again}) -lt 3 ]; then echo '{RESULT_JSON % 'true'}'; else echo '{RESULT_JSON % 'false'}'; fi"
        f" > {RESULT}",
    )
    monkeypatch.setattr(engine, "interpreter", lambda: python)
    s = setting()
    found = engine.simulate(s, failures(s), trainmover(s, 2, PERIOD), REPAIR, runs=1)
    assert again.read_text(encoding="utf-8").count("x") == 3
    assert found.seconds.tolist() == [12.0]
    assert found.wasted[0, Waste.SAVING] == 2.0
    assert found.standby_share == 0.25


def test_no_end_in_sight_is_refused() -> None:
    s = setting(steps=0)
    with pytest.raises(ValueError, match="give a horizon"):
        engine.simulate(s, failures(s), trainmover(s, 2, PERIOD), REPAIR, runs=1)


def test_the_script_needs_nothing_but_the_standard_library_and_simgrid(tmp_path: Path) -> None:
    """It is read by an interpreter that has none of our dependencies."""
    (tmp_path / "understudy_simgrid").symlink_to(Path(engine.__file__).parent, target_is_directory=True)
    code = "import sys, understudy_simgrid.script\n"
    code += "print(*[m for m in ('numpy', 'msgspec', 'torch', 'understudy') if m in sys.modules])"
    said = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.split() == []
