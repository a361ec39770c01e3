from __future__ import annotations

import pytest

from understudy_bench.contest import DROPPED, kept
from understudy_bench.overhead import ratios, rows_of, total_ratio

TIMES = {"understudy": [[1.0, 1.1, 1.2], [2.0, 2.2, 2.4]], "plain": [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]}


def test_the_first_steps_of_a_block_do_not_count() -> None:
    assert kept([[9.0] * DROPPED + [1.0, 2.0], [9.0] * DROPPED + [3.0, 4.0]]) == [1.0, 2.0, 3.0, 4.0]


def test_ratios_by_block_and_in_all() -> None:
    assert ratios(TIMES) == pytest.approx([1.1, 1.1])
    assert total_ratio(TIMES) == pytest.approx(1.6 / 1.5)


def test_a_row_for_each_block_and_one_for_all() -> None:
    rows = rows_of(2, TIMES)
    assert [row["block"] for row in rows] == ["0", "1", "all"]
    assert [row["understudy_ms"] for row in rows] == [1100.0, 2200.0, 1600.0]
    assert rows[2]["ratio"] == round(total_ratio(TIMES), 4)
    assert rows[2]["ratio_spread"] == [1.1, 1.1]
