"""`--report` of plan and simulate: a page, or a sentence before any work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from understudy.cli.main import main


@pytest.fixture
def target(tmp_path: Path) -> Path:
    pytest.importorskip("plotly", reason="the extra 'report' is not installed")
    return tmp_path / "plan.html"


def test_plan_writes_a_page(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpus", "1024", "--report", str(target)]) == 0
    assert str(target) in capsys.readouterr().err
    text = target.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "by understudy" in text[-5000:]


def test_simulate_adds_what_it_has_found(target: Path) -> None:
    asked = ["simulate", "--gpus", "1024", "--strategy", "trainmover,checkpoint", "--runs", "4", "--for", "2d"]
    assert main([*asked, "--report", str(target)]) == 0
    assert 'id="simulated"' in target.read_text(encoding="utf-8")


def test_a_sweep_is_no_page(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--gpus", "1024", "--sweep", "gpus=1024,2048", "--report", str(target)]) == 2
    assert "leave out --sweep" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_without_plotly_nothing_is_begun(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "plotly" or name.startswith("plotly.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert main([command, "--gpus", "1024", "--report", str(tmp_path / "plan.html")]) == 2
    assert "pip install 'understudy[report]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
