"""Whole checks: scripts that forget something are told what and where, and the examples forget nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.comm.helpers import eventually
from tests.jobs.habits import FORGETFUL_HABITS, HEAD, LONELY, REMEMBERED
from tests.jobs.test_examples import EXAMPLES
from understudy.cli.main import main
from understudy.verify import processes

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

FORGETFUL = """
RANK = int(os.environ["RANK"])
CALLS = {"n": 0}

class Meter:
    def __init__(self):
        self.best = 1.0

def scale():
    CALLS["n"] += 1
    return 1 + CALLS["n"] / 100

def train(job):
    model, optim = parts(job)
    schedule = torch.optim.lr_scheduler.StepLR(optim, 2, 0.9)
    job.track(model=model, optim=optim)
    ema = copy.deepcopy(model.module)
    batches = iter(torch.arange(400.0).reshape(100, 1, 4))
    noise = torch.Generator().manual_seed(5)
    draws = random.Random(5)
    meter = Meter()
    trend = torch.zeros(4)
    warm = 0
    average = 0.0
    for step in job.steps(100):
        with step:
            warm += 1
            inputs = next(batches) / 100 + torch.rand(1, 4, generator=noise) + draws.random()
            loss = model(inputs + ema(inputs).detach() + trend).pow(2).mean() * min(1.0, warm / 10) * scale()
            learn(loss * meter.best, optim)
            schedule.step()
            trend += 0.1
            with torch.no_grad():
                for old, new in zip(ema.parameters(), model.module.parameters(), strict=True):
                    old.lerp_(new, 0.5)
            meter.best = min(meter.best, 0.99 * meter.best)
            average = 0.9 * average + 0.1 * loss.item()
            if job.is_primary:
                print(f"loss {average:.3f}")
understudy.run(train)
"""
CHANCE = """
def train(job):
    model, optim = parts(job)
    job.track(model=model, optim=optim)
    draws = random.Random()
    began = time.time()
    for step in job.steps(100):
        with step:
            learn(model(torch.ones(1, 4)).pow(2).mean() * (1 + time.time() - began + draws.random()), optim)
understudy.run(train)
"""
UNEVEN = """
def train(job):
    model, optim = parts(job)
    job.track(model=model, optim=optim)
    for step in job.steps(100):
        with step:
            if job.role == 0 and step.index == 2:
                dist.all_reduce(torch.ones(1))
            learn(model(torch.ones(1, 4)).pow(2).mean(), optim)
understudy.run(train)
"""
UNTRACKED = """
def train(job):
    model, optim = parts(job)
    for step in job.steps(100):
        with step:
            learn(model(torch.ones(1, 4)).pow(2).mean(), optim)
understudy.run(train)
"""
EARLY = """
def train(job):
    model, optim = parts(job)
    job.track(model=model, optim=optim)
    for step in job.steps(100):
        with step:
            learn(model(torch.ones(1, 4)).pow(2).mean(), optim)
        if step.index == 2:
            break
understudy.run(train)
"""
RAISES = """
def train(job):
    model, optim = parts(job)
    job.track(model=model, optim=optim)
    for step in job.steps(100):
        with step:
            if step.index == 1:
                raise ValueError("no such luck")
            learn(model(torch.ones(1, 4)).pow(2).mean(), optim)
understudy.run(train)
"""


class Checked:
    """One check: its exit code, its document, and what a person saw."""

    def __init__(self, folder: Path, script: str, *options: str) -> None:
        self.text = script if script.startswith(HEAD) else HEAD + script
        path = folder / "train.py"
        path.write_text(self.text)
        self.code = main(["check", "--json", str(folder / "found.json"), *options, str(path)])
        self.document: dict[str, Any] = json.loads((folder / "found.json").read_text())

    @property
    def findings(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document["findings"]
        return found

    @property
    def proven(self) -> dict[str, Any]:
        """The first."""
        assert self.code == 1, self.findings
        assert self.document["verdict"] == "found"
        assert self.findings[0]["proven"]
        return self.findings[0]

    def line(self, words: str) -> str:
        """Where the script has this."""
        number = next(number for number, line in enumerate(self.text.splitlines(), 1) if words in line)
        return f"train.py:{number}"


def test_everything_that_was_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Checked(tmp_path, FORGETFUL)
    diverged = [finding for finding in run.findings if finding["kind"] == "diverged"]
    assert ["replaced" in each["disturbance"] for each in diverged] == [True, False]
    assert [each["name"] for each in run.document["runs"]][2:] == ["disturbed 2", "undisturbed again"]
    replaced = run.proven
    assert replaced["step"] == 5
    assert "model.module.weight" in replaced["tensors"]
    causes = {cause["variable"]: cause for cause in replaced["causes"]}
    assert {name: (cause["kind"], cause["place"]) for name, cause in causes.items()} == {
        "ema": ("module", run.line("ema = copy")),
        "schedule": ("scheduler", run.line("schedule = ")),
        "batches": ("iterator", run.line("batches = ")),
        "noise": ("generator", run.line("noise = ")),
        "draws": ("generator", run.line("draws = ")),
        "trend": ("tensor", run.line("trend = ")),
        "meter.best": ("number", run.line("self.best = ")),
        "warm": ("counter", run.line("warm = ")),
        "CALLS": ("dict", run.line("CALLS = ")),
    }
    assert causes["batches"]["evidence"] == "before step 5: at 5 undisturbed, at 3 in the joiner"
    assert causes["ema"]["advice"] == "add it: job.track(ema=ema)"
    notes = {note["variable"]: note["kind"] for note in run.findings if not note["proven"]}
    assert notes == {"average": "forgotten", "RANK": "rank"}
    said = capsys.readouterr().out
    assert f'{run.line("ema = copy")}: "ema" (a module) changes from step to step and is not tracked' in said
    assert said.endswith("train.py does not survive replacement as it is, and 2 warnings\n")


def test_habits_that_keep_state_in_variables(tmp_path: Path) -> None:
    run = Checked(tmp_path, FORGETFUL_HABITS)
    causes = {cause["variable"]: (cause["kind"], cause["place"]) for cause in run.proven["causes"]}
    assert causes == {
        "range(1000)": ("position", run.line("for epoch in")),
        "loader": ("position", run.line("for (batch,) in")),
        "sampler": ("sampler", run.line("sampler = ")),
        "schedule": ("scheduler", run.line("schedule = ")),
        "scaler": ("scaler", run.line("mean, scaler = ")),
        "mean": ("module", run.line("mean, scaler = ")),
        "ahead": ("tensor", run.line("ahead = noise(0)")),
        "best": ("number", run.line("best, bad = float")),
        "ema.shadow": ("dict", run.line("self.shadow = {")),
    }
    warnings = {each["variable"]: each["kind"] for each in run.findings if not each["proven"]}
    assert warnings == {"rare": "untracked", "bad": "untracked"}
    assert any("epochs of 5 batches" in option for option in run.document["runs"][0]["options"])


def test_habits_that_compute_or_track_their_state(tmp_path: Path) -> None:
    run = Checked(tmp_path, REMEMBERED)
    assert (run.code, run.document["verdict"], run.findings) == (0, "clean", [])
    done = [(each["kind"], each["role"]) for run in run.document["runs"] for each in run["disturbances"]]
    primary = [role for kind, role in done if kind == "replace"]
    assert {("replace", *primary), ("kill", *primary)} <= set(done)


def test_a_kill_that_ends_the_job_with_the_options_of_run(tmp_path: Path) -> None:
    run = Checked(tmp_path, LONELY)
    (found,) = run.findings
    assert (found["kind"], run.code) == ("fatal", 1)
    assert "no live replica holds its state" in found["sentence"]
    assert found["advice"].endswith("with --copy-every 1 all bits were the same")
    copying = ["--copy-every 1" in each["options"] for each in run.document["runs"]]
    assert copying == [False, False, False, True]


@pytest.mark.long
def test_chance(tmp_path: Path) -> None:
    found = (run := Checked(tmp_path, CHANCE)).proven
    assert found["kind"] == "not-deterministic"
    assert found["step"] == 0
    first, second = found["causes"][:2]
    assert (first["kind"], first["variable"], first["place"]) == ("entropy", "draws", run.line("draws = "))
    assert (second["kind"], second["variable"], second["place"]) == ("clock", "began", run.line("began = "))
    assert all(cause["evidence"] for cause in (first, second))


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        pytest.param(UNEVEN, "collectives", "all_reduce", id="uneven"),
        pytest.param(UNTRACKED, "never-tracks", "nothing was tracked", id="untracked"),
        pytest.param(EARLY, "ended-early", "after 3 of 12 steps", id="early", marks=pytest.mark.long),
        pytest.param(RAISES, "raises", "no such luck", id="raises", marks=pytest.mark.long),
    ],
)
def test_scripts_that_do_not_come_so_far(script: str, kind: str, words: str, tmp_path: Path) -> None:
    run = Checked(tmp_path, script)
    assert run.proven["kind"] == kind
    assert words in run.proven["sentence"]
    assert [each["name"] for each in run.document["runs"]] == ["undisturbed"]
    if kind == "collectives":
        assert run.proven["causes"][0]["place"] == run.line("dist.all_reduce(torch.ones(1))")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_however_it_ends_nothing_is_left(number: signal.Signals, tmp_path: Path) -> None:
    script, mark = tmp_path / "train.py", uuid.uuid4().hex
    script.write_text(HEAD + UNTRACKED.replace("model, optim = parts(job)", "print('here')\n    time.sleep(1000)"))
    kept = tmp_path / "kept"
    env = {**os.environ, "UNDERSTUDY_TEST_MARK": mark, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "understudy.cli.main", "check", "--keep", str(kept), str(script)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        log = kept / "undisturbed" / "log.txt"
        deadline = time.monotonic() + 150
        while not log.exists() or "here" not in log.read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(list(tmp_path.glob("understudy-*"))) == 2
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert out == ""
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert err == "understudy check: interrupted; all processes are ended\n"
        else:  # SIGKILL: the command could not wait for its processes
            eventually(lambda: not processes.marked(f"UNDERSTUDY_TEST_MARK={mark}"))
            eventually(lambda: not list(tmp_path.glob("understudy-*")))
        assert not processes.marked(f"UNDERSTUDY_TEST_MARK={mark}")
        assert not list(tmp_path.glob("understudy-*"))
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("example", "options"),
    [
        ("gpt_ddp.py", ()),
        pytest.param("gpt_fsdp.py", ("--copy-every", "1"), marks=pytest.mark.long),
        pytest.param("gpt_3d.py", ("--mesh", "pp=1,dp=2,tp=1"), marks=pytest.mark.long),
        pytest.param("tokens_ddp.py", (), marks=pytest.mark.long),
    ],
)
def test_the_examples_forget_nothing(example: str, options: tuple[str, ...], tmp_path: Path) -> None:
    target = tmp_path / "found.json"
    small = ("--width", "64", "--layers", "1", "--batch", "2")
    assert main(["check", "--json", str(target), *options, str(EXAMPLES / example), *small]) == 0
    document = json.loads(target.read_text())
    assert document["verdict"] == "clean"
    assert document["findings"] == []
    kinds = [each["kind"] for run in document["runs"] for each in run["disturbances"]]
    assert kinds.count("replace") >= 1
    assert kinds.count("kill") >= 2
