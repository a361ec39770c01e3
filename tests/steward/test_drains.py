"""The order of drains, and drains that will be late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.steward.drains import Drain, Turn, in_order, next_turn, outlooks, turns_of

THREE = Drain("r1", ("m1", "m2", "m3"))


@pytest.mark.parametrize(
    ("drain", "ready", "limit", "turn"),
    [
        (THREE, ["m1", "m2", "m3"], 0, Turn(("m1", "m2", "m3"), "all remaining machines")),
        (THREE, ["m1", "m2", "m3"], 2, Turn(("m1", "m2"), "2 of 3: no more than 2 at once")),
        (THREE, ["m2"], 2, Turn(("m2",), "1 of 3: a standby is ready for it")),
        (THREE, [], 0, Turn((), "waits for a standby")),
        (Drain("r", ("m1", "m2"), in_turns=False), ["m2", "m1"], 1, Turn(("m1", "m2"), "all at one boundary")),
        (
            Drain("r", ("m1", "m2"), in_turns=False),
            ["m2"],
            0,
            Turn((), "waits for 1 more of 2 standbys: all leave at one boundary"),
        ),
    ],
)
def test_who_goes_now(drain: Drain, ready: list[str], limit: int, turn: Turn) -> None:
    assert next_turn(drain, ready, limit) == turn


def test_the_earliest_deadline_first() -> None:
    waiting = [Drain("a", ("m1",)), Drain("b", ("m2",), 50.0), Drain("c", ("m3",), 20.0), Drain("d", ("m4",))]
    assert [drain.id for drain in in_order(waiting)] == ["c", "b", "a", "d"]


def test_turns_add_up_and_the_later_one_is_late() -> None:
    waiting = [Drain("a", ("m1", "m2"), 100.0), Drain("b", ("m3",), 100.0)]
    first, second = outlooks(waiting, 3, 1, now=70.0, lately=10.0, busy=5.0)
    assert (first.turns, first.ends, first.late) == (2, 95.0, False)
    assert (first.reason, first.excuse) == ("waits for its turn", "")
    assert (second.turns, second.ends, second.late) == (1, 105.0, True)
    assert second.reason == "waits for its turn, and will be late: a turn of about 10 s ends 5 s after the deadline"


def test_nothing_is_foretold_before_anything_was_measured() -> None:
    (only,) = outlooks([Drain("a", ("m1",), 1.0)], 0, 0, now=5.0, lately=None)
    assert (only.ends, only.late, only.reason) == (None, False, "waits for a standby")


@given(st.integers(1, 9), st.integers(0, 12), st.integers(0, 5))
def test_everybody_goes_in_the_end(machines: int, standbys: int, limit: int) -> None:
    left = tuple(f"m{number}" for number in range(machines))
    taken = 0
    while left:
        turn = next_turn(Drain("a", left), left[: max(1, standbys)], limit)
        assert 0 < len(turn.machines) <= (limit or machines)
        left = tuple(name for name in left if name not in turn.machines)
        taken += 1
    assert taken >= turns_of(Drain("a", tuple(f"m{number}" for number in range(machines))), standbys, limit)
