"""A worker leaves a generation and comes back in a later one, in the same role."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.comm.helpers import Ensemble, endpoint_of, enter, eventually, sums


def sockets() -> int:
    gc.collect()
    return sum("socket:" in str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())


def test_away_and_back(ensemble: Ensemble) -> None:
    roster, (a, b, c), _ = ensemble.start("m0", "m1", "m2")
    before = sockets()
    for number in range(2, 8, 2):
        c.interrupt("test")
        masked = roster.successor({1: None}, generation=number, fresh=True)
        enter(masked, [a, c])
        b.withdraw()
        assert (b.generation, b.role, b.fault, b.roster) == (0, 1, None, None)
        assert sums([endpoint_of(a), endpoint_of(c)]) == [101.0, 101.0]
        with pytest.raises(RuntimeError, match=f"w1 has left generation {number - 1} and is in no other"):
            sums([endpoint_of(b)])
        roster = masked.successor({1: b.worker}, generation=number + 1)
        enter(roster, [a, b, c])
        assert sums([endpoint_of(a), endpoint_of(b), endpoint_of(c)]) == [111.0, 111.0, 111.0]
    eventually(lambda: sockets() <= before)


def test_a_worker_that_withdraws_gives_up_what_it_prepared(ensemble: Ensemble) -> None:
    roster, (a, b), _ = ensemble.start("m0", "m1")
    following = roster.successor({}, generation=2)
    enter_later = [fabric.prepare(following) for fabric in (a, b)]
    for future in enter_later:
        future.result(10)
    b.withdraw()
    assert b.prepared == 0
    a.interrupt("test")
    enter(roster.successor({1: None}, generation=3, fresh=True), [a])
    assert sums([endpoint_of(a)]) == [1.0]


def test_leaving_nothing_is_nothing(ensemble: Ensemble) -> None:
    (fabric,) = ensemble.hire("m0")
    fabric.withdraw()
    assert fabric.generation == 0
