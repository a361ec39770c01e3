"""Durations from the ledger and the metrics of a run, and the message for a run without them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.controller.core.rig import Rig
from tests.controller.core.test_director_replay import history
from understudy.cli.calibration import calibrated, measured
from understudy.cli.command import UsageError
from understudy.controller.server.ledger import Ledger
from understudy.planning.inputs.calibrate import ASSUMED, MeasuredLoss
from understudy.protocol.messages import Rehearsed, Saved, Switched


def kept(rig: Rig, run: Path, metrics: str = "") -> Path:
    """What a run with these events would leave behind."""
    run.mkdir(exist_ok=True)
    (run / "plan.json").write_bytes(msgspec.json.encode(rig.plan))
    with closing(Ledger(run / "ledger.sqlite")) as ledger:
        for at, event in rig.ledger:
            ledger.append(at, event)
    (run / "metrics-m0.jsonl").write_text(metrics)
    return run


def lines(*seconds: float) -> str:
    return "".join(json.dumps({"step": n, "role": 0, "seconds": s}) + "\n" for n, s in enumerate(seconds))


def recovery() -> Rig:
    """Role 1's worker dies, a standby that is ready takes it, and the machine is ready again."""
    rig = Rig.training(machines=3, standbys=1, warm=1)
    rig.say("w3", Rehearsed(0, 1.0, (0, 1, 2)))
    rig.exits("w1")
    rig.halted("w0", "w2")
    rig.say("w3", Rehearsed(1))
    rig.all_switch()
    rig.settled(0.4)
    rig.here("m1")
    rig.say(rig.director.job.machines["m1"].workers[0].uid, Rehearsed(0, 1.0, (0, 1, 2)))
    return rig


def test_a_recovery(tmp_path: Path) -> None:
    """Every event of the rig is a second after the one before."""
    rig = recovery()
    found = measured(kept(rig, tmp_path / "run", lines(0.0, 0.2, 0.2, 0.9, 0.2)))
    assert (found.step, found.steps) == (0.2, 4)
    assert found.detected == [2.0]
    assert found.recovered == [0.0]  # the second that the rehearsal took is not the stall's, and here more than that
    first_step = next(at for at, event in rig.ledger if b"settled" in msgspec.json.encode(event))
    assert found.started == [first_step - rig.ledger[0][0]]
    (away,) = found.away
    died = next(event.at for event in rig.announcements if event.kind == "died")
    assert away == rig.now - died
    assert not found.masked
    assert not found.replaced


def test_what_is_measured_is_told_from_what_is_assumed(tmp_path: Path) -> None:
    found = calibrated(kept(recovery(), tmp_path / "run", lines(0.2, 0.2)))
    assert found.sources["hand_over"].startswith("measured in 1 recovery,")
    assert found.sources["planned"] == ASSUMED
    assert found.durations.detect == 2.0


def test_a_planned_replacement(tmp_path: Path) -> None:
    rig = Rig.training()
    rig.replace(until="seated")
    rig.settled(0.125)
    assert measured(kept(rig, tmp_path / "run")).replaced == [0.125]


def test_masking_and_the_refill(tmp_path: Path) -> None:
    rig = Rig.training(machines=3, standbys=0, mask="anywhere")
    rig.exits("w1")
    died = rig.now
    rig.halted("w0", "w2")
    rig.each(["w0", "w2"], Switched(rig.change.generation, 5))
    rig.settled(0.3)
    rig.here("m1")
    rig.go_on("switch")
    entered = rig.now  # the first of them makes its step in the new roster
    rig.all_switch()
    rig.settled(0.1)
    found = measured(kept(rig, tmp_path / "run"))
    assert found.masked == [MeasuredLoss(0.3, 0.5)]
    assert found.joined == [MeasuredLoss(0.1, 0.5)]
    assert found.refilled == [entered - died]
    assert not found.recovered


def test_a_checkpoint_costs_what_the_step_after_it_takes_longer(tmp_path: Path) -> None:
    rig = Rig.training()
    rig.say("w0", Saved(0, 3))
    rig.say("w1", Saved(1, 3))
    found = measured(kept(rig, tmp_path / "run", lines(0.1, 0.1, 0.1, 0.6, 0.1, 0.1)))
    assert list(found.saved) == pytest.approx([0.5])


def test_torn_and_foreign_lines_of_the_metrics_are_passed_over(tmp_path: Path) -> None:
    text = lines(0.5, 0.5) + '[1]\n{"step": 7}\n{"step": 1, "seconds": NaN}\n\xff\n{"step": 3, "secon'
    assert measured(kept(Rig.training(), tmp_path / "run", text)).steps == 2


def test_settings_that_an_earlier_version_did_not_write_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = kept(recovery(), tmp_path / "run")
    measured(run)
    assert capsys.readouterr().err == ""
    plan = json.loads((run / "plan.json").read_text())
    del plan["settings"]["recovery"]["heartbeat"], plan["settings"]["steward"]
    (run / "plan.json").write_text(json.dumps(plan))
    measured(run)
    lacking = "settings.recovery.heartbeat, settings.steward"
    said = f"{run}: its plan.json, from an earlier version, lacks {lacking}; the defaults are used\n"
    assert capsys.readouterr().err == said


def test_a_long_history_can_be_measured(tmp_path: Path) -> None:
    rig = history()
    found = measured(kept(rig, tmp_path / "run"))
    assert len(found.replaced) >= 1
    assert found.detected


def test_a_run_that_goes_on_is_read_with_its_last_events(tmp_path: Path) -> None:
    """What is new lies beside the ledger's file while its controller has it open."""
    rig = recovery()
    run = kept(Rig(3), tmp_path / "run")
    (run / "plan.json").write_bytes(msgspec.json.encode(rig.plan))
    with closing(Ledger(run / "ledger.sqlite")) as ledger:
        for at, event in rig.ledger:
            ledger.append(at, event)
        assert measured(run).detected == [2.0]


def test_reading_changes_nothing(tmp_path: Path) -> None:
    run = kept(recovery(), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    measured(run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("nothing", "there is no such folder"),
        ("folder", "there is no ledger.sqlite in it"),
        ("no plan", "its plan.json is missing or damaged"),
        ("bad plan", "its plan.json is missing or damaged"),
        ("empty file", "no such table: events; name another run"),
        ("empty ledger", "its ledger is empty"),
        ("binary", "file is not a database; name another run"),
        ("torn entry", "entry 3 cannot be read"),
        ("other plan", "do not belong together"),
        ("no step", "it has not completed a step"),
    ],
)
def test_a_run_that_cannot_be_used(tmp_path: Path, harm: str, words: str) -> None:
    run, ledger = tmp_path / "run", tmp_path / "run" / "ledger.sqlite"
    rig = Rig(2)
    rig.come("m0")
    match harm:
        case "folder":
            run.mkdir()
        case "no plan" | "bad plan":
            kept(recovery(), run)
            (run / "plan.json").unlink() if harm == "no plan" else (run / "plan.json").write_text('{"machines": "x"}')
        case "empty file" | "binary":
            kept(recovery(), run)
            ledger.write_bytes(b"" if harm == "empty file" else b"\x7fELF" * 1000)
        case "empty ledger":
            kept(Rig(2), run)
        case "torn entry":
            kept(recovery(), run)
            with closing(sqlite3.connect(ledger)) as db, db:
                db.execute('UPDATE events SET event = \'{"type": "regis\' WHERE number = 3')
        case "other plan":
            kept(recovery(), run)
            (run / "plan.json").write_text('{"machines": 1, "nproc": 3}')
        case "no step":
            kept(rig, run)
    with pytest.raises(UsageError) as caught:
        measured(run)
    assert words in str(caught.value)
    assert str(run) in str(caught.value)
