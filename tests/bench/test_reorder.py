"""The checks of `bench reorder` can fail."""

from __future__ import annotations

from dataclasses import replace
from math import gamma

import pytest

from understudy.masking.placement import blocks, consecutive, golomb
from understudy.masking.stacks import after_failure, stacked
from understudy_bench import registry
from understudy_bench.reorder import draw_endured, fail_until_wipe_out, is_right, matches


def test_the_benchmark_is_registered() -> None:
    assert registry.load("reorder").name == "reorder"


def test_a_matching_is_found_if_there_is_one() -> None:
    placement = consecutive(6, 2)
    assert matches(placement, {0, 1, 2, 3, 4, 5}, 1)
    assert not matches(placement, {0, 2, 4}, 1)
    assert matches(placement, {0, 2, 4}, 2)
    assert not matches(placement, {0, 1, 2, 3}, 6)


def test_a_wrong_state_is_noticed() -> None:
    state = after_failure(stacked(golomb(13, 3)), [4])
    assert is_right(state, is_above=False)
    assert is_right(state, is_above=True)
    where = list(state.assignment.where)
    where[0] = (4,)
    assert not is_right(replace(state, assignment=replace(state.assignment, where=tuple(where))), is_above=False)
    assert not is_right(replace(state, assignment=replace(state.assignment, load=3)), is_above=True)


def test_runs_end_with_a_wipe_out() -> None:
    seen = fail_until_wipe_out(golomb(31, 3), 60, every=1)
    assert len(seen.seconds) >= 60
    assert 0 < seen.checked == len(seen.depths) < len(seen.seconds)
    assert seen.wrong == 0


def test_draws_agree_with_what_is_exact() -> None:
    """Failures until a block of 3 among 20 is gone have the mean 61·B(1 + 1/3, 20)·20."""
    mean, error = draw_endured(blocks(60, 3), 2000)
    exact = 61 * gamma(4 / 3) * gamma(21) / gamma(21 + 1 / 3)
    assert mean == pytest.approx(exact, abs=4 * error)
