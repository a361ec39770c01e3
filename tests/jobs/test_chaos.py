"""A short campaign of faults of different kinds in one job: it ends with the bits of an undisturbed job, every step is
applied once, and nothing is left. `make chaos` is the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.jobs.test_examples import EXAMPLES, SMALL, UNHURRIED
from understudy.cli.run import combined
from understudy.launch.spec import make
from understudy.verify.chaos.campaign import FaultRecord
from understudy.verify.chaos.mix import schedule
from understudy.verify.chaos.trial import TrialProgress, TrialSettings, run_trial

pytestmark = [pytest.mark.job, pytest.mark.timeout(900)]

SOME = ("kill-machine", "kill-controller", "corrupt-line", "replace", "raise-in-forward", "stop-worker")
MORE = (*SOME, "drop-control", "pause-worker", "kill-worker", "exit-1")


@pytest.mark.parametrize("mix", [SOME, pytest.param(MORE, marks=pytest.mark.long)], ids=["some", "more"])
def test_a_short_campaign(mix: tuple[str, ...], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNHURRIED.format(example=str(EXAMPLES / "gpt_3d.py")))
    mesh = {"machines": 2, "nproc": 2, "mesh": "dp=2,pp=2,tp=1", "standbys": 2, "answer_limit": 3.0, "quarantine": 100}
    settings = {**mesh, "run_dir": str(tmp_path / "run"), "script": str(script), "args": SMALL}
    records: list[FaultRecord] = []

    def say(text: str) -> None:
        if text.startswith("undisturbed"):
            (tmp_path / "hurry").touch()

    progress = TrialProgress(say, records.append)
    plan = schedule(4, dict.fromkeys(mix, 1), every=0.3)
    faults = TrialSettings(len(mix), patience=240.0)
    result = asyncio.run(run_trial(make(settings), plan, faults, progress, fingerprint=combined))
    assert result.complaints == []
    assert {record.kind: record.outcome for record in records} == dict.fromkeys(mix, "recovered")
    assert result.faults == len(mix)
    assert result.steps > len(mix)
    assert len(set(result.digests.values())) == 2  # one for each stage
