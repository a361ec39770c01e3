"""`understudy simulate --steward` as it is typed."""

from __future__ import annotations

import json

import pytest

from understudy.cli.main import main

SMALL = ("simulate", "--steward", "--gpus", "512", "--mtbf", "30d", "--straggling", "30d", "--for", "2d", "--runs", "2")


def test_a_week_with_and_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL]) == 0
    out = capsys.readouterr().out
    for words in (
        "with the steward",
        "slow machines stay",
        "machine-hours lost to slow machines",
        "standby-hours",
    ):
        assert words in out
    assert out.startswith("64 machines, ")


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--pool", "3", "--budget", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["machines"], found["pool"], found["runs"]) == (64, 3, 2)
    assert found["steward"]["at_most"]["high"] <= 5
    assert found["without"]["replaced"]["value"] == 0
    assert found["steward"]["slowed"]["value"] < found["without"]["slowed"]["value"]
    assert found["notes"] == []


def test_without_slow_machines_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--steward", "--gpus", "64", "--for", "1d", "--runs", "1"]) == 0
    assert "give --straggling, the mean time until one does" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gpus", "64", "--pool", "2"], "--pool needs --steward: give that as well"),
        (["--steward"], "--gpus is missing"),
        (["--steward", "--gpus", "64", "--sweep", "gpus=8,64"], "--sweep is about strategies; leave it out"),
        (["--steward", "--gpus", "64", "--pool", "-1"], "--pool -1: give a number from 0 to 1e+06"),
        (["--steward", "--gpus", "64", "--slow", "much"], "--slow much: write a number"),
        (["--steward", "--gpus", "64", "--cool-down", "2h"], "--cool-down 2h: give a number from 0 to 3,600 s"),
        (["--steward", "--gpus", "80000", "--mtbf", "1h"], "interruptions are too many to simulate"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("understudy simulate: ")
    assert says in err
    assert err.count("\n") == 1
