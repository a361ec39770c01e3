"""`understudy chaos` on the command line: the list of faults, and one sentence for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from understudy.cli.main import main


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


def test_the_list_names_every_kind_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--list"]) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    names = [line.split()[0] for line in lines]
    assert len(names) == len(set(names)) >= 20
    assert {"kill-worker", "kill-controller", "nan", "fill-checkpoint-disk", "cut-links"} <= set(names)
    assert main(["chaos", "--list", "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["kind"] for entry in entries] == names
    assert all(entry["summary"] and entry["origin"] in ("inside", "outside") for entry in entries)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no job runs here; start one with understudy run"),
        (["--job", "x"], "no job 'x' runs here"),
        (["--faults", "0"], "--faults 0: ask for at least one"),
        (["--keep-standbys", "0"], "without a standby"),
        (["run", "none.py"], "there is no script none.py"),
        (["run", "--mix", "kill-wroker", "train.py"], "did you mean kill-worker?"),
        (["--mix", "kill-wroker", "run", "train.py"], "did you mean kill-worker?"),
        (["run", "--every", "soon", "train.py"], "'soon' is not a time span"),
        (["run", "--recover-within", "long", "train.py"], "--recover-within: 'long' is not a time span"),
        (["run", "--expect", "abc", "train.py"], "--expect needs --steps"),
        (["run", "--machines", "2", "--mesh", "dp=3", "train.py"], "mesh dp=3 has 3 roles"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert main(["chaos", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("understudy chaos: ")
    assert says in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
