from __future__ import annotations

from tests.bench.made import died, everything, replaced, report
from understudy_bench.report.comparison import Comparison, behind, compared, lost_work
from understudy_bench.report.folder import Results


def said(found: list[Comparison]) -> set[tuple[str, str, bool]]:
    return {(each.bench, each.other, each.even) for each in found}


def test_every_comparison_that_is_not_won_is_found() -> None:
    found = behind(everything())
    assert ("replace", "no overlap", False) in said(found)
    assert ("collectives", "gloo", False) in said(found)
    assert not any(each.ahead for each in found)
    won = {("replace", "naive"), ("replace", "restart"), ("rebalance", "restart")}
    assert won <= {(each.bench, each.other) for each in compared(everything())}
    assert not won & {(each.bench, each.other) for each in found}


def test_ours_are_not_compared_with_each_other() -> None:
    rows = [*died("masking", "worker", 0.1), *died("recovery", "worker", 0.01)]
    assert compared(Results({"mask": report("mask", rows)})) == []


def test_an_even_comparison_is_listed_but_not_behind() -> None:
    results = Results(
        {"failure": report("failure", [*died("understudy", "worker", 0.2), *died("torchft", "worker", 0.9)])}
    )
    found = behind(results)
    assert {each.what for each in found} == {"a worker dies: a usual step", "a worker dies: steps without effect"}
    assert all(each.even for each in found)


def test_a_slow_worker_is_compared_with_a_restart_and_with_doing_nothing() -> None:
    found = [each for each in compared(everything()) if each.bench == "straggler"]
    assert [(each.other, each.other_value, each.ahead) for each in found] == [
        ("restart", 0.9982, False),
        ("no action", 0.84, True),
    ]


def test_more_may_be_better() -> None:
    assert Comparison("mask", "speed", "masking", "torchft", 0.8, 0.75, "", more_is_better=True).ahead
    assert not Comparison("mask", "speed", "masking", "torchft", 0.7, 0.75, "", more_is_better=True).ahead


def test_a_difference_smaller_than_between_runs_is_even() -> None:
    for ours, even, ahead in ((0.97, False, True), (0.985, True, False), (1.015, True, False), (1.03, False, False)):
        less = Comparison("collectives", "time", "understudy", "gloo", ours, 1.0, "s")
        more = Comparison("mask", "speed", "masking", "torchft", 2 - ours, 1.0, "", more_is_better=True)
        assert (less.even, less.ahead) == (more.even, more.ahead) == (even, ahead)
    gained = Comparison("mask", "the survivors stall", "masking", "torchft", -0.1, 1.0, "s")
    assert gained.ahead


def test_a_result_of_which_half_is_missing_is_compared_as_far_as_it_goes() -> None:
    assert compared(Results({"replace": report("replace", replaced("restart", 8.0))})) == []
    assert compared(Results({})) == []
    assert lost_work({"repeated": 1}) is None
    assert lost_work({"repeated": 1, "dropped": 2}) == 3.0
