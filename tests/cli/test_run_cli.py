"""Mistakes on the command line: one sentence, exit code 2, no traceback, nothing created."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from understudy.cli.main import main
from understudy.cli.run import labels


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "bad.toml").write_text('script = "train.py"\nmachnies = 2\n')
    (tmp_path / "wrong.toml").write_text('script = "train.py"\nmachines = "two"\n')
    (tmp_path / "broken.toml").write_text("machines = \n")


MISTAKES = [
    (["none.py"], "there is no script none.py"),
    (["."], "is a folder"),
    (["--machines", "0", "train.py"], "machines is 0; it must be at least 1"),
    (["--machines", "2", "--mesh", "dp=3", "train.py"], "mesh dp=3 has 3 roles"),
    (["--mesh", "dp", "train.py"], "'dp' is not of the form name=size"),
    (["--transport", "nccl", "train.py"], "there is no transport 'nccl'; use native or torch:gloo"),
    (["--name", "a/b", "train.py"], "name is 'a/b'"),
    (["--machines", "2", "--local", "3", "train.py"], "local is 3; it must be from 0 to 2, the number of machines"),
    (["--listen", "a:b", "train.py"], "'a:b' is not of the form HOST or HOST:PORT"),
    (["--listen", "0.0.0.0", "train.py"], "say with host which one others are to use"),
    (["--listen", "192.0.2.1", "train.py"], "cannot listen at 192.0.2.1: Cannot assign requested address"),
    (["--host", "0.0.0.0", "train.py"], "host 0.0.0.0 is no place others can come to"),
    (["--label", "rack=r1", "train.py"], "--label rack=r1: write it as MACHINE:KEY=VALUE, such as m0:rack=r1"),
    (["--label", "m0:rack", "train.py"], "--label m0:rack: write a label as KEY=VALUE, such as rack=r1"),
    (["--label", "m9:rack=r1", "train.py"], "labels name a machine m9; those that are started here are m0"),
    (["bad.toml"], "bad.toml: there is no setting 'machnies'; did you mean machines?"),
    (["wrong.toml"], "wrong.toml: machines: Expected `int`, got `str`"),
    (["broken.toml"], "broken.toml is not valid TOML"),
    (["none.toml"], "none.toml: No such file or directory"),
]


@pytest.mark.parametrize(("words", "says"), MISTAKES)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert main(["run", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("understudy run: ")
    assert says in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_the_real_command_says_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "understudy.cli.main", "run", "bad.toml"]
    done = subprocess.run(command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "understudy run: bad.toml: there is no setting 'machnies'; did you mean machines?\n"


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["replace", "m1"],
        ["drain", "m1"],
        ["stop"],
        ["events"],
        ["standby", "add"],
        ["rebalance", "--spread", "rack"],
    ],
)
def test_commands_without_a_job(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(words) == 2
    assert "no job runs here; start one with understudy run" in capsys.readouterr().err
    assert main([*words, "--controller", "http://127.0.0.1:1"]) == 2
    assert "UNDERSTUDY_SECRET" in capsys.readouterr().err
    monkeypatch.setenv("UNDERSTUDY_SECRET", "ab")
    assert main([*words, "--controller", "127.0.0.1:1"]) == 2
    assert "write it as http://HOST:PORT" in capsys.readouterr().err


def test_labels_come_together() -> None:
    words = ["m0:rack=r1", "m1:rack=r2", "m0:switch=s1=a"]
    assert labels(words) == {"m0": {"rack": "r1", "switch": "s1=a"}, "m1": {"rack": "r2"}}
