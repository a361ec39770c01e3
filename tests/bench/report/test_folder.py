from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.bench.made import report
from understudy_bench.harness.bench import Check, to_json
from understudy_bench.report import folder
from understudy_bench.report.folder import Outcome, ResultsError, RunInfo, read


def test_what_a_benchmark_has_written_is_read_again(tmp_path: Path) -> None:
    made = report("setup", [{"roles": 8, "spread": [1.0, 2.0]}], [Check("fast", 2.5, ">= 2", True)])
    (tmp_path / "setup.json").write_bytes(to_json(made))
    info = RunInfo("2026-01-02 03:04", True, (Outcome("setup", "ok", 12.5), Outcome("mask", "interrupted", 1.0)))
    (tmp_path / folder.RUN).write_bytes(msgspec.json.encode(info))
    found = read(tmp_path)
    assert found.reports == {"setup": made}
    assert found.run == info
    assert found.problems == ()


def test_a_file_that_is_no_result_is_told_of_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "setup.json").write_bytes(to_json(report("setup", [])))
    (tmp_path / "broken.json").write_text('{"bench": "x"')
    (tmp_path / "other.json").write_text('{"some": "thing"}')
    found = read(tmp_path)
    assert list(found.reports) == ["setup"]
    assert [problem.split()[0] for problem in found.problems] == ["broken.json", "other.json"]


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"there is no folder .*gone; 'understudy bench all' makes one"):
        read(tmp_path / "gone")
    with pytest.raises(ResultsError, match="holds no results"):
        read(tmp_path)


def test_totals_are_the_rows_of_all_rounds() -> None:
    rows: list[dict[str, object]] = [
        {"system": "a", "round": 0},
        {"system": "a", "round": "all"},
        {"system": "b", "round": "all 3"},
    ]
    found = folder.Results({"x": report("x", rows)})
    assert [row["round"] for row in found.totals("x")] == ["all", "all 3"]
    assert found.totals("x", system="b") == [rows[2]]
    assert found.rows("nothing") == []
