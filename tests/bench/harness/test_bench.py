from __future__ import annotations

import io
import json
import platform
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from understudy_bench.harness import bench as harness
from understudy_bench.harness.bench import Bench, Check, Report, Result, interleave, median, spread
from understudy_bench.harness.progress import Progress
from understudy_bench.report.table import cell, render

numbers = st.lists(st.floats(-1e9, 1e9), min_size=1)


def report_of(rows: Sequence[harness.Row], checks: Sequence[Check] = (), *, quick: bool = False) -> Report:
    bench = Bench("fake", "what it measures", lambda quick, progress: Result(rows, checks))
    with Progress("fake", Console(file=io.StringIO())) as progress:
        return harness.run(bench, quick=quick, progress=progress)


def shown(report: Report, width: int = 160, *, terminal: bool = False) -> str:
    out = io.StringIO()
    render(report, Console(file=out, width=width, force_terminal=terminal))
    return out.getvalue()


def test_the_document_has_exactly_the_agreed_shape() -> None:
    rows = [{"backend": "ours", "bytes": 1024, "median_ms": 1.5, "spread_ms": [1.0, 2.0]}]
    document = json.loads(harness.to_json(report_of(rows, [Check("speed-up", 2.5, ">= 2", True)], quick=True)))
    assert list(document) == ["bench", "env", "rows", "checks"]
    assert document["bench"] == "fake"
    assert document["rows"] == rows
    assert document["checks"] == [{"name": "speed-up", "value": 2.5, "bar": ">= 2", "ok": True}]
    env = document["env"]
    assert set(env) == {"cores", "platform", "versions", "load", "quick"}
    assert set(env["versions"]) == {"python", "torch", "understudy", "torchft"}
    assert env["versions"]["python"] == platform.python_version()
    assert env["cores"] >= 1
    assert env["quick"] is True
    assert [len(env["load"][when]) for when in ("start", "end")] == [3, 3]


def test_the_document_does_not_name_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "a-secret-host")
    real = platform.uname()
    monkeypatch.setattr(platform, "uname", lambda: real._replace(node="a-secret-host"))
    assert b"a-secret-host" not in harness.to_json(report_of([]))


def test_numbers_that_json_does_not_know_are_written_in_a_way_it_does() -> None:
    row = {
        "nan": float("nan"),
        "inf": float("inf"),
        "f32": np.float32(0.5),
        "f64": np.float64(0.25),
        "i64": np.int64(7),
    }
    document = json.loads(harness.to_json(report_of([row], [Check("all", 1, "== 1", bool(np.bool_(True)))])))
    assert document["rows"] == [{"nan": None, "inf": None, "f32": 0.5, "f64": 0.25, "i64": 7}]


def test_a_list_of_numbers_is_one_line() -> None:
    row = {"share": [1.0, float("nan"), -2.5e-7], "names": ["a, 1", "b"], "text": "[1,\n 2]", "none": []}
    text = harness.to_json(report_of([row]))
    assert b'"share": [1.0, null, -2.5e-7]' in text
    assert json.loads(text)["rows"] == [{**row, "share": [1.0, None, -2.5e-7]}]


def test_a_value_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(NotImplementedError, match="a row or check holds a object"):
        harness.to_json(report_of([{"what": object()}]))


def test_a_report_is_ok_when_every_check_is() -> None:
    good, bad = Check("good", 1, ">= 1", True), Check("bad", 0, ">= 1", False)
    assert report_of([], []).ok
    assert report_of([], [good]).ok
    assert not report_of([], [good, bad]).ok


@given(numbers)
def test_the_spread_holds_the_median_and_lies_within_the_values(values: list[float]) -> None:
    low, high = spread(values)
    middle = median(values)
    slack = 1e-6
    assert min(values) - slack <= low <= middle + slack
    assert middle - slack <= high <= max(values) + slack


def test_spread_and_median_of_known_values() -> None:
    assert spread(range(11)) == [1.0, 9.0]
    assert spread([3.0]) == [3.0, 3.0]
    assert spread([0.0, 1.0], 0.25, 0.75) == [0.25, 0.75]
    assert median([3.0, 1.0, 2.0]) == 2.0


def test_nothing_measured_has_neither_spread_nor_median() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        spread([])
    with pytest.raises(statistics.StatisticsError):
        median([])


def test_interleave_gives_each_one_turn_per_round_and_none_always_the_first() -> None:
    turns = list(interleave(["a", "b", "c"], 3))
    assert turns == [(0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "c"), (1, "a"), (2, "c"), (2, "a"), (2, "b")]


def test_interleave_of_none_is_empty() -> None:
    assert list(interleave([], 3)) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (1234567, "1,234,567"),
        (1234567.8, "1,234,568"),
        (12.34567, "12.35"),
        (0.5, "0.5"),
        (0.0, "0"),
        (0.000012345, "1.234e-05"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ([1.23456, 2000.0], "1.235 .. 2,000"),
        ("ring", "ring"),
    ],
)
def test_cells_have_sensible_digits(value: object, text: str) -> None:
    assert cell(value) == text


def test_the_columns_are_the_keys_of_all_rows() -> None:
    text = shown(report_of([{"size": 1, "ours": 2.0}, {"size": 3, "theirs": 4.0}]))
    header = next(line for line in text.splitlines() if "size" in line)
    assert header.index("size") < header.index("ours") < header.index("theirs")


def test_verdicts_are_words() -> None:
    text = shown(report_of([], [Check("fast", 3.0, ">= 2", True), Check("small", 9, "<= 5", False)]))
    assert "ok" in next(line for line in text.splitlines() if "fast" in line)
    assert "FAIL" in next(line for line in text.splitlines() if "small" in line)
    assert "\x1b" not in text


def test_colour_is_for_terminals() -> None:
    assert "\x1b[" in shown(report_of([], [Check("fast", 3.0, ">= 2", True)]), terminal=True)


def test_brackets_in_values_are_shown_as_they_are() -> None:
    assert "[red]x[/red]" in shown(report_of([{"label": "[red]x[/red]"}]))


def test_a_narrow_table_loses_no_character() -> None:
    text = shown(report_of([{"label": "abcdefghij" * 5}]), width=30)
    assert "".join(char for char in text if char in "abcdefghij").count("abcdefghij") >= 5
    assert "…" not in text


def test_without_a_terminal_lines_come_at_most_every_few_seconds() -> None:
    now = 0.0
    out = io.StringIO()
    with Progress("fake", Console(file=out), clock=lambda: now, seconds_between_lines=5) as progress:
        progress.total = 20
        for number in range(1, 13):
            now = float(number)
            progress.advance(f"unit {number}")
    assert out.getvalue().splitlines() == [
        "fake: 1/20, 0:01 elapsed, 0:19 left, unit 1",
        "fake: 6/20, 0:06 elapsed, 0:14 left, unit 6",
        "fake: 11/20, 0:11 elapsed, 0:09 left, unit 11",
    ]


def test_progress_without_a_total_still_counts() -> None:
    out = io.StringIO()
    with Progress("fake", Console(file=out), clock=lambda: 0.0) as progress:
        progress.advance("[bold]unit")
    assert out.getvalue() == "fake: 1 done, 0:00 elapsed, [bold]unit\n"


def test_on_a_terminal_progress_is_a_bar_that_goes_away() -> None:
    out = io.StringIO()
    with Progress("fake", Console(file=out, force_terminal=True, width=120)) as progress:
        progress.total = 2
        progress.advance("first [1]")
        progress.advance("second")
    text = out.getvalue()
    assert "2/2" in text
    assert text.rstrip("\x1b[?25h").endswith("\x1b[2K")
