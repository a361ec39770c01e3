"""Never more than two copies of a role, and never without the one that everybody has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.state.copy import Copy
from understudy.worker.transfer.shelf import Shelf


def copy_of(step: int) -> Copy:
    return Copy(step, (), [], b"", {}, ())


def test_memory_goes_round() -> None:
    shelf = Shelf()
    assert shelf.spare(-1) is None
    first = copy_of(0)
    shelf.put(first)
    assert shelf.spare(0) is None, "the settled one is not overwritten"
    shelf.put(copy_of(5))
    shelf.drop(before=5)
    assert set(shelf.whole) == {5}
    assert shelf.spare(5) is first


def test_of_two_the_one_that_is_not_settled_goes() -> None:
    shelf = Shelf()
    shelf.put(copy_of(3))
    shelf.put(copy_of(6))
    gone = shelf.spare(3)
    assert gone is not None
    assert gone.step == 6
    assert set(shelf.whole) == {3}


def test_what_is_lent_is_never_overwritten() -> None:
    shelf = Shelf()
    shelf.put(copy_of(3))
    lent = shelf.lend(3)
    shelf.put(copy_of(6))
    shelf.drop(before=6)
    assert shelf.spare(6) is None
    assert lent.step == 3
    with pytest.raises(KeyError):
        shelf.lend(3)


def test_a_second_copy_of_a_step_takes_the_place_of_the_first() -> None:
    shelf = Shelf()
    first, second = copy_of(3), copy_of(3)
    shelf.put(first)
    shelf.put(second)
    assert shelf.whole == {3: second}
    assert shelf.spare(3) is first


def test_memory_for_the_next_one_can_be_freed() -> None:
    shelf = Shelf()
    shelf.put(copy_of(3))
    shelf.drop(after=2)
    shelf.shed()
    assert shelf.spare(-1) is None


@given(st.lists(st.tuples(st.sampled_from(["begin", "finish", "settle", "back"]), st.integers(0, 3))))
def test_any_order_of_events(events: list[tuple[str, int]]) -> None:
    """A new copy may be given up at any time, a whole one settled, and everybody may go back to what is settled."""
    shelf, settled = Shelf(), -1
    under_way: list[Copy] = []
    for now, (what, number) in enumerate(events):
        if what == "begin":
            spare = shelf.spare(settled)
            assert spare is None or spare not in shelf.whole.values()
            under_way = [copy_of(now)]
        elif what == "finish" and under_way:
            shelf.put(under_way.pop())
        elif what == "settle" and shelf.whole:
            settled = sorted(shelf.whole)[number % len(shelf.whole)]
            shelf.drop(before=settled)
        elif what == "back" and settled >= 0:
            shelf.drop(after=settled)
            under_way = []
        assert len(shelf.whole) + len(under_way) <= 2
        assert settled < 0 or settled in shelf.whole
