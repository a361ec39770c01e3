"""The page of a folder of results: it has everything that was measured, and says what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.made import everything, report
from tests.planning.report.test_page import Reader
from understudy.planning.report.chart import BarChart, LineChart
from understudy_bench.report import charts
from understudy_bench.report.folder import Outcome, Results, RunInfo
from understudy_bench.report.page import page_of, sheet_of

SECTIONS = (
    "downtime",
    "dip",
    "breakdown",
    "torchft",
    "behind",
    "missing",
    "memory",
    "collectives",
    "setup",
    "rebalancing",
    "checks",
)


def test_downtime_has_a_group_for_each_kind_of_interruption_and_shows_missing_systems() -> None:
    bars = charts.downtime(everything())
    assert bars is not None
    groups = {group.label: {bar.name: bar for bar in group.bars} for group in bars.groups}
    assert list(groups) == [
        *("a machine is replaced", "a worker dies", "a machine dies", "one of four replicas dies"),
    ]
    assert list(groups["a machine is replaced"]) == ["understudy", "naive", "restart"]
    assert groups["a worker dies"]["understudy"].reach == (0.2, 0.4)
    assert groups["a worker dies"]["torchft"].value is None
    assert groups["a worker dies"]["torchft"].note.startswith("not installed")


def test_each_technique_that_was_switched_off_has_a_bar() -> None:
    bars = charts.switched_off(everything())
    assert bars is not None
    lost, ready = bars.groups
    assert [bar.name for bar in lost.bars] == ["understudy", "no delta", "no overlap", "naive"]
    assert [bar.value for bar in ready.bars] == [4.0, 4.1, 4.0, 5.0]


def test_the_dip_ends_with_the_measurements() -> None:
    dips = charts.dips(everything())
    assert list(dips) == ["A machine is replaced by plan", "A worker is killed", "A machine is killed"]
    line = dips["A worker is killed"].lines[0]
    assert (line.xs, line.ys) == ((-0.75, -0.25, 0.25), (1.0, 1.0, 0.25))


def test_memory_is_drawn_in_megabytes_of_one_replacement() -> None:
    lines = charts.memory(everything())
    assert isinstance(lines, LineChart)
    assert [line.name for line in lines.lines] == ["stayer 1", "stayer 2", "leaver"]
    assert lines.lines[0].ys == pytest.approx((10.0, 10.0, 10.1))


def test_what_is_left_of_the_speed_and_what_a_change_costs_the_controller() -> None:
    left, cost = charts.rebalancing(everything()), charts.control(everything())
    assert left is not None
    assert [line.name.partition(",")[0] for line in left.lines] == ["understudy", "understudy", "restart"]
    assert cost is not None
    assert cost.lines[0].xs == (64.0, 256.0, 1024.0)


def test_the_pictures_are_those_that_there_is_something_for() -> None:
    found = charts.pictured(everything())
    assert list(found) == ["downtime", "dip", "memory"]
    assert isinstance(found["downtime"][1], BarChart)
    assert charts.pictured(Results({})) == {}


def test_the_page_has_every_section_and_loads_nothing() -> None:
    pytest.importorskip("plotly", reason="the extra 'report' is not installed")
    text = page_of(everything())
    found = Reader(text)
    assert [name for name in found.ids if name in SECTIONS] == list(SECTIONS)
    plots = (
        "downtime",
        "dip",
        "dip-2",
        "breakdown",
        "breakdown-2",
        "memory",
        "collectives",
        "setup",
        "setup-2",
        "rebalancing",
    )
    assert {f"plot-{name}" for name in plots} <= set(found.ids)
    assert found.loaded == []
    assert "default-src 'none'" in found.policy
    for words in (
        "Where Understudy is not ahead",
        "no overlap: 0.15 s",
        "ratio_torchft",
        "not installed: pip install it",
    ):
        assert words in found.text, words
    for words in ("it has not gone on", "load", "Linux 6 x86_64", "torchft not installed"):
        assert words in found.text, words


def test_an_unknown_benchmark_is_shown_with_its_rows() -> None:
    results = Results({"novel": report("novel", [{"machines": 64, "cpu_s": 1.25, "curve": {"x": [1, 2]}}])})
    part = next(part for part in sheet_of(results).parts if part.id == "rows-novel")
    assert part.grids[0].titles == ("machines", "cpu_s")
    assert part.grids[0].rows == (("64", "1.25"),)


def test_what_did_not_come_to_an_end_is_missing() -> None:
    run = RunInfo("2026-01-02 03:04", False, (Outcome("setup", "failed", 2.0, "cannot run here"),))
    sheet = sheet_of(Results({}, run, ("x.json is no result",)))
    part = next(part for part in sheet.parts if part.id == "missing")
    (grid,) = part.grids
    assert ("setup", "the benchmark", "failed: cannot run here") in grid.rows
    assert ("replace", "the benchmark", "no result here") in grid.rows
    assert ("", "a file", "x.json is no result") in grid.rows
    assert "2026-01-02 03:04" in sheet.made


def test_one_result_alone_makes_a_page() -> None:
    pytest.importorskip("plotly", reason="the extra 'report' is not installed")
    results = everything()
    for name, only in results.reports.items():
        found = Reader(page_of(Results({name: only})))
        assert "nan" not in found.text.lower().split(), name


def test_a_quick_run_says_so() -> None:
    made = everything().reports["setup"]
    assert "quick run" not in sheet_of(Results({"setup": made})).lead
    quick = replace(made, env=replace(made.env, quick=True))
    assert "quick run" in sheet_of(Results({"setup": quick})).lead
