from __future__ import annotations

import pytest

from understudy.planning.papers import trainmover
from understudy.planning.papers.trainmover import SYSTEMS, Reading, mttf, reduction, simulated, standbys_for, wasted
from understudy.planning.setting import HOUR


def test_interruptions_come_as_published_and_in_between_on_a_line() -> None:
    assert mttf(8_192) == 3 * HOUR
    assert mttf(131_072) == 14 * 60
    assert mttf(65_536) == pytest.approx(28 * 60, rel=0.02)


def test_the_pool_covers_the_machines_in_repair() -> None:
    assert [standbys_for(gpus) for gpus in (8_192, 65_536, 131_072)] == [6, 22, 38]
    assert standbys_for(8_192, Reading(standbys=1)) == 1


@pytest.mark.parametrize(("against", "gpus"), trainmover.PROJECTED)
def test_reductions_are_within_five_points_of_the_published(against: str, gpus: int) -> None:
    system = next(one for one in SYSTEMS if one == against)
    assert reduction(system, gpus) == pytest.approx(trainmover.PROJECTED[against, gpus], abs=0.05)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_simulator_agrees_if_interruptions_are_few(system: str) -> None:
    which = next(one for one in SYSTEMS if one == system)
    found = simulated(which, 1_024, weeks=40, runs=6, seed=1)
    assert found == pytest.approx(wasted(which, 1_024), rel=0.05)
