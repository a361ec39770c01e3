from __future__ import annotations

from understudy_bench.harness.turns import DROPPED, kept
from understudy_bench.overhead import rows_of

TIMES = {
    "understudy": [[1.0, 1.1, 1.2], [2.0, 2.2, 2.4], [1.2, 1.2, 1.2]],
    "plain": [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [1.5, 1.5, 1.5]],
}


def test_the_first_steps_of_a_block_do_not_count() -> None:
    assert kept([[9.0] * DROPPED + [1.0, 2.0], [9.0] * DROPPED + [3.0, 4.0]]) == [1.0, 2.0, 3.0, 4.0]
    assert kept([[9.0, 1.0], [9.0, 3.0]], 1) == [1.0, 3.0]


def test_a_row_for_each_start_and_one_in_which_each_start_counts_once() -> None:
    rows = rows_of(2, TIMES)
    assert [row["start"] for row in rows] == ["0", "1", "2", "all"]
    assert [row["understudy_ms"] for row in rows] == [1100.0, 2200.0, 1200.0, 1200.0]
    assert [row["ratio"] for row in rows] == [1.1, 1.1, 0.8, 0.8]
    assert rows[3]["understudy_spread"] == [1120.0, 2000.0]
    assert rows[3]["ratio_spread"] == [0.86, 1.1]
