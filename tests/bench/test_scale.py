from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from understudy_bench.scale import SimulatedJob, checks_of, controller, slope, summed
from understudy_bench.scale_agents import STAGES, twins


def test_what_is_proportional_has_slope_one_and_a_square_two() -> None:
    assert slope({256: 1.0, 1024: 4.0, 4096: 16.0}) == pytest.approx(1.0)
    assert slope({256: 1.0, 1024: 16.0}) == pytest.approx(2.0)


def test_a_row_has_the_medians_of_all_changes() -> None:
    row = summed("failure", 100, [{"cpu_s": value, "frames": 10.0} for value in (0.1, 0.2, 0.9)])
    assert (row["cpu_s"], row["frames"], row["cpu_us_per_machine"], row["rounds"]) == (0.2, 10.0, 2000.0, 3)


def rows(power: float, grown: float = 1.0) -> list[dict[str, object]]:
    return [
        {
            "what": what,
            "machines": size,
            "cpu_s": (size / 256) ** power,
            "frames": 10.0,
            "bytes": 1000.0 * (grown if size > 256 else 1.0),
        }
        for what in ("failure", "planned")
        for size in (64, 256, 1024)
    ]


def test_the_checks_hold_the_slope_and_what_each_machine_hears() -> None:
    assert all(check.ok for check in checks_of(rows(1.1)))
    failed = [check.name for check in checks_of(rows(1.3, grown=1.2)) if not check.ok]
    assert failed == ["failure_cpu_slope", "planned_cpu_slope", "failure_bytes_growth", "planned_bytes_growth"]


def test_twins_have_the_same_place_in_other_replicas() -> None:
    assert twins(STAGES + 3, 3 * STAGES) == (3, STAGES + 3, 2 * STAGES + 3)


@pytest.mark.timeout(120)
def test_a_small_crowd_loses_a_machine_and_replaces_one(tmp_path: Path) -> None:
    async def measure() -> tuple[dict[str, float], dict[str, float]]:
        with controller(tmp_path, 32) as (process, url, secret):
            async with SimulatedJob(process, url, secret, 32) as job:
                await job.form()
                return await job.failure(), await job.planned()

    failure, planned = asyncio.run(measure())
    assert failure["cpu_s"] > 0
    assert 0 < failure["decided_s"] <= failure["seconds"]
    assert 0 < planned["prepared_s"] <= planned["armed_s"] <= planned["seconds"]
