"""Golomb rulers by their defining property; the short ones also against an exhaustive search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest

from understudy.masking.rulers import (
    SHORTEST,
    is_prime,
    is_ruler_on,
    largest_on,
    most_marks,
    ruler_on,
    ruzsa,
    short_ruler,
    wide_ruler_on,
)

LENGTHS = (0, 1, 3, 6, 11, 17, 25, 34, 44, 55, 72, 85, 106, 127, 151, 177, 199, 216, 246, 283, 333, 356, 372, 425)
"""The first terms of OEIS A003022, with 0 for a single mark."""


def is_ruler(marks: Sequence[int]) -> bool:
    """Whether the differences of all pairs are distinct."""
    gaps = [b - a for i, a in enumerate(marks) for b in marks[i + 1 :]]
    return all(gap > 0 for gap in gaps) and len(set(gaps)) == len(gaps)


def test_the_table_is_of_rulers_with_the_known_lengths() -> None:
    assert sorted(SHORTEST) == list(range(1, len(LENGTHS) + 1))
    for marks, ruler in SHORTEST.items():
        assert ruler[0] == 0
        assert ruler[-1] == LENGTHS[marks - 1]
        assert is_ruler(ruler)


@pytest.mark.parametrize("marks", range(2, 7))
def test_no_shorter_ruler_exists(marks: int) -> None:
    shorter = SHORTEST[marks][-1] - 1
    assert not any(
        is_ruler((0, *inner, length))
        for length in range(marks - 1, shorter + 1)
        for inner in combinations(range(1, length), marks - 2)
    )


@pytest.mark.parametrize("marks", [25, 33, 50, 80])
def test_longer_rulers_are_rulers_and_not_much_longer_than_known_ones(marks: int) -> None:
    ruler = short_ruler(marks)
    assert len(ruler) == marks
    assert ruler[0] == 0
    assert is_ruler(ruler)
    assert ruler[-1] < marks * marks


@pytest.mark.parametrize("prime", [3, 5, 7, 11, 31])
def test_the_construction_holds_on_its_ring(prime: int) -> None:
    assert is_prime(prime)
    marks = ruzsa(prime)
    assert len(marks) == prime - 1
    assert is_ruler_on(marks, prime * (prime - 1))
    assert ruler_on(prime * (prime - 1), prime - 1) is not None


@pytest.mark.parametrize("ring", [*range(1, 40), 48, 57, 64, 100, 200, 1000])
def test_on_a_ring_every_ruler_has_the_property(ring: int) -> None:
    for marks in range(1, largest_on(ring) + 1):
        ruler = ruler_on(ring, marks)
        if ruler is not None:
            assert len(ruler) == marks
            assert ruler[0] == 0
            assert is_ruler_on(ruler, ring)
    assert ruler_on(ring, most_marks(ring) + 1) is None


@pytest.mark.parametrize("ring", range(1, 24))
def test_on_a_small_ring_none_means_that_there_is_none(ring: int) -> None:
    most = largest_on(ring)
    if most < most_marks(ring):
        assert not any(is_ruler_on((0, *marks), ring) for marks in combinations(range(1, ring), most))


@pytest.mark.parametrize("marks", range(2, 12))
def test_twice_the_length_and_one_more_is_always_room_enough(marks: int) -> None:
    ruler = SHORTEST[marks]
    assert is_ruler_on(ruler, 2 * ruler[-1] + 1)
    assert not is_ruler_on(ruler, 2 * ruler[-1])  # the longest difference is its own complement


def test_what_a_large_job_needs_is_there() -> None:
    assert ruler_on(10_000, 20) == SHORTEST[20]
    assert largest_on(10_000) > 60


def test_a_ruler_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one mark"):
        short_ruler(0)


@pytest.mark.parametrize(("ring", "marks"), [(64, 4), (200, 8), (1000, 9), (1000, 20), (10_000, 20)])
def test_wide_rulers_reach_round_the_ring(ring: int, marks: int) -> None:
    ruler = wide_ruler_on(ring, marks)
    assert ruler is not None
    assert len(ruler) == marks
    assert ruler[0] == 0
    assert is_ruler_on(ruler, ring)
    assert max(b - a for a, b in pairwise([*ruler, ring])) < 0.7 * ring


def test_a_ring_that_is_small_or_full_has_no_wide_ruler() -> None:
    assert wide_ruler_on(63, 3) is None
    assert wide_ruler_on(91, 10) is None
    assert ruler_on(91, 10) is not None
