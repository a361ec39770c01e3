"""PyTorch's own tests over the process group: the comparison, and the quick part of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.comm.helpers import eventually
from tools.conformance.comparison import EXPECTATIONS, Comparison, Expectations, chosen
from tools.conformance.suite import RANKS, Contestant, Outcome, SuiteResult

ROOT = Path(__file__).parents[2]
TOOL = (sys.executable, "-m", "tools.conformance")
LIMIT_S = 60.0


def compared(outcomes: dict[str, tuple[Outcome, Outcome]], reasons: dict[str, str]) -> Comparison:
    """Tests with their outcomes over gloo and over understudy."""
    contestants: tuple[Contestant, Contestant] = ("gloo", "understudy")
    results = [
        SuiteResult(name, contestant, "cpu", outcome, 0.1)
        for name, both in outcomes.items()
        for contestant, outcome in zip(contestants, both, strict=True)
    ]
    return Comparison(tuple(results), reasons)


def test_a_test_that_passes_with_gloo_only_needs_a_reason() -> None:
    outcomes: dict[str, tuple[Outcome, Outcome]] = {
        "a": ("passed", "passed"),
        "b": ("passed", "failed"),
        "c": ("passed", "skipped"),
        "d": ("failed", "passed"),
        "e": ("failed", "failed"),
    }
    without = compared(outcomes, {})
    assert without.unexplained == ["b", "c"]
    assert without.only("understudy") == ["d"]
    assert not without.holds
    assert without.count("gloo", "cpu", "passed") == 3
    assert compared(outcomes, {"b": "no", "c": "no"}).holds
    outdated = compared(outcomes, {"b": "no", "c": "no", "a": "no", "of another part": "no"})
    assert outdated.outdated == ["a"]
    assert not outdated.holds
    said = without.as_json({"torch": "2"})
    assert said["gloo_only"] == {"b": None, "c": None}
    assert len(said["results"]) == 10


def test_there_are_few_reasons(tmp_path: Path) -> None:
    file = tmp_path / "expectations.toml"
    file.write_text("[reasons]\n" + "".join(f'test_{n} = "x"\n' for n in range(11)) + "[quick]\ntests = []\n")
    with pytest.raises(ValueError, match="11 reasons, at most 10"):
        Expectations.read(file)


def test_the_page_has_every_reason() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `test_")]
    assert rows == [f"| `{name}` | {reason} |" for name, reason in Expectations.read(EXPECTATIONS).reasons.items()]


def test_tests_are_chosen_by_name() -> None:
    assert chosen(["barrier", "test_send"], ["test_send", "test_barrier"]) == ["test_barrier", "test_send"]
    with pytest.raises(ValueError, match="no test test_nothing"):
        chosen(["nothing"], ["test_send"])


@pytest.mark.timeout(400)
def test_the_quick_part_passes_with_both() -> None:
    ended = subprocess.run([*TOOL, "--part", "quick", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=380)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = json.loads(ended.stdout)
    assert said["holds"]
    outcomes = [(result["name"], result["contestant"], result["outcome"]) for result in said["results"]]
    assert len(outcomes) == 2 * len(Expectations.read(EXPECTATIONS).quick)
    assert not [each for each in outcomes if each[2] != "passed"]


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def test_an_interrupted_run_leaves_no_process() -> None:
    with subprocess.Popen([*TOOL, "barrier"], cwd=ROOT, stderr=subprocess.PIPE, text=True) as tool:
        eventually(lambda: len(children_of(tool.pid)) == RANKS, LIMIT_S)
        children = children_of(tool.pid)
        os.kill(tool.pid, signal.SIGINT)
        _, said = tool.communicate(timeout=LIMIT_S)
    assert tool.returncode == 130, said
    assert "interrupted" in said
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
