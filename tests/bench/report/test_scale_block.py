"""The extrapolation from the measured sizes to a larger one."""

from __future__ import annotations

import pytest

from tests.bench.made import everything, report
from understudy_bench.report.folder import Results
from understudy_bench.report.scale_block import Delay, extrapolated, extrapolation, ordered, points, table_of


def test_what_grows_in_proportion_does_so_further() -> None:
    assert extrapolated({256: 1.0, 1024: 4.0}, 2048) == pytest.approx(8.0)


def test_what_grows_faster_goes_on_like_that_and_what_grows_slower_is_taken_for_proportional() -> None:
    assert extrapolated({256: 1.0, 1024: 16.0}, 2048) == pytest.approx(64.0)
    assert extrapolated({256: 4.0, 1024: 4.0}, 2048) == pytest.approx(8.0)


def test_small_sizes_do_not_say_how_something_grows() -> None:
    assert extrapolated({64: 100.0, 256: 1.0, 1024: 4.0}, 2048) == pytest.approx(8.0)
    assert extrapolated({64: 1.0}, 128) == pytest.approx(2.0)


def test_points_come_from_few_machines_to_many() -> None:
    assert points(everything(), "failure", "decided_s") == {64: 0.128, 256: 0.512, 1024: 2.048}
    assert points(everything(), "", "cpu_us_per_beat") == {64: 50.0, 256: 50.0, 1024: 50.0}


def test_the_table_says_with_which_power_a_row_grows() -> None:
    text = table_of(everything())
    assert "| machines | 64 | 256 | 1,024 | power, from 256 |" in text
    assert "| a machine fails: until the last one has the order to continue | 0.13 s | 0.51 s | 2.0 s | 1.00 |" in text
    assert "| … messages of each machine | 9.5 | 9.5 | 9.5 | 0.00 |" in text
    assert "planned: " not in text
    assert "`understudy bench scale`: medians" in text


def test_what_dominates_comes_first() -> None:
    assert [part.words for part in ordered([Delay("a", 1.0), Delay("b", 3.0), Delay("c", 2.0)])] == ["b", "c", "a"]


def test_a_hundred_thousand_gpus() -> None:
    lines = extrapolation(everything()).splitlines()
    assert lines[0].startswith("| one of 12,480 machines fails, every 30.5 min |")
    assert lines[2] == "| all machines report and get the order to continue, extrapolated | 25.0 s | 1.4 % |"
    assert lines[3].startswith("| a standby takes over, as published for 1,024 GPUs | 20.0 s |")
    assert "computes for 12.5 s of it. 24,960 heartbeats a second would take 1.2 of a core" in lines[-1]
    assert lines[-1].endswith("It would hold 1.4 GB.")


def test_without_a_result_there_is_nothing() -> None:
    assert table_of(Results({})) == extrapolation(Results({})) == ""
    changes = [{"part": "changes", "what": "planned", "machines": 64, "cpu_s": 1.0}]
    assert extrapolation(Results({"scale": report("scale", changes)})) == ""
