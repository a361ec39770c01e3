"""Fits of failure logs: they find the parameters that the log was drawn from, and say if the evidence is thin."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from understudy.planning.failures import Failures, Repair
from understudy.planning.inputs.fit import ENOUGH, Fitted, fit, rates, weibull
from understudy.planning.inputs.incidents import EXAMPLE, ExampleCluster, IncidentError, Incidents, example_log, read
from understudy.planning.setting import DAY, HOUR

HEADER = "timestamp,machine,kind,repair,domain"


def log(*rows: str) -> Incidents:
    return read([HEADER, *rows])


def fitted(seed: int, example: ExampleCluster = EXAMPLE) -> Fitted:
    return fit(read(example_log(seed, example).splitlines()), example.machines, window=example.days * DAY)


def test_the_examples_parameters_come_back() -> None:
    """Each interval holds the truth in most of 20 logs, as 95 % intervals do."""
    truth = EXAMPLE.failures
    hits = dict.fromkeys(("mtbf", "together", "maintenance", "straggling", "away"), 0)
    true = {"mtbf": truth.mtbf, "together": truth.together, "maintenance": truth.maintenance}
    true |= {"straggling": truth.straggling, "away": EXAMPLE.repair.mean}
    for seed in range(20):
        found = fitted(seed)
        assert found.domain == EXAMPLE.domain
        assert found.failures.shape == 1.0 or not found.shape.low <= 1 <= found.shape.high
        for name in hits:
            estimate = getattr(found, name)
            assert estimate.low <= estimate.value <= estimate.high
            hits[name] += estimate.low <= true[name] <= estimate.high
    assert min(hits.values()) >= 16, hits
    assert sum(hits.values()) >= 90, hits


def test_the_example_looks_as_it_should() -> None:
    found = fitted(0)
    assert found.repair.spread == "lognormal"
    assert 230 * DAY < found.failures.mtbf < 310 * DAY
    assert example_log(0) == example_log(0) != example_log(1)
    assert all(reason and " nan" not in reason for reason in found.reasons)
    assert "any machine every 3" in found.mtbf.reason


@pytest.mark.parametrize("shape", [0.6, 2.0])
def test_a_weibull_shape_comes_back(shape: float) -> None:
    failures = Failures(10 * DAY, shape=shape)
    found = fitted(3, ExampleCluster(failures, Repair(HOUR, "exponential"), machines=200, domain=1, days=60.0))
    assert found.shape.low <= shape <= found.shape.high
    assert found.failures.shape == found.shape.value
    assert found.mtbf.value == pytest.approx(10 * DAY, rel=0.15)
    assert ("early" if shape < 1 else "wear out") in found.shape.reason


def test_censored_lives_do_not_bend_the_shape() -> None:
    """Without those that have not ended, the shape of exponential lives would look far larger than 1."""
    rng = np.random.default_rng(5)
    lives, limit = rng.standard_exponential(4000), rng.uniform(0, 1, 4000)
    whole = lives < limit
    shape, error = weibull(np.minimum(lives, limit), whole)
    assert abs(shape - 1) < 3 * error
    alone, _ = weibull(lives[whole], np.ones(int(whole.sum()), dtype=bool))
    assert alone > 1.1


def test_few_lives_say_nothing_about_their_distribution() -> None:
    rows = [f"{number * 1000},m{number % 7},gpu,1s," for number in range(ENOUGH)]
    found = fit(log(*rows), 7)
    assert found.failures.shape == 1.0
    assert found.shape.reason.startswith("failures are assumed not to depend on age: the log has only 13 lifetimes")


def test_failures_of_a_domain_within_a_minute_are_one() -> None:
    rows = ["0,a,gpu,1h,r1", "100000,b,gpu,1h,r1", "100030,c,gpu,1h,r1", "100070,d,gpu,1h,r1", "200000,e,gpu,1h,r2"]
    rows += ["200010,f,gpu,1h,r3", "300000,a,gpu,1h,r1", "300020,a,gpu,1h,r1"]
    found = fit(log(*rows), 10, window=400_000.0)
    assert found.together.value == pytest.approx(1 / 6)
    assert found.domain == 3
    assert "6 unplanned failures (1 of them affected 3 machines" in found.mtbf.reason


def test_maintenance_and_stragglers_are_no_failures() -> None:
    rows = ["0,a,gpu,1h,", "100000,b,maintenance,1h,", "200000,c,straggler,20m,", "300000,d,gpu,1h,"]
    found = fit(log(*rows), 4, window=300_000.0)
    up = 4 * 300_000.0 - 3600 - 3600  # of the last repair nothing lies in the window
    assert found.failures.mtbf == pytest.approx(up / 2)
    assert found.failures.maintenance == pytest.approx(up)
    assert found.failures.straggling == pytest.approx(up)
    assert found.failures.noticed == 1200


def test_the_window_is_a_mean_gap_longer_than_what_was_seen() -> None:
    """Of eleven dates in a window, the first and the last are twelve tenths of it apart, in the mean."""
    rows = [f"{number * 100_000},m{number},gpu,0," for number in range(11)]
    assert fit(log(*rows), 11).window == pytest.approx(1_200_000.0)


def test_unknown_repairs_are_assumed() -> None:
    found = fit(log("0,a,gpu,,", "100000,b,gpu,,"), 2)
    assert found.repair == Repair(DAY, "exponential")
    assert "assumed" in found.away.reason


@pytest.mark.parametrize(
    ("repairs", "spread"),
    [("60s 60s 61s 59s", "fixed"), ("4m 8m 12m 17m 24m 34m 52m 100m 10m 14m 20m 29m", "lognormal")],
)
def test_the_spread_of_repairs(repairs: str, spread: str) -> None:
    rows = [f"{100_000 * number},m{number},gpu,{repair}," for number, repair in enumerate(repairs.split())]
    assert fit(log(*rows), 12).repair.spread == spread


def test_a_long_silence_is_told_of_and_chance_is_not() -> None:
    rng = np.random.default_rng(0)
    dates = np.cumsum(rng.exponential(3600, 200))
    rows = [f"{date:.0f},m{number},gpu,1m," for number, date in enumerate(dates)]
    assert not fit(log(*rows), 200).warnings
    late = [f"{date + (20 * DAY if number > 100 else 0):.0f},m{number},gpu,1m," for number, date in enumerate(dates)]
    (said,) = fit(log(*late), 200).warnings
    assert said.startswith("the log has no incident for 20.1 d")
    assert "(line 102)" in said


def test_few_failures_are_told_of() -> None:
    assert any("2 failures are too few" in said for said in fit(log("0,a,gpu,,", "100000,b,gpu,,"), 2).warnings)


@pytest.mark.parametrize(
    ("rows", "machines", "window", "words"),
    [
        (["0,a,gpu,,", "5,b,gpu,,"], 1, None, "the log names 2 machines, but 1 are given"),
        (["0,a,maintenance,,", "99999,b,straggler,,"], 2, None, "no unplanned failure"),
        (["5,a,gpu,,", "5,b,gpu,,"], 2, None, "all incidents have the same date"),
        (["5,a,gpu,,"], 2, None, "all incidents have the same date"),
        (["0,a,gpu,,", "900000,b,gpu,,"], 2, 60.0, "--watched 1 min cannot be right"),
        (["0,a,gpu,,", "900000,b,gpu,,"], 2, float("nan"), "cannot be right"),
        (["0,a,gpu,10d,", "10,a,gpu,10d,"], 1, 10.0, "under repair all the time"),
    ],
)
def test_what_cannot_be_fitted(rows: list[str], machines: int, window: float | None, words: str) -> None:
    with pytest.raises(IncidentError, match=words):
        fit(log(*rows), machines, window=window)


@pytest.mark.parametrize(
    ("count", "low", "high"), [(0, 0, 3.69), (1, 0.0253, 5.572), (10, 4.795, 18.39), (400, 361.8, 441.2)]
)
def test_intervals_of_counts_are_those_in_the_tables(count: int, low: float, high: float) -> None:
    found = rates(count)
    assert found[0] == pytest.approx(low, rel=0.002)
    assert found[1] == pytest.approx(high, rel=0.002)


def test_a_fit_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(fitted(1)), type=Fitted) == fitted(1)
