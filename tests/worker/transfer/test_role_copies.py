"""The copies of a role: at most two, and always the one that all workers have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.state.copy import Copy
from understudy.worker.transfer.copies import RoleCopies


def copy_of(step: int) -> Copy:
    return Copy(step, (), [], b"", {}, ())


def test_memory_goes_round() -> None:
    copies = RoleCopies()
    assert copies.spare(-1) is None
    first = copy_of(0)
    copies.put(first)
    assert copies.spare(0) is None, "the settled one is not overwritten"
    copies.put(copy_of(5))
    copies.drop(before=5)
    assert set(copies.whole) == {5}
    assert copies.spare(5) is first


def test_of_two_the_one_that_is_not_settled_goes() -> None:
    copies = RoleCopies()
    copies.put(copy_of(3))
    copies.put(copy_of(6))
    gone = copies.spare(3)
    assert gone is not None
    assert gone.step == 6
    assert set(copies.whole) == {3}


def test_what_is_lent_is_never_overwritten() -> None:
    copies = RoleCopies()
    copies.put(copy_of(3))
    lent = copies.lend(3)
    copies.put(copy_of(6))
    copies.drop(before=6)
    assert copies.spare(6) is None
    assert lent.step == 3
    with pytest.raises(KeyError):
        copies.lend(3)


def test_a_second_copy_of_a_step_takes_the_place_of_the_first() -> None:
    copies = RoleCopies()
    first, second = copy_of(3), copy_of(3)
    copies.put(first)
    copies.put(second)
    assert copies.whole == {3: second}
    assert copies.spare(3) is first


def test_memory_for_the_next_one_can_be_freed() -> None:
    copies = RoleCopies()
    copies.put(copy_of(3))
    copies.drop(after=2)
    copies.free_spare()
    assert copies.spare(-1) is None


@given(st.lists(st.tuples(st.sampled_from(["begin", "finish", "settle", "back"]), st.integers(0, 3))))
def test_any_order_of_events(events: list[tuple[str, int]]) -> None:
    """At any time a new copy may be given up, a complete one settled, or all workers go back to the settled one."""
    copies, settled = RoleCopies(), -1
    under_way: list[Copy] = []
    for now, (what, number) in enumerate(events):
        if what == "begin":
            spare = copies.spare(settled)
            assert spare is None or spare not in copies.whole.values()
            under_way = [copy_of(now)]
        elif what == "finish" and under_way:
            copies.put(under_way.pop())
        elif what == "settle" and copies.whole:
            settled = sorted(copies.whole)[number % len(copies.whole)]
            copies.drop(before=settled)
        elif what == "back" and settled >= 0:
            copies.drop(after=settled)
            under_way = []
        assert len(copies.whole) + len(under_way) <= 2
        assert settled < 0 or settled in copies.whole
