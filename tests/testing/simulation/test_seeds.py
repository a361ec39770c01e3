"""Thousands of seeds of whole jobs: the real worker runtime and the real controller, with simulated surroundings."""

from __future__ import annotations

from collections import Counter

import pytest

from understudy.testing.simulation import simulate_seed

CHUNK = 250
USUAL, ALL = 2_000, 10_000
CHUNKS = [pytest.param(first, marks=[] if first < USUAL else pytest.mark.long) for first in range(0, ALL, CHUNK)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", CHUNKS)
def test_seeds(first: int) -> None:
    ends: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        state = simulate_seed(seed).controller.state
        assert state is not None
        ends[state.status.value] += 1
    assert ends["finished"] > 0.6 * CHUNK


@pytest.mark.parametrize("seed", [3, 121, 504])
def test_a_seed_gives_the_same_history(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    stories = []
    for _ in range(2):
        simulate_seed(seed, verbose=True)
        stories.append(capsys.readouterr().out)
    assert stories[0] == stories[1]
    assert "Resume" in stories[0]
