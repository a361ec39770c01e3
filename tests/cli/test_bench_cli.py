from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from understudy.cli.main import main
from understudy_bench import registry
from understudy_bench.harness.bench import Bench, Check, Progress, Result


class Fake:
    """A registered benchmark with an outcome that a test chooses; `runs` holds the `quick` of every run."""

    def __init__(self) -> None:
        self.runs: list[bool] = []
        self.ok = True
        self.error: BaseException | None = None

    def measure(self, quick: bool, progress: Progress) -> Result:
        self.runs.append(quick)
        progress.total = 1
        progress.advance("only one")
        if self.error is not None:
            raise self.error
        return Result([{"size": 8, "ms": 1.5}], [Check("fast", 3.0, ">= 2", self.ok)])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    module = ModuleType("fake_bench")
    module.__dict__["BENCH"] = Bench("fake", "measures nothing [really]", fake.measure)
    monkeypatch.setitem(sys.modules, "fake_bench", module)
    monkeypatch.setattr(registry, "BENCHES", {"fake": "fake_bench:BENCH", "gone": "no_such_module:BENCH"})
    return fake


def test_a_run_shows_the_table_on_stdout_and_progress_on_stderr(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fake"]) == 0
    out, err = capsys.readouterr()
    assert "fast" in out
    assert "ok" in out
    assert "only one" not in out
    assert "fake: 1/1" in err
    assert "\x1b" not in out + err
    assert fake.runs == [False]


def test_quick_reaches_the_benchmark(fake: Fake) -> None:
    assert main(["bench", "fake", "--quick"]) == 0
    assert fake.runs == [True]


def test_a_failed_check_is_exit_code_1_and_is_written_all_the_same(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.ok = False
    assert main(["bench", "fake", "--json", str(tmp_path / "result.json")]) == 1
    assert "FAIL" in capsys.readouterr().out
    assert json.loads((tmp_path / "result.json").read_text())["checks"][0]["ok"] is False


def test_json_is_the_whole_document_and_nothing_else_is_left(fake: Fake, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    target.write_text("older")
    assert main(["bench", "fake", "--json", str(target)]) == 0
    document = json.loads(target.read_text())
    assert list(document) == ["bench", "env", "rows", "checks"]
    assert document["rows"] == [{"size": 8, "ms": 1.5}]
    assert list(tmp_path.iterdir()) == [target]


def test_json_is_written_to_the_target_of_a_link(fake: Fake, tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    assert main(["bench", "fake", "--json", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads(real.read_text())["bench"] == "fake"


def test_a_bare_file_name_is_written_to_the_current_directory(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "fake", "--json", "result.json"]) == 0
    assert (tmp_path / "result.json").is_file()


def test_a_write_that_fails_half_way_leaves_the_old_file(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "result.json"
    target.write_text("older")
    monkeypatch.setattr(os, "fsync", full)
    assert main(["bench", "fake", "--json", str(target)]) == 2
    out, err = capsys.readouterr()
    assert "fast" in out
    assert "No space left on device; the result is only in the table" in err
    assert target.read_text() == "older"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("missing/result.json", "there is no directory"),
        ("a_file/result.json", "there is no directory"),
        ("a_folder", "not a regular file"),
        ("/dev/null", "not a regular file"),
        ("/proc/result.json", "choose a directory you may write to"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_run(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, reason: str
) -> None:
    (tmp_path / "a_file").touch()
    (tmp_path / "a_folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["bench", "fake", "--json", str(tmp_path / place)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("understudy bench: cannot write ")
    assert reason in err
    assert err.count("\n") == 1
    assert fake.runs == []
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unknown_name_is_one_sentence_with_close_matches(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fakke"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "understudy bench: there is no benchmark 'fakke' (did you mean fake?); "
        "'understudy bench --list' shows them all\n"
    )


def test_a_name_close_to_nothing_still_gets_the_way_out(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "zzz"]) == 2
    err = capsys.readouterr().err
    assert "did you mean" not in err
    assert "--list" in err


def test_no_name_points_to_the_list(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "--list" in capsys.readouterr().err


def test_the_list_survives_a_module_that_is_missing(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["fake", "gone"]
    assert "measures nothing [really]" in lines[0]
    assert "not available: No module named 'no_such_module'" in lines[1]


def test_a_registered_module_that_is_missing_cannot_run(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gone"]) == 2
    assert "benchmark 'gone' cannot run: No module named" in capsys.readouterr().err


def test_a_module_without_a_bench_is_named(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry.BENCHES, "odd", "json:BENCH")
    assert main(["bench", "odd"]) == 2
    assert "json:BENCH is not a Bench" in capsys.readouterr().err


def test_ctrl_c_is_exit_code_130_and_one_line(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.error = KeyboardInterrupt()
    assert main(["bench", "fake", "--json", str(tmp_path / "result.json")]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "understudy bench: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_a_broken_benchmark_is_not_hidden(fake: Fake) -> None:
    fake.error = RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        main(["bench", "fake"])


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["--help"])
    assert ending.value.code == 0
    assert "understudy bench --list" in capsys.readouterr().out


def test_the_shipped_names_are_registered() -> None:
    assert {"collectives", "setup"} <= set(registry.BENCHES)
