from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from understudy.cli import reproductions
from understudy.cli.main import main
from understudy.planning.papers import spare, trainmover


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few steps: fast, and far from what is published."""
    whole = spare.case

    def case(kind: spare.Kind, n: int, r: int) -> spare.SpareCase:
        made = whole(kind, n, r)
        work = msgspec.structs.replace(made.setting.work, steps=20)
        return msgspec.structs.replace(made, setting=msgspec.structs.replace(made.setting, work=work))

    monkeypatch.setattr(spare, "case", case)


@pytest.mark.usefixtures("short")
def test_rows_are_shown_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "spare.json"
    assert main(["reproduce", "spare", "--n", "200,500", "--r", "4", "--runs", "2", "--json", str(target)]) == 0
    out, err = capsys.readouterr()
    assert "closed form" in out
    assert "4 does not divide" not in out
    assert "reproduce spare: " in err
    assert "nan" not in out.lower()
    document = json.loads(target.read_text(encoding="utf-8"))
    assert set(document) == {"bench", "env", "rows", "checks"}
    assert [(row["strategy"], row["n"], row["r"]) for row in document["rows"]] == [
        ("spare", 200, 4),
        ("replication", 200, 4),
        ("spare", 500, 4),
        ("replication", 500, 4),
    ]
    assert all(row["published"] is None and row["ttt_ratio"] > 1 for row in document["rows"])


@pytest.mark.usefixtures("short")
def test_a_row_far_from_the_published_one_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "spare.json"
    assert main(["reproduce", "spare", "--n", "200", "--r", "9,3", "--runs", "2", "--json", str(target)]) == 1
    out, _ = capsys.readouterr()
    assert "FAIL" in out
    assert "3 does not divide it, so 201 groups" in out
    document = json.loads(target.read_text(encoding="utf-8"))
    published = {(row["strategy"], row["r"]): row["published"] for row in document["rows"]}
    assert published["spare", 9] == {"ttt_ratio": 2.92, "availability": 0.87}
    assert published["replication", 9] is None
    assert "gain_n200" in {check["name"] for check in document["checks"]}


@pytest.mark.usefixtures("short")
def test_nothing_is_published_for_other_failures(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["reproduce", "spare", "--n", "200", "--dist", "exponential", "--runs", "1", "--engine", "steps"]
    assert main(call) == 0
    assert "2.92" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--n", "many"], "--n many: 'many' is not a whole number"),
        (["--n", "200,,600"], "'' is not a whole number"),
        (["--n", "-5"], "'-5' is not a whole number"),
        (["--n", "1"], "from 2 to"),
        (["--n", "200", "--r", "0"], "from 1 to"),
        (["--n", "200", "--r", "1"], "use r=2 or more"),
        (["--n", "200", "--r", "60"], "use r="),
        (["--n", "5", "--r", "2"], "use a larger n or r"),
        (["--n", "5", "--r", "9"], "use r=5 or less"),
        (["--runs", "0"], "--runs 0: give a number from 1 to"),
        (["--runs", "1.5"], "is not a whole number"),
        (["--seed", "x"], "--seed x"),
        (["--json", "no/such/place.json"], "create it first"),
    ],
)
def test_a_mistake_gets_one_sentence(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "spare", *[f"{o}" for o in options]]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert err.startswith("understudy reproduce: ")
    assert err.count("\n") == 1
    assert not out


def test_the_projection_is_shown_with_what_is_left_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainmover, "simulated", lambda system, gpus: trainmover.wasted(system, gpus))
    target = tmp_path / "trainmover.json"
    assert main(["reproduce", "trainmover", "--json", str(target)]) == 0
    out, _ = capsys.readouterr()
    for words in ("exactly one standby", "-35.9 %", "leaves open", "more hours at 131,072 GPUs than a week has"):
        assert words in " ".join(out.split())
    document = json.loads(target.read_text(encoding="utf-8"))
    assert [row["gpus"] for row in document["rows"]] == [1_024, 8_192, 65_536, 131_072]
    assert len(document["checks"]) == len(trainmover.PROJECTED)


def test_ticks_are_whole_and_never_too_many() -> None:
    class Counting:
        done = 0

        def advance(self, label: str) -> None:
            self.done += 1

    counting = Counting()
    tell = reproductions.ticking(counting, "row")  # type: ignore[arg-type]
    for share in (0.01, 0.5, 0.5, 1.0, 1.0):
        tell(share)
    assert counting.done == reproductions.TICKS
