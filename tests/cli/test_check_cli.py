"""`understudy check`: its options, and what it shows."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

from understudy.cli import check
from understudy.cli.checked import CheckScreen
from understudy.cli.main import build_parser, main
from understudy.launch.spec import make
from understudy.verify.script.causes import Cause
from understudy.verify.script.check import CheckResult
from understudy.verify.script.findings import ScriptFinding
from understudy.verify.script.runs import Disturbance, Run

MESH = (("dp", 2),)
RUNS = [
    Run("undisturbed", [], seconds=1.0),
    Run("disturbed 1", [], disturbances=(Disturbance("replace", 1, (1,)), Disturbance("kill", 0, (0,)))),
]
EMA = Cause("module", "train.py:31", "ema", '"ema" (a module) is not tracked', "1 and 2", "add it: job.track(ema=ema)")
DIVERGED = ScriptFinding(
    "diverged",
    True,
    "after a planned replacement the bits differ, first in step 5",
    step=5,
    roles=("role 1 (dp=1)",),
    tensors=("a", "b", "c", "d"),
    disturbance="the machine with role 1 is replaced as planned",
    causes=(EMA,),
)
NOTE = ScriptFinding("forgotten", False, '"average" is not tracked', "it may stay", "train.py:7", "average", "1 and 2")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", "3"], "--steps 3: at least 6 are needed"),
        (["--machines", "1"], "use --machines 2"),
        (["--machines", "0"], "machines is 0"),
        (["--mesh", "dp=3"], "mesh dp=3 has 3 roles"),
        (["--within", "0"], "--within 0"),
        (["--json", "/no/such/folder/x.json"], "there is no directory"),
    ],
)
def test_bad_usage(script: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *options, str(script)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("understudy check: ")
    assert words in said
    assert said.count("\n") == 1


def test_other_mistakes(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "nothing.py")]) == 2
    assert "there is no script" in capsys.readouterr().err
    assert main(["check", "--keep", str(tmp_path), str(script)]) == 2
    assert "name a new folder" in capsys.readouterr().err


def test_the_former_name_works_with_a_hint(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", "--steps", "3", str(script)]) == 2
    hint, error = capsys.readouterr().err.splitlines()
    assert hint == "understudy rehearse is now called understudy check; the next version has only that"
    assert error.startswith("understudy check: --steps 3")


def test_defaults(script: Path) -> None:
    args = build_parser().parse_args(["check", str(script), "--width", "64"])
    spec = check._spec(args)
    assert (spec.machines, spec.nproc, spec.settings.training.steps, spec.args) == (2, 1, 12, ("--width", "64"))


def shown(result: CheckResult, *, terminal: bool = False) -> str:
    file = io.StringIO()
    colours: Literal["truecolor", "auto"] = "truecolor" if terminal else "auto"
    console = Console(file=file, force_terminal=terminal, width=100, highlight=False, color_system=colours)
    CheckScreen("train.py", 8, stderr=False, console=console).show(result, MESH)
    return file.getvalue()


def test_a_clean_script() -> None:
    text = shown(CheckResult([(0, 1)], RUNS, []))
    assert "train.py survives replacement\n" in text
    assert "1 planned replacement and 1 death of a machine in 8 steps" in text
    assert "role 0 (dp=0) and 1 more" in text


def test_what_was_found() -> None:
    text = shown(CheckResult([(0, 1)], RUNS, [DIVERGED, DIVERGED, NOTE]))
    assert "proven    after a planned replacement the bits differ, first in step 5\n" in text
    assert "role 1 (dp=1): a, b, c and 1 more\n" in text
    assert text.count('train.py:31: "ema" (a module) is not tracked\n') == 1
    assert "for the same reasons" in text
    assert "→ add it: job.track(ema=ema)\n" in text
    assert 'warning   train.py:7: "average" is not tracked\n' in text
    assert text.endswith("train.py does not survive replacement as it is, and 1 warning\n")


def test_a_script_that_does_not_even_run() -> None:
    failed = ScriptFinding("raises", True, "undisturbed: ValueError: no", "repair it")
    text = shown(CheckResult([], RUNS[:1], [failed]))
    assert text.endswith("train.py does not run as it is\n")


def test_colours_only_on_a_terminal() -> None:
    result = CheckResult([(0, 1)], RUNS, [DIVERGED])
    assert "\x1b[" not in shown(result)
    assert "\x1b[" in shown(result, terminal=True)


def test_the_document(script: Path) -> None:
    spec = make({"script": str(script), "machines": 2, "steps": 8})
    document = json.loads(json.dumps(check._document(spec, CheckResult([(0, 1)], RUNS, [DIVERGED, NOTE]))))
    assert document["verdict"] == "found"
    assert document["classes"] == [["role 0 (dp=0)", "role 1 (dp=1)"]]
    assert [run["name"] for run in document["runs"]] == ["undisturbed", "disturbed 1"]
    assert document["runs"][1]["disturbances"][1]["kind"] == "kill"
    assert [finding["proven"] for finding in document["findings"]] == [True, False]
    assert document["findings"][0]["causes"][0]["place"] == "train.py:31"
    assert check._document(spec, CheckResult([(0, 1)], RUNS, [NOTE]))["verdict"] == "clean"
