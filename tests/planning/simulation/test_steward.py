"""The simulated steward: means that are known in closed form, and that it does what the settings say."""

from __future__ import annotations

from math import exp

import pytest

from understudy.planning.closed_form import shortage
from understudy.planning.failures import Failures
from understudy.planning.setting import DAY, HOUR, WEEK
from understudy.planning.simulation.steward import StewardScenario, _Run, simulate
from understudy.protocol.settings import StewardSettings

NEVER = 1e12
FREE = StewardSettings("act", pool=20, cool_down=0.0, looks=10, rest=0.0, replacements=10**6)


def near(value: float, expected: float, share: float) -> None:
    assert abs(value - expected) < share * expected, f"{value:.5g}, {expected:.5g} expected"


def test_time_lost_to_slow_machines_is_that_of_a_queue_without_waiting() -> None:
    """Slow machines come at random, and each slows the job until it is detected and replaced, after T in total. At
    least one machine is slow for a share 1 - e^(-λT) of the time."""
    machines, every, noticed = 64, 2 * HOUR, 600.0
    scene = StewardScenario(
        machines, Failures(NEVER, straggling=machines * every, slow=0.25, noticed=noticed), lasting=NEVER
    )
    found = simulate(scene, FREE, runs=12, horizon=WEEK, seed=1)
    spell = noticed + FREE.looks - 0.5  # the first look comes half a second later in the mean
    near(found["replaced"].value, WEEK / every, 0.08)
    share = 1 - exp(-spell * found["became_slow"].value / WEEK)
    near(found["slowed"].value, machines * WEEK * share * 0.25 / 1.25, 0.02)
    assert found["falsely"].value == 0


def test_without_the_steward_they_stay_slow_for_as_long_as_they_do() -> None:
    machines, every, lasting = 64, 8 * HOUR, 2 * HOUR
    scene = StewardScenario(machines, Failures(NEVER, straggling=machines * every, slow=0.25), lasting=lasting)
    found = simulate(scene, StewardSettings("off", pool=1), runs=40, horizon=WEEK, seed=2)
    share = 1 - exp(-lasting * found["became_slow"].value / WEEK)
    near(found["slowed"].value, machines * WEEK * share * 0.2, 0.06)
    assert found["replaced"].value == 0


@pytest.mark.parametrize("pool", [1, 3])
def test_how_often_no_standby_is_there_is_poissons(pool: int) -> None:
    """A machine is asked for as soon as one is used, so those on their way are Poisson distributed; a failure finds no
    standby where at least as many are on their way as the pool has."""
    machines, every, arrival = 256, HOUR, 1.5 * HOUR
    scene = StewardScenario(machines, Failures(machines * every), arrival=arrival)
    rules = StewardSettings("off", pool=pool, cool_down=0.0, arrival=4 * HOUR)
    found = simulate(scene, rules, runs=10, horizon=2 * WEEK, seed=3)
    near(found["missed"].value / found["failed"].value, shortage(arrival / every, pool - 1), 0.08)
    near(found["requested"].value, found["failed"].value, 0.02)
    near(found["standing_by"].value / WEEK, sum(1 - shortage(arrival / every, number) for number in range(pool)), 0.12)


def test_false_alarms_cause_replacements_only_if_they_outlast_the_patience() -> None:
    machines, every = 64, HOUR
    scene = StewardScenario(machines, Failures(NEVER), mistaken=machines * every, mistake=30.0)
    for patience in (10, 40):
        rules = StewardSettings("act", pool=20, cool_down=0.0, looks=patience, rest=0.0, replacements=10**6)
        found = simulate(scene, rules, runs=6, horizon=WEEK, seed=4)
        assert found["replaced"].value == found["falsely"].value
        near(found["falsely"].value, WEEK / every * exp(-(patience - 0.5) / 30.0), 0.15)


def test_the_steward_keeps_to_its_limits_and_a_seed_gives_one_result() -> None:
    machines = 64
    failures = Failures(NEVER, straggling=machines * 0.2 * HOUR, noticed=60.0, maintenance=machines * 4 * HOUR)
    rules = StewardSettings("act", pool=2, budget=3, replacements=2, looks=5)
    scene = StewardScenario(machines, failures, arrival=300.0, lasting=DAY)
    found = simulate(scene, rules, runs=2, horizon=DAY, seed=5)
    assert found == simulate(scene, rules, runs=2, horizon=DAY, seed=5)
    assert found["at_most"].high <= 3
    assert found["replaced"].high <= WEEK / HOUR * 2
    assert found["maintained"].value > 0


def test_the_pool_is_full_again_after_every_event() -> None:
    """Standbys wait nearly all the time where a machine comes in minutes and one is needed every few hours."""
    machines = 32
    failures = Failures(machines * 6 * HOUR, maintenance=machines * 12 * HOUR)
    scene = StewardScenario(machines, failures, arrival=120.0)
    found = simulate(scene, StewardSettings("off", pool=2), runs=5, horizon=WEEK, seed=6)
    near(found["standing_by"].value, 2 * WEEK, 0.03)
    near(found["requested"].value, found["failed"].value + found["maintained"].value, 0.01)
    assert found["released"].value == 0


def test_looks_that_are_left_out_would_have_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = 32
    failures = Failures(machines * 2 * HOUR, straggling=machines * HOUR, noticed=60.0, maintenance=machines * HOUR)
    scene = StewardScenario(machines, failures, arrival=400.0, lasting=HOUR, mistaken=machines * HOUR, mistake=20.0)
    rules = StewardSettings("act", pool=3, cool_down=45.0, replacements=100, rest=0.0)
    found = simulate(scene, rules, runs=2, horizon=8 * HOUR, seed=7)
    monkeypatch.setattr(_Run, "_idle_until", lambda run: run.now)
    every = simulate(scene, rules, runs=2, horizon=8 * HOUR, seed=7)
    values = {name: mean.value for name, mean in found.items()}
    assert values == pytest.approx({name: mean.value for name, mean in every.items()})
    assert values["replaced"] > 0
