"""Transitions from one placement of roles to another: as few as an exhaustive search finds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.steward.rebalance import ImpossibleMoves, check, transitions

HERE = {0: "m0", 1: "m1", 2: "m2"}


def test_standbys_take_all_places_at_once() -> None:
    assert transitions(HERE, {0: "m4", 2: "m5"}, ["m4", "m5"]) == [{0: "m4", 2: "m5"}]


def test_what_is_there_already_needs_no_move() -> None:
    assert transitions(HERE, {0: "m0"}, []) == []


def test_a_chain_goes_one_after_the_other() -> None:
    assert transitions(HERE, {0: "m4", 1: "m0", 2: "m1"}, ["m4"]) == [{0: "m4"}, {1: "m0"}, {2: "m1"}]


def test_a_chain_is_cut_if_standbys_are_free() -> None:
    plan = transitions(HERE, {0: "m4", 1: "m0", 2: "m1"}, ["m4", "m5"])
    assert plan == [{0: "m4", 1: "m5"}, {1: "m0", 2: "m1"}]


def test_two_machines_trade_places_by_way_of_a_standby() -> None:
    assert transitions(HERE, {0: "m1", 1: "m0"}, ["m4"]) == [{0: "m4"}, {1: "m0"}, {0: "m1"}]
    assert len(transitions(HERE, {0: "m1", 1: "m0"}, ["m4", "m5"])) == 2


@pytest.mark.parametrize(
    ("wanted", "free", "says"),
    [
        ({0: "m1"}, ["m4"], "m1 has roles and is not freed by this plan"),
        ({0: "m9"}, ["m4"], "m9 is neither a standby nor freed by this plan; standbys: m4"),
        ({0: "m4", 1: "m4"}, ["m4"], "m4 is the target of two moves"),
        ({0: "m0", 1: "m0"}, ["m4"], "m0 is the target of two moves"),
        ({0: "m1", 1: "m0"}, [], "add one with: understudy standby add"),
    ],
)
def test_what_cannot_be_done_is_refused(wanted: dict[int, str], free: list[str], says: str) -> None:
    with pytest.raises(ImpossibleMoves, match=says):
        check(HERE, wanted, free)


@st.composite
def plans(draw: st.DrawFn) -> tuple[dict[int, str], dict[int, str], list[str]]:
    cells, free = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    where = {cell: f"m{cell}" for cell in range(cells)}
    standbys = [f"s{number}" for number in range(free)]
    targets = draw(st.permutations([*where.values(), *standbys]))
    return where, dict(zip(where, targets, strict=False)), standbys


def following(at: tuple[str, ...], blank: list[str], place: int = 0) -> Iterator[tuple[str, ...]]:
    """Everything that one transition can make of this."""
    if place == len(at):
        yield at
        return
    yield from following(at, blank, place + 1)
    for machine in blank:
        others = [other for other in blank if other != machine]
        yield from following((*at[:place], machine, *at[place + 1 :]), others, place + 1)


def fewest(where: dict[int, str], wanted: dict[int, str], free: list[str]) -> int:
    cells = [cell for cell in where if where[cell] != wanted[cell]]
    goal, seen = tuple(wanted[cell] for cell in cells), {tuple(where[cell] for cell in cells)}
    machines, new, count = {*free, *next(iter(seen))}, set(seen), 0
    while goal not in new:
        new = {after for at in new for after in following(at, sorted(machines - set(at)))} - seen
        seen |= new
        count += 1
    return count


@settings(deadline=None, max_examples=60)
@given(plans())
def test_no_other_way_takes_fewer_transitions(plan: tuple[dict[int, str], dict[int, str], list[str]]) -> None:
    where, wanted, free = plan
    at, blank = dict(where), set(free)
    found = transitions(where, wanted, free)
    for moves in found:
        assert set(moves.values()) <= blank
        assert len(set(moves.values())) == len(moves)
        blank = (blank | {at[cell] for cell in moves}) - set(moves.values())
        at.update(moves)
    assert at == wanted
    assert len(found) == fewest(where, wanted, free)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 30), st.integers(1, 8), st.randoms(use_true_random=False))
def test_any_number_of_machines(cells: int, free: int, random: object) -> None:
    where = {cell: f"m{cell}" for cell in range(cells)}
    standbys = [f"s{number}" for number in range(free)]
    names = [*where.values(), *standbys]
    random.shuffle(names)  # type: ignore[attr-defined]
    at = dict(where)
    for moves in transitions(where, dict(zip(where, names, strict=False)), standbys):
        at.update(moves)
    assert at == dict(zip(where, names, strict=False))
