"""A slow link is told from a late peer."""

from __future__ import annotations

from understudy.protocol.samples import Sample, Traffic
from understudy.protocol.settings import StragglerSettings
from understudy.steward.links import LinkDetector
from understudy.steward.stragglers import StragglerNews

MACHINES = {role: f"m{role}" for role in range(3)}
BULK = 100_000_000


def ring(step: int, *, slow: int | None = None, backed: float = 0.0, starved: float = 0.0) -> list[Sample]:
    """Samples of workers in a ring; on the link of `slow`, one or both ends wait."""
    samples = []
    for role in range(3):
        after, before = (role + 1) % 3, (role - 1) % 3
        traffic = (
            Traffic(f"w{after}", BULK, 0.05, backed if role == slow else 0.001, 0.0),
            Traffic(f"w{before}", 0, 0.0, 0.0, starved if before == slow else 0.001, BULK),
        )
        samples.append(Sample(f"w{role}", role, step, 0.5, (), 0.5, traffic=traffic))
    return samples


def watched(count: int, **how: float | int) -> list[StragglerNews]:
    detector = LinkDetector(StragglerSettings())
    return [news for step in range(count) for news in detector.step(ring(step, **how), MACHINES)]  # type: ignore[arg-type]


def test_if_both_ends_wait_the_link_is_slow() -> None:
    (news,) = watched(100, slow=1, backed=0.45, starved=0.5)
    assert news.finding.part == "link"
    assert (news.finding.role, news.finding.machine) == (1, "m1")
    assert news.finding.reason == "link m1 → m2 0.2 GB/s, others 2 GB/s, for 20 steps"


def test_if_only_one_end_waits_the_link_is_not_slow() -> None:
    assert not watched(100, slow=1, backed=0.45)
    assert not watched(100, slow=1, starved=0.5)


def test_what_hardly_delays_a_step_does_not_matter() -> None:
    assert not watched(100, slow=1, backed=0.06, starved=0.06)


def test_an_alarm_ends_after_a_window_without_waits() -> None:
    detector = LinkDetector(StragglerSettings())
    told = [news for step in range(30) for news in detector.step(ring(step, slow=1, backed=0.4, starved=0.4), MACHINES)]
    told += [news for step in range(30, 100) for news in detector.step(ring(step), MACHINES)]
    assert [news.over for news in told] == [False, True]
    assert not detector.told


def test_the_machine_with_the_most_slow_links_is_named() -> None:
    detector = LinkDetector(StragglerSettings())
    for step in range(60):
        ways = {(1, 2): 0.4, (2, 0): 0.4, (0, 1): 0.001}
        samples = []
        for role in range(3):
            out = [Traffic(f"w{b}", BULK, 0.05, held) for (a, b), held in ways.items() if a == role]
            back = [Traffic(f"w{a}", 0, 0.0, 0.0, held, BULK) for (a, b), held in ways.items() if b == role]
            samples.append(Sample(f"w{role}", role, step, 0.5, (), 0.5, traffic=(*out, *back)))
        detector.step(samples, MACHINES)
    assert [finding.machine for finding in detector.told] == ["m2", "m2"]


def test_a_worker_that_has_left_is_forgotten() -> None:
    detector = LinkDetector(StragglerSettings())
    for step in range(30):
        detector.step(ring(step, slow=1, backed=0.4, starved=0.4), MACHINES)
    assert detector.told
    detector.keep({0: "w0", 1: "w7", 2: "w2"})
    assert not detector.told
