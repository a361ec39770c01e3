"""Slow workers are found soon, with the right part; other workers are not, with any noise."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.steward.noise import USUAL, Noise, SimulatedWorkers, Slow, alarms
from understudy.protocol.samples import PARTS, Sample
from understudy.protocol.settings import StragglerSettings
from understudy.steward.stragglers import Straggler, StragglerDetector, StragglerNews, seconds

ALONE: dict[int, tuple[int, ...]] = {role: (role,) for role in range(8)}
PAIRS: dict[int, tuple[int, ...]] = {role: (role // 2 * 2, role // 2 * 2 + 1) for role in range(8)}
QUIET = Noise(spread=0.01, spikes=0.02)
LOUD = Noise(spread=0.10, spikes=0.10, common=1.0)
CROWDS = {
    "two": SimulatedWorkers(2),
    "three": SimulatedWorkers(3),
    "eight": SimulatedWorkers(8),
    "a pipeline": SimulatedWorkers(4, classes=ALONE),
    "pairs": SimulatedWorkers(6, classes=PAIRS),
    "unknown parts": SimulatedWorkers(4, whole=True),
    "loud": SimulatedWorkers(4, LOUD),
    "spikes": SimulatedWorkers(4, Noise(spread=0.03, spikes=0.25)),
    "drift": SimulatedWorkers(4, Noise(drift=5.0)),
}


def _false_alarms(workers: SimulatedWorkers, seeds: range) -> list[int]:
    return [seed for seed in seeds if alarms(workers.watched(seed, 500))]


@pytest.mark.parametrize("name", CROWDS)
def test_noise_alone_makes_no_straggler(name: str) -> None:
    assert not _false_alarms(CROWDS[name], range(3))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CROWDS)
def test_noise_alone_makes_no_straggler_in_hundreds_of_runs(name: str) -> None:
    wrong = _false_alarms(CROWDS[name], range(1000, 1500))
    assert len(wrong) <= 1, wrong


def _delays(workers: SimulatedWorkers, seeds: range, since: int = 150) -> list[int]:
    """In how many steps each was found; never before."""
    found = []
    for seed in seeds:
        told = alarms(workers.watched(seed, since + 150))
        assert all(step >= since for step, _ in told)
        assert all(news.finding.role == 1 for _, news in told)
        found.append(told[0][0] - since + 1 if told else 1 << 20)
    return sorted(found)


@pytest.mark.parametrize("roles", [3, 4, 8])
def test_a_fifth_slower_is_found_within_a_window(roles: int) -> None:
    delays = _delays(SimulatedWorkers(roles, Noise(spread=0.02), (Slow(1, 1.2),)), range(5))
    assert median(delays) <= 20
    assert delays[-1] <= 40


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("factor", "half", "most"), [(1.2, 20, 22), (1.12, 24, 60)])
def test_how_soon_the_slow_are_found(factor: float, half: int, most: int) -> None:
    delays = _delays(SimulatedWorkers(4, Noise(spread=0.02), (Slow(1, factor),)), range(200))
    assert delays[100] <= half
    assert delays[180] <= most


def test_in_a_pair_the_slow_one_is_found() -> None:
    delays = _delays(SimulatedWorkers(2, QUIET, (Slow(1, 1.25),)), range(5))
    assert delays[-1] <= 40


def test_in_a_pipeline_a_worker_that_becomes_slow_is_found_by_its_own_past() -> None:
    workers = SimulatedWorkers(4, QUIET, (Slow(1, 1.25),), classes=ALONE)
    ((step, news),) = alarms(workers.watched(1, 250))
    assert news.finding.role == 1
    assert step < 150 + 25
    assert "its own past" in news.finding.reason


def test_a_worker_that_is_slow_from_the_beginning_is_found_among_three_only() -> None:
    slow = (Slow(1, 1.3, since=0),)
    assert [news.finding.role for _, news in alarms(SimulatedWorkers(3, QUIET, slow).watched(1, 60))] == [1]
    assert not alarms(SimulatedWorkers(3, QUIET, slow, classes=ALONE).watched(1, 300))


def test_two_slow_ones_of_six_are_both_found() -> None:
    told = alarms(SimulatedWorkers(6, QUIET, (Slow(1, 1.3), Slow(4, 1.3))).watched(1, 250))
    assert {news.finding.role for _, news in told} == {1, 4}


@pytest.mark.parametrize("part", PARTS)
def test_the_part_that_is_slow_is_named(part: str) -> None:
    factor = 1 + 0.02 / USUAL[PARTS.index(part)]  # 20 ms of a step of 100
    told = alarms(SimulatedWorkers(4, QUIET, (Slow(2, factor, (part,)),)).watched(1, 200))
    assert [(news.finding.role, news.finding.part) for _, news in told] == [(2, part)]


def test_a_worker_that_is_slow_in_all_parts_is_slow_in_computing() -> None:
    ((_, news),) = alarms(SimulatedWorkers(4, QUIET, (Slow(2, 1.34),)).watched(1, 250))
    assert news.finding.part == "compute"
    assert news.finding.machine == "m2"
    assert news.finding.ratio == pytest.approx(1.34, abs=0.05)
    assert news.finding.reason.startswith("m2 role 2: compute 1.3")
    assert "x its class for " in news.finding.reason


def _named(slower: tuple[float, float], once: tuple[float, float] | None = None) -> list[tuple[int, str]]:
    """What is told of a worker that becomes so much slower in loading and in computing; in one step, otherwise."""
    detector, told = StragglerDetector(StragglerSettings()), []
    for step in range(60):
        samples = []
        for role in range(3):
            becomes = once if once is not None and step == 33 else slower
            load, compute = becomes if role == 1 and step >= 30 else (1.0, 1.0)
            parts = (0.02 * load, 0.03 * compute, 0.001, 0.001)
            samples.append(Sample(f"w{role}", role, step, sum(parts), parts, 0.0))
        told += detector.step(samples, dict.fromkeys(range(3), (0, 1, 2)), {})
    return [(news.finding.role, news.finding.part) for news in told]


@pytest.mark.parametrize(
    ("slower", "once", "part"),
    [
        ((1.4, 1.4), (1.4, 1.0), "compute"),  # that loading is slow, too, is known earlier
        ((2.5, 1.08), None, "data"),  # a little slower is noise
        ((2.5, 1.0), (1.0, 2.0), "data"),  # the whole was slow all the time, no part of it was
    ],
)
def test_slow_loading_is_told_from_slow_computing(
    slower: tuple[float, float], once: tuple[float, float] | None, part: str
) -> None:
    assert _named(slower, once) == [(1, part)]


def test_without_known_parts_a_slow_worker_is_slow_in_computing() -> None:
    ((_, news),) = alarms(SimulatedWorkers(4, QUIET, (Slow(2, 1.3),), whole=True).watched(1, 250))
    assert news.finding.part == "compute"


def test_a_part_that_hardly_matters_does_not() -> None:
    assert not alarms(SimulatedWorkers(4, QUIET, (Slow(2, 1.4, ("optimizer",)),)).watched(1, 250))


def test_slow_for_a_few_steps_is_not_slow() -> None:
    assert not alarms(SimulatedWorkers(4, QUIET, (Slow(2, 3.0, since=100, until=112),)).watched(1, 250))


def test_a_straggler_is_announced_once_and_again_only_after_a_long_recovery() -> None:
    slow = (
        Slow(2, 1.4, since=50, until=120),
        Slow(2, 1.4, since=125, until=180),  # not fine for long enough in between
        Slow(2, 1.4, since=300, until=400),
    )
    told = SimulatedWorkers(4, QUIET, slow).watched(1, 500)
    assert [(news.over, 50 <= step < 75, 200 <= step < 240, 300 <= step < 325) for step, news in told[:3]] == [
        (False, True, False, False),
        (True, False, True, False),
        (False, False, False, True),
    ]
    assert [news.over for _, news in told] == [False, True, False, True]


def test_another_worker_in_the_role_begins_anew() -> None:
    detector = StragglerDetector(StragglerSettings())
    classes, machines = dict.fromkeys(range(3), (0, 1, 2)), {role: f"m{role}" for role in range(3)}
    for samples in SimulatedWorkers(3, QUIET, (Slow(1, 1.4, since=0),)).steps(1, 60):
        detector.step(samples, classes, machines)
    assert [finding.role for finding in detector.told] == [1]
    detector.keep({0: "w0", 1: "w9", 2: "w2"})
    assert not detector.told


def test_odd_steps_and_those_without_a_clock_do_not_count() -> None:
    detector = StragglerDetector(StragglerSettings(window=5))
    for step in range(50):
        samples = [Sample(f"w{r}", r, step, 1.0 + r, (), 0.0, odd="repeated") for r in range(3)]
        samples += [Sample(f"w{r}", r, step, 1.0 + r) for r in range(3, 6)]
        assert not detector.step(samples, dict.fromkeys(range(6), tuple(range(6))), {})


def test_workers_are_compared_by_the_time_of_one_micro_shard() -> None:
    twice = Sample("w0", 0, 1, 2.1, (0.2, 0.8, 1.0, 0.1), 0.0, micro=2)
    once = Sample("w1", 1, 1, 1.1, (0.1, 0.4, 0.5, 0.1), 0.0, micro=1)
    assert seconds(twice) == pytest.approx(seconds(once))


@given(st.lists(st.tuples(st.floats(1e-6, 10), st.floats(1e-6, 10), st.floats(1e-6, 10)), min_size=1, max_size=60))
def test_any_history_is_borne(history: list[tuple[float, float, float]]) -> None:
    """Told and over alternate for each role, whatever comes."""
    detector, state = StragglerDetector(StragglerSettings(window=5)), dict.fromkeys(range(3), False)
    for step, times in enumerate(history):
        samples = [Sample(f"w{role}", role, step, value, (), 0.0) for role, value in enumerate(times)]
        for news in detector.step(samples, dict.fromkeys(range(3), (0, 1, 2)), {}):
            assert isinstance(news, StragglerNews)
            assert isinstance(news.finding, Straggler)
            assert state[news.finding.role] is news.over
            state[news.finding.role] = not news.over
    assert sorted(finding.role for finding in detector.told) == [role for role, told in state.items() if told]
