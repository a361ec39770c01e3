"""`understudy bench all` and `bench report`, with benchmarks that measure nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from tests.bench.made import everything
from understudy.cli.bench import dated
from understudy.cli.main import main
from understudy_bench import registry
from understudy_bench.harness import bench as harness
from understudy_bench.harness import suite
from understudy_bench.harness.bench import Bench, Check, Progress, Result
from understudy_bench.report import folder
from understudy_bench.report.folder import RunInfo


class Fakes:
    """Benchmarks that run in this process: name → whether its check holds, or what it raises."""

    def __init__(self) -> None:
        self.outcomes: dict[str, bool | BaseException] = {}

    def start(self, quick: bool) -> Callable[[str, Path], int]:
        def run(name: str, file: Path) -> int:
            return main(["bench", name, "--json", str(file), *(["--quick"] if quick else [])])

        return run

    def measure(self, name: str) -> Callable[[bool, Progress], Result]:
        def measured(quick: bool, progress: Progress) -> Result:
            outcome = self.outcomes[name]
            if isinstance(outcome, BaseException):
                raise outcome
            return Result([{"system": "understudy", "round": "all", "lost_s": 0.2}], [Check("fast", 1, "1", outcome)])

        return measured


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    pytest.importorskip("plotly", reason="the extra 'report' is not installed")
    found = Fakes()
    module = ModuleType("fake_benches")
    for name in ("replace", "novel"):
        found.outcomes[name] = True
        module.__dict__[name] = Bench(name, "nothing", found.measure(name))
    monkeypatch.setitem(sys.modules, "fake_benches", module)
    names = {"replace": "fake_benches:replace", "novel": "fake_benches:novel", "gone": "no_such_module:BENCH"}
    monkeypatch.setattr(registry, "BENCHES", names)
    monkeypatch.setattr(suite, "in_a_process", found.start)
    return found


def states(place: Path) -> list[str]:
    info = msgspec.json.decode((place / folder.RUN).read_bytes(), type=RunInfo)
    return [outcome.state for outcome in info.outcomes]


def test_all_run_and_the_report_is_there(fakes: Fakes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "all", "--quick", "--only", "novel, replace", "--results", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert "[1/2] replace: about" in err
    assert "[2/2] novel: about" in err
    assert f"report: {tmp_path / 'out' / 'report.html'}" in out.replace("\n", "")
    assert {"replace.json", "novel.json", "run.json", "report.html"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert states(tmp_path / "out") == ["ok", "ok"]
    assert "quick run" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


def test_a_quick_run_leaves_out_what_takes_minutes_and_says_so(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(registry.BENCHES, "gone")
    monkeypatch.setattr(registry, "SLOW", ("novel",))
    assert main(["bench", "all", "--quick", "--results", str(tmp_path / "quick")]) == 0
    assert states(tmp_path / "quick") == ["ok", "left out"]
    assert "name it with --only" in (tmp_path / "quick/report.html").read_text(encoding="utf-8")
    assert main(["bench", "all", "--results", str(tmp_path / "full")]) == 0
    assert states(tmp_path / "full") == ["ok", "ok"]


def test_one_that_cannot_run_and_a_check_that_fails_end_nothing_but_the_exit_code_tells(
    fakes: Fakes, tmp_path: Path
) -> None:
    fakes.outcomes["replace"] = False
    assert main(["bench", "all", "--results", str(tmp_path)]) == 1
    assert states(tmp_path) == ["checks failed", "ok", "failed"]
    assert "had to be 1" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_interruption_leaves_the_report_of_what_had_finished(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(quick: bool) -> Callable[[str, Path], int]:
        def run(name: str, file: Path) -> int:
            if name == "novel":
                raise KeyboardInterrupt
            return fakes.start(quick)(name, file)

        return run

    monkeypatch.setattr(suite, "in_a_process", start)
    assert main(["bench", "all", "--results", str(tmp_path)]) == 130
    assert states(tmp_path) == ["ok", "interrupted", "not run"]
    assert (tmp_path / "report.html").exists()


def test_the_report_is_made_again_from_files_with_pictures_and_a_readme(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly", reason="the extra 'report' is not installed")
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    for name, made in everything().reports.items():
        (tmp_path / f"{name}.json").write_bytes(harness.to_json(made))
    readme, images = tmp_path / "README.md", tmp_path / "images"
    readme.write_text("<!-- bench: setup -->\n<!-- /bench -->\n")
    assert main(["bench", "report", str(tmp_path), "--png", str(images), "--readme", str(readme)]) == 0
    assert {path.name for path in images.iterdir()} == {"downtime.png", "dip.png", "memory.png"}
    assert "11 of 3,072" in readme.read_text()
    assert main(["bench", "report", str(tmp_path), "--png", str(images), "--readme", str(readme)]) == 0
    assert "unchanged" in capsys.readouterr().err


def test_a_readme_without_markers_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "setup.json").write_bytes(harness.to_json(everything().reports["setup"]))
    readme = tmp_path / "README.md"
    readme.write_text("no markers\n")
    assert main(["bench", "report", str(tmp_path), "--readme", str(readme)]) == 2
    assert "has no marker such as" in capsys.readouterr().err
    assert readme.read_text() == "no markers\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["all", "--only", "colectives"], "there is no benchmark 'colectives' (did you mean collectives?)"),
        (["all", "--only", " , "], "--only names no benchmark"),
        (["all", "--json", "x.json"], "--json is for one benchmark"),
        (["all", "somewhere"], "'somewhere' is for 'understudy bench report' only"),
        (["all", "--png", "x"], "--png is for 'understudy bench report' only"),
        (["setup", "--only", "mask"], "--only is for 'understudy bench all' only"),
        (["setup", "--results", "x"], "--results is for 'understudy bench all' only"),
        (["report"], "name the folder of results"),
        (["report", "no-such-folder"], "there is no folder no-such-folder; 'understudy bench all' makes one"),
        (["report", "x", "--quick"], "--quick is for running"),
        (["report", "x", "--results", "y"], "--results is for 'understudy bench all' only"),
    ],
)
def test_what_does_not_fit_is_refused(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *args]) == 2
    assert words in capsys.readouterr().err


def test_every_run_of_a_day_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert dated(tmp_path, "2026-01-02") == tmp_path / "2026-01-02"
    (tmp_path / "2026-01-02").mkdir()
    (tmp_path / "2026-01-02-2").mkdir()
    assert dated(tmp_path, "2026-01-02") == tmp_path / "2026-01-02-3"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["bench", "all", "--only", "setup", "--results", str(tmp_path / "file")]) == 2
    assert "name another folder with --results" in capsys.readouterr().err
