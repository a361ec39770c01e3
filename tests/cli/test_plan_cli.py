"""`understudy plan` and `understudy simulate` as they are typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from understudy.cli.main import main

SMALL = ("--gpus", "1024", "--replicas", "16")


def said(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(args)
    out, err = capsys.readouterr()
    return code, out, err


def found(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    code, out, _ = said(capsys, *args, "--json")
    assert code == 0
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in the answer"))


def test_a_plan_is_a_recommendation_with_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "plan", *SMALL)
    assert code == 0
    assert not err
    for words in ("recommended: ", "runner-up: ", "simulated", "GPU-hours a week", "what matters most", "assumed"):
        assert words in out
    assert "nan" not in out.lower().replace("maintenance", "")


def test_the_same_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = found(capsys, "plan", *SMALL)
    assert plan["gpus"] == 1024
    best = plan["recommended"]
    assert best["offered"]
    costs = [option["cost"] for option in plan["options"] if option["offered"]]
    assert best["cost"] == min(costs)
    assert plan["simulated"]["inflation"] == pytest.approx(best["inflation"], rel=0.01)
    assert {"name", "value", "why"} == set(plan["assumptions"][0])
    target = tmp_path / "plan.json"
    code, out, _ = said(capsys, "plan", *SMALL, "--json", str(target))
    assert code == 0
    assert "recommended" in out
    assert json.loads(target.read_text()) == plan


def test_the_goal_decides(capsys: pytest.CaptureFixture[str]) -> None:
    cheap, fast = (found(capsys, "plan", "--gpus", "65536", "--goal", goal)["recommended"] for goal in ("cost", "time"))
    assert cheap["cost"] <= fast["cost"]
    assert fast["inflation"] <= cheap["inflation"]


def test_a_single_replica_cannot_be_masked(capsys: pytest.CaptureFixture[str]) -> None:
    plan = found(capsys, "plan", "--gpus", "64", "--replicas", "1")
    assert {"checkpoint", "trainmover", "trainmover-cold"} <= {option["strategy"] for option in plan["options"]}
    assert not any("mask" in option["strategy"] or "spare" in option["strategy"] for option in plan["options"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "--gpus is missing"),
        (("--gpus", "-8"), "--gpus -8: give a number from 1"),
        (("--gpus", "many"), "--gpus many: write a whole number"),
        (("--gpus", "nan"), "--gpus nan: write a whole number"),
        (("--gpus", "1e999"), "--gpus 1e999: write a whole number"),
        (("--gpus", "4"), "--gpus 4 is less than one machine has"),
        (("--gpus", "1024", "--replicas", "1000"), "--replicas 1,000: 128 machines can hold 1 to 128"),
        (("--gpus", "1024", "--model-params", "100T"), "--model-params 1e+14 needs about"),
        (("--gpus", "1024", "--step-seconds", "-1"), "--step-seconds -1: '-1' is not a time span"),
        (("--gpus", "1024", "--mtbf", "0s"), "--mtbf 0 s: give 1 s to 365,000 d"),
        (("--gpus", "1024", "--mtbf", "often"), "--mtbf often: 'often' is not a time span"),
        (("--gpus", "1024", "--price", "nan"), "--price nan: write a number that is finite"),
        (("--gpus", "1024", "--days", "0"), "--days 0: give a number from 1"),
        (("--gpus", "1024", "--shape", "0"), "--shape 0: give 0.1 to 10"),
        (("--gpus", "1024", "--together", "2"), "--together 2: give 0 to 1"),
        (("--gpus", "1024", "--repair", "0"), "--repair 0 s: give"),
        (("--gpus", "1024", "--json", "/nowhere/plan.json"), "there is no directory"),
        (("--gpus", "1024", "--seed", "-1"), "--seed -1"),
        (("--gpus", "1024", "--seed", "x"), "--seed x: write a whole number"),
        (("--gpus", "1024", "--domain", "0"), "--domain 0: give a number from 1"),
        (("--gpus", "1024", "--step-seconds", "0"), "--step-seconds 0 s: give 0.1 ms to 24 h"),
        (("--gpus", "1024", "--gpus-per-machine", "0"), "--gpus-per-machine 0: give a number from 1"),
        (("--gpus", "100M"), "--gpus 100,000,000: give a number from 1 to 2,000,000"),
        (("--gpus", "600000", "--replicas", "75000"), "--replicas: 75,000 are too many to plan; give up to 20,000"),
        (("--gpus", "1024", "--watched", "30d"), "--watched needs --failures-csv FILE"),
        (("--gpus", "1024", "--restart", "1e300"), "--restart 1.16e+295 d: give 0 s to 30 d"),
        (("--gpus", "1024", "--replicas", "1e300"), "--replicas 1e+300: 128 machines can hold 1 to 128"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], command: str, args: tuple[str, ...], words: str
) -> None:
    code, out, err = said(capsys, command, *args)
    assert code == 2
    assert not out
    assert err.startswith(f"understudy {command}: ")
    assert words in err
    assert err.count("\n") == 1


def test_strategies_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    rows = found(capsys, "simulate", *SMALL, "--runs", "4", "--for", "10d")
    names = [row["strategy"] for row in rows]
    assert len(names) == len(set(names)) == 12
    assert {row["strategy"]: row for row in rows}["checkpoint"]["inflation"] > 1.01
    for row in rows:
        assert row["inflation_low"] <= row["inflation"] <= row["inflation_high"]


def test_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(
        capsys, "simulate", *SMALL, "--strategy", "trainmover", "--sweep", "mtbf=500h,5000h", "--runs", "4"
    )
    assert code == 0
    assert "mtbf=500h" in out
    assert "mtbf=5000h" in out


def test_a_week_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "simulate", *SMALL, "--strategy", "mask-and-refill", "--timeline")
    assert code == 0
    assert out.startswith("a week of mask-and-refill")
    assert "of the week lost" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--runs", "0"), "--runs 0: give a number from 1"),
        (("--for", "1s"), "--for 1s: simulate at least a minute"),
        (("--for", "nan"), "--for nan: 'nan' is not a time span"),
        (("--strategy", "mask-and-refil"), "did you mean mask-and-refill?"),
        (("--sweep", "colour=red"), "--sweep colour=red: write NAME=V1,V2"),
        (("--sweep", "gpus"), "--sweep gpus: write NAME=V1,V2"),
        (("--sweep", "gpus=1024,many"), "--gpus many: write a whole number"),
        (("--timeline",), "--timeline shows one strategy"),
        (("--standbys", "-1"), "--standbys -1"),
        (("--standbys", "1000001"), "--standbys 1000001: give a number from 0 to 1,000,000"),
        (("--sweep", "gpus=1024,"), "--sweep gpus=1024,: a value is empty"),
        (("--timeline", "--sweep", "gpus=1024"), "--timeline shows one cluster; leave out --sweep"),
        (("--timeline", "--strategy", "checkpoint", "--mtbf", "1h"), "--timeline: a week has 2.2e+04 interruptions"),
        (("--for", "1000000d"), "--for 1000000d sees 4.8e+05 interruptions, one every 2.07 d"),
        (("--engine", "steps"), "--engine steps would take 1e+08 steps one by one"),
        (("--engine", "steps", "--gpus", "600000", "--runs", "1", "--for", "1d"), "is for up to 10,000 machines"),
        (("--r", "1"), "--r 1: a shard needs at least two holders"),
        (("--period", "0"), "--period 0"),
        (("--strategy", "spare", "--r", "12"), "--strategy spare: no strategy allows these settings"),
    ],
)
def test_a_simulation_that_makes_no_sense(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], words: str
) -> None:
    code, out, err = said(capsys, "simulate", *SMALL, *args)
    assert code == 2
    assert not out
    assert words in err
    assert err.count("\n") == 1


LOG = "timestamp,machine,kind,repair\n"


@pytest.mark.parametrize(
    ("rows", "args", "words"),
    [
        (
            "1772000000,a,gpu,1h\n",
            (),
            "all incidents have the same date; give the length of the observation as --watched",
        ),
        ("1772000000,a,gpu,1h\n1772000009,b,gpu,1h\n", ("--watched", "1s"), "--watched 1 s cannot be right"),
        ("1772000000,a,gpu,0\n1772900000,b,gpu,0\n", (), "repairs take 0 s on average; leave unknown repairs empty"),
        ("1772000000,a,gpu,\n1772000000.001,b,gpu,\n", (), "a machine would fail every"),
        (
            "1772000000,a,gpu,\n1772900000,b,gpu,\n",
            ("--observed", "1e30"),
            "--observed 1e30: give a number of machines",
        ),
        ("1772000000,a,maintenance,\n1772900000,b,maintenance,\n", (), "give --mtbf"),
        ("1772000000,a,gpu,\n1772900000,b,gpu,\n", ("--observed", "1"), "set --observed to all observed machines"),
    ],
)
def test_a_log_that_cannot_be_meant(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: str, args: tuple[str, ...], words: str
) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG + rows)
    code, out, err = said(capsys, "plan", "--gpus", "64", "--failures-csv", str(log), *args)
    assert code == 2
    assert not out
    assert words in err
    assert err.count("\n") == 1


def test_a_log_of_one_incident_needs_to_know_how_long_it_was_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG + "1772000000,a,gpu,1h\n")
    code, out, err = said(capsys, "plan", "--gpus", "64", "--failures-csv", str(log), "--watched", "30d")
    assert code == 0
    assert "a machine fails every 30 d" in out
    assert "1 failure is too few" in err


def test_bytes_that_are_no_text_are_said_with_their_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = "".join(f"{1772000000 + 9000 * number},n{number},gpu,1h\n" for number in range(2000))
    log.write_bytes((LOG + rows).encode() + "1792000000,nöde,gpu,1h\n".encode("latin-1"))
    code, out, err = said(capsys, "plan", "--gpus", "64", "--failures-csv", str(log))
    assert (code, out) == (2, "")
    assert "log.csv: line 2002: not UTF-8 text; save the log as CSV in UTF-8" in err


def test_no_file_is_asked_to_be_two_things(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG + "1772000000,a,gpu,1h\n1772900000,b,gpu,1h\n")
    read = ("plan", "--gpus", "64", "--failures-csv", str(log))
    code, out, err = said(capsys, *read, "--json", str(tmp_path / "." / "log.csv"))
    assert (code, out) == (2, "")
    assert "this is the file of --failures-csv; name another one" in err
    assert log.read_text().startswith(LOG)
    pytest.importorskip("plotly", reason="the extra 'report' is not installed")
    code, out, err = said(capsys, *read, "--json", str(tmp_path / "a"), "--report", str(tmp_path / "a"))
    assert (code, out) == (2, "")
    assert "this is the file of --json; name another one" in err
    assert not (tmp_path / "a").exists()


def test_a_seed_is_taken_to_the_last_digit(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("simulate", *SMALL, "--strategy", "checkpoint", "--runs", "2", "--seed")
    one, other = (found(capsys, *call, str(2**53 + more)) for more in (0, 1))
    assert one != other


@pytest.mark.parametrize(("replicas", "fits"), [("16", True), ("9", True), ("35", False)])
def test_a_strategy_that_does_not_fit_is_told_of(capsys: pytest.CaptureFixture[str], replicas: str, fits: bool) -> None:
    plan = found(capsys, "plan", "--gpus", "2520", "--replicas", replicas)
    assert fits == any(option["strategy"] == "replication" for option in plan["options"])
    assert fits != any(note["name"] == "replication" for note in plan["assumptions"])


def test_if_no_strategy_helps_the_plan_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "plan", "--gpus", "64", "--replicas", "8", "--mtbf", "10s")
    assert code == 0
    assert "training makes no progress" in out
    assert "inf" not in out.replace("inflation", "")
    code, out, _ = said(capsys, "simulate", "--gpus", "64", "--for", "60s", "--runs", "2", "--mtbf", "10s")
    assert code == 0
    assert "never" in out
    assert " -" not in out


def test_simgrid_refuses_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """That there is none, or that this is too large for it."""
    code, out, err = said(
        capsys,
        "simulate",
        "--gpus",
        "8192",
        "--engine",
        "simgrid",
        "--runs",
        "1",
        "--for",
        "1h",
        "--strategy",
        "checkpoint",
    )
    assert code == 2
    assert not out
    assert err.startswith("understudy simulate: --engine simgrid: ")
    assert err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_answer_that_cannot_be_written_is_one_sentence() -> None:
    call = [sys.executable, "-m", "understudy.cli.main", "simulate", *SMALL, "--runs", "1", "--strategy", "checkpoint"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("understudy simulate: cannot write to standard output: ")
    assert done.stderr.count("\n") == 1
