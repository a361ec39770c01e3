"""Cells with the same state in different racks, with as few moves as an exhaustive search finds."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.steward.rebalance import ImpossibleMoves, spread_over_racks, transitions


def test_two_copies_in_one_rack_are_parted() -> None:
    where = {0: "m0", 1: "m1"}
    racks = {"m0": "r1", "m1": "r1", "m2": "r2"}
    moves = spread_over_racks(where, [(0, 1)], racks, ["m2"])
    assert len(moves) == 1
    assert set(moves.values()) == {"m2"}


def test_what_is_spread_stays() -> None:
    racks = {"m0": "r1", "m1": "r2", "m2": "r3"}
    assert spread_over_racks({0: "m0", 1: "m1"}, [(0, 1)], racks, ["m2"]) == {}


def test_two_kinds_trade_places() -> None:
    """Both copies of one kind are in one rack, those of the other in the other: no standby stands anywhere else."""
    where = {0: "m0", 1: "m1", 2: "m2", 3: "m3"}
    racks = {"m0": "r1", "m1": "r1", "m2": "r2", "m3": "r2", "m4": "r1"}
    kinds = [(0, 1), (2, 3)]
    moves = spread_over_racks(where, kinds, racks, ["m4"])
    after = {cell: racks[machine] for cell, machine in {**where, **moves}.items()}
    assert [sorted(after[cell] for cell in kind) for kind in kinds] == [["r1", "r2"], ["r1", "r2"]]
    assert len(moves) == 2
    assert transitions(where, moves, ["m4"])


def test_a_machine_without_a_known_rack_is_refused() -> None:
    with pytest.raises(ImpossibleMoves, match="the rack of m1 is not known; label it"):
        spread_over_racks({0: "m0", 1: "m1"}, [(0, 1)], {"m0": "r1", "m2": "r2"}, ["m2"])


def test_a_standby_without_a_label_is_not_used() -> None:
    assert spread_over_racks({0: "m0", 1: "m1"}, [(0, 1)], {"m0": "r1", "m1": "r1"}, ["m2"]) == {}


def cost(place: dict[int, str], kinds: list[tuple[int, ...]]) -> list[int]:
    """How often a rack holds two of a kind, three, …, the most crowded first."""
    counts = [Counter(place[cell] for cell in kind) for kind in kinds]
    return [sum(n > crowd for count in counts for n in count.values()) for crowd in range(len(place), 0, -1)]


@st.composite
def stages(draw: st.DrawFn) -> tuple[dict[int, str], list[tuple[int, ...]], dict[str, str], list[str]]:
    cells, free = draw(st.integers(1, 4)), draw(st.integers(0, 2))
    racks = {f"m{number}": draw(st.sampled_from("abc")) for number in range(cells + free)}
    where = {cell: f"m{cell}" for cell in range(cells)}
    cut = draw(st.integers(0, cells))
    kinds = [kind for kind in (tuple(range(cut)), tuple(range(cut, cells))) if kind]
    return where, kinds, racks, [f"m{number}" for number in range(cells, cells + free)]


@settings(deadline=None, max_examples=60)
@given(stages())
def test_as_spread_as_can_be_with_the_fewest_moves(
    case: tuple[dict[int, str], list[tuple[int, ...]], dict[str, str], list[str]],
) -> None:
    where, kinds, racks, free = case
    moves = spread_over_racks(where, kinds, racks, free)
    every = [dict(zip(where, names, strict=True)) for names in permutations([*where.values(), *free], len(where))]
    rated = [
        (cost({c: racks[m] for c, m in option.items()}, kinds), sum(option[c] != where[c] for c in where))
        for option in every
    ]
    ours = {**where, **moves}
    assert len(set(ours.values())) == len(ours)
    assert (cost({c: racks[m] for c, m in ours.items()}, kinds), len(moves)) == min(rated)
