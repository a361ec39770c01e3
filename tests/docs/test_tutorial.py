"""docs/tutorial.md does what it says: its scripts and commands, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

pytestmark = [pytest.mark.job, pytest.mark.timeout(600)]
PAGE = blocks(ROOT / "docs" / "tutorial.md")
FORMS = {"understudy": "-m understudy.cli.main", "torchrun": "-m torch.distributed.run"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the page's scripts in it, and its commands to be found."""
    for block in PAGE:
        if block.kind == "script":
            (tmp_path / block.name).write_text(block.text)
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, arguments in FORMS.items():
        (bin / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (bin / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # torchrun leaves a folder there
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    return tmp_path


def command(name: str) -> str:
    (found,) = [block.text for block in PAGE if (block.kind, block.name) == ("command", name)]
    return found


def run(folder: Path, text: str, limit: float = 300.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-ec", text], cwd=folder, capture_output=True, text=True, timeout=limit, check=False)


def test_the_final_script(folder: Path) -> None:
    text = command("final").replace("--standbys 1 --steps 4000", "--steps 20")
    ended = run(folder, text)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "finished after 20 steps" in ended.stdout
    assert "step 20  loss " in ended.stdout
    assert (folder / "model.pt").exists()


@pytest.mark.parametrize(
    ("name", "steps", "said"),
    [
        ("evaluation", 40, r"after 30 steps: 0\.\d{4}"),
        ("epochs", 48, r"epoch 3  loss 0\.\d{4}  rate 0\.0073"),
        ("together", 40, r"after 30 steps: 0\.\d{4}"),
        ("stopping", 0, r"no better than 0\.\d{4} after \d+1 steps"),
        ("saving", 40, ""),
    ],
)
def test_an_example_of_a_habit(name: str, steps: int, said: str, folder: Path) -> None:
    ended = run(folder, command(name))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"finished after {steps or ''}" in ended.stdout
    assert "role 0 is the primary role" in ended.stdout
    assert len(re.findall(f"(?m)^.*{said}$", ended.stdout)) == 1 or not said, ended.stdout
    assert not said or f"role 0] {re.search(said, ended.stdout)[0]}" in ended.stdout  # type: ignore[index]
    saved = sorted(path.name for path in folder.glob("model-*.pt"))
    assert saved == ([f"model-{number}.pt" for number in (10, 20, 30, 40)] if name == "saving" else [])


@pytest.mark.long
@pytest.mark.parametrize("name", ["plain", "first"])
def test_the_scripts_before_it(name: str, folder: Path) -> None:
    ended = run(folder, command(name))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "step 60  loss " in ended.stdout
    assert (folder / "model.pt").exists()


@pytest.mark.long
def test_what_was_forgotten(folder: Path) -> None:
    ended = run(folder, command("check-first"), 500)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    said = next(block.text for block in PAGE if "job.track(schedule=schedule)" in block.text and not block.language)
    for line in said.splitlines()[5:]:
        assert " ".join(line.split()) in " ".join(ended.stdout.split())


@pytest.mark.long
def test_what_survives(folder: Path) -> None:
    ended = run(folder, command("check"), 500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "train.py survives replacement" in ended.stdout


@pytest.mark.long
def test_a_machine_is_replaced(folder: Path) -> None:
    with (folder / "out").open("w") as out:
        job = subprocess.Popen(["sh", "-ec", f"exec {command('final')}"], cwd=folder, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 150
        while "step 20 " not in (folder / "out").read_text():
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        said = run(folder, command("replace"))
        assert said.returncode == 0, said.stdout + said.stderr
        assert "m2" in said.stdout
        assert job.wait(60) in (0, 130)
    finally:
        job.kill()
        job.wait()
