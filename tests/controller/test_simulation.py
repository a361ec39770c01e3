"""Thousands of seeds of the whole control protocol: see simulation/ for what is simulated and what must hold."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.controller.simulation import run

CHUNK = 500
USUAL, ALL = 2_000, 10_000
CHUNKS = [pytest.param(first, marks=[] if first < USUAL else pytest.mark.long) for first in range(0, ALL, CHUNK)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", CHUNKS)
def test_seeds(first: int) -> None:
    ends: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        try:
            world = run(seed)
        except Exception as error:
            error.add_note(f"run it again with: python -m tests.controller.simulation {seed}")
            raise
        assert world.controller.director is not None
        ends[world.controller.director.job.status] += 1
    assert ends["finished"] > 0.6 * CHUNK


def test_a_seed_gives_the_same_story(capsys: pytest.CaptureFixture[str]) -> None:
    stories = []
    for _ in range(2):
        run(3, verbose=True)
        stories.append(capsys.readouterr().out)
    assert stories[0] == stories[1]
    assert "Resume" in stories[0]
