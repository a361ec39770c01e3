"""The order of drains, and drains that will be late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.steward.drains import Drain, next_turn, outlooks, turns_of

THREE = Drain("r1", ("m1", "m2", "m3"))


@pytest.mark.parametrize(
    ("drain", "ready", "limit", "machines", "why"),
    [
        (THREE, ["m1", "m2", "m3"], 0, ("m1", "m2", "m3"), ""),
        (THREE, ["m1", "m2", "m3"], 2, ("m1", "m2"), "2 of 3: no more than 2 at once"),
        (THREE, ["m2"], 2, ("m2",), "1 of 3: a standby is ready for it"),
        (THREE, [], 0, (), ""),
        (Drain("r", ("m1", "m2"), in_turns=False), ["m2", "m1"], 1, ("m1", "m2"), ""),
        (Drain("r", ("m1", "m2"), in_turns=False), ["m2"], 0, (), ""),
    ],
)
def test_the_machines_of_the_next_turn(
    drain: Drain, ready: list[str], limit: int, machines: tuple[str, ...], why: str
) -> None:
    assert next_turn(drain, ready, limit) == (machines, why)


def test_the_earliest_deadline_first() -> None:
    waiting = [Drain("a", ("m1",)), Drain("b", ("m2",), 50.0), Drain("c", ("m3",), 20.0), Drain("d", ("m4",))]
    assert [outlook.id for outlook in outlooks(waiting, 4, 0, now=0.0, lately=None)] == ["c", "b", "a", "d"]


def test_turns_add_up_and_the_later_one_is_late() -> None:
    waiting = [Drain("a", ("m1", "m2"), 100.0), Drain("b", ("m3",), 100.0)]
    first, second = outlooks(waiting, 3, 1, now=70.0, lately=10.0, busy=5.0)
    assert first.ends == 95.0
    assert (first.reason, first.excuse) == ("waits for its turn", "")
    assert second.ends == 105.0
    assert second.reason == "waits for its turn, and will be late: a turn of about 10 s ends 5 s after the deadline"


def test_nothing_is_foretold_before_anything_was_measured() -> None:
    (only,) = outlooks([Drain("a", ("m1",), 1.0)], 0, 0, now=5.0, lately=None)
    assert (only.ends, only.excuse, only.reason) == (None, "", "waits for a standby")


@given(st.integers(1, 9), st.integers(0, 12), st.integers(0, 5))
def test_all_machines_of_a_drain_leave_in_the_end(machines: int, standbys: int, limit: int) -> None:
    left = tuple(f"m{number}" for number in range(machines))
    taken = 0
    while left:
        turn, _ = next_turn(Drain("a", left), left[: max(1, standbys)], limit)
        assert 0 < len(turn) <= (limit or machines)
        left = tuple(name for name in left if name not in turn)
        taken += 1
    assert taken >= turns_of(Drain("a", tuple(f"m{number}" for number in range(machines))), standbys, limit)
