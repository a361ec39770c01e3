"""The engine that jumps from event to event."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.planning.cases import FAILURES, SETTING, names, way
from understudy.planning import strategy as ways
from understudy.planning.failures import Failures, Repair
from understudy.planning.outcome import Waste
from understudy.planning.setting import DAY, HOUR, Cluster, PlanningSetting, StepWork
from understudy.planning.simulation.jump import EventLog, simulate

HARD = Failures(24 * HOUR, shape=0.8, together=0.1, maintenance=100 * HOUR, straggling=200 * HOUR)


def changed(setting: PlanningSetting, **changes: object) -> PlanningSetting:
    return msgspec.structs.replace(setting, **changes)


@pytest.mark.parametrize("failures", [FAILURES, HARD], ids=["plain", "hard"])
@pytest.mark.parametrize("name", names())
def test_every_second_is_accounted_for(name: str, failures: Failures) -> None:
    setting = changed(SETTING, cluster=msgspec.structs.replace(SETTING.cluster, domain=4))
    found = simulate(setting, failures, way(name), runs=20, horizon=10 * DAY, seed=3)
    assert np.allclose(found.seconds, 10 * DAY)
    assert np.allclose(found.useful + found.wasted.sum(axis=1), found.seconds)
    assert (found.wasted >= -1e-6).all()
    assert (found.useful >= 0).all()
    assert found.failures.sum() > 0


@pytest.mark.parametrize("name", names())
def test_a_seed_is_a_run(name: str) -> None:
    one, two, other = (simulate(SETTING, HARD, way(name), runs=3, horizon=DAY, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(one.wasted, two.wasted)
    assert not np.array_equal(one.wasted, other.wasted)


def test_without_failures_only_saving_costs() -> None:
    found = simulate(SETTING, Failures(1e15), ways.checkpoint(SETTING, 980.0), runs=2, horizon=DAY)
    assert found.shares.keys() == {Waste.SAVING.words}
    assert found.efficiency.value == pytest.approx(0.98, abs=0.001)


def test_a_job_ends_when_its_steps_are_done() -> None:
    setting = changed(SETTING, work=StepWork(20.0, 2.0, steps=1000))
    never = simulate(setting, Failures(1e15), ways.checkpoint(setting, 2000.0), runs=2)
    assert never.useful == pytest.approx([22_000.0] * 2)
    assert never.seconds == pytest.approx([22_000.0 + 11 * 20.0] * 2, abs=20.0)
    often = simulate(setting, FAILURES, ways.checkpoint(setting, 600.0), runs=20)
    assert often.useful == pytest.approx([22_000.0] * 20)
    assert (often.seconds > never.seconds.min()).all()


def test_bunches_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.planning.simulation.jump.AT_ONCE", 4 * SETTING.cluster.machines)
    seen: list[float] = []
    found = simulate(SETTING, FAILURES, way("trainmover"), runs=10, horizon=DAY, progress=seen.append)
    assert len(found.seconds) == 10
    assert len(set(found.useful)) == 10
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


def test_an_end_is_needed() -> None:
    with pytest.raises(ValueError, match="give a horizon"):
        simulate(SETTING, FAILURES, way("checkpoint"))


def test_without_enough_standbys_the_job_waits() -> None:
    few, enough = (
        simulate(
            SETTING, FAILURES, ways.trainmover(SETTING, standbys, 4 * HOUR), Repair(4 * HOUR), runs=20, horizon=DAY
        )
        for standbys in (1, 12)
    )
    assert few.share(Waste.WAITING) > 0.3
    assert enough.share(Waste.WAITING) < 0.01


def test_a_hand_over_that_costs_less_is_preferred_to_masking() -> None:
    """The runtime's own policy decides."""
    quick = changed(SETTING, durations=msgspec.structs.replace(SETTING.durations, hand_over=0.0, detect=0.0))
    fast = changed(quick, work=StepWork(0.1, 0.0), cluster=Cluster(machines=4, replicas=2))
    recovers = ways.mask_and_refill(fast, 2, HOUR, "anywhere", 2)
    recovering = simulate(fast, FAILURES, recovers, Repair(60.0, "fixed"), runs=5, horizon=10 * DAY)
    assert recovering.failures.sum() > 5
    assert recovering.share(Waste.JOINING) == 0
    masking = simulate(SETTING, FAILURES, way("mask-and-refill"), runs=5, horizon=10 * DAY)
    assert masking.share(Waste.JOINING) > 0


def test_neighbours_that_fail_together_hurt_unless_apart() -> None:
    """The same stripe of neighbours: a domain holds all copies of a shard, or never two of them."""
    setting = PlanningSetting(Cluster(machines=48, replicas=48, domain=4), StepWork(20.0, 2.0), SETTING.durations)
    together = Failures(400 * HOUR, together=1.0)
    lost = {}
    for placement in ("consecutive:r=3", "spare:r=3,domain=4"):
        strategy = ways.mask_and_refill(setting, 30, 4 * HOUR, placement)
        strategy = msgspec.structs.replace(strategy, may_recover=False)  # the policy would rather wait for a standby
        lost[placement] = simulate(setting, together, strategy, runs=10, horizon=30 * DAY).restarts.sum()
    assert lost["consecutive:r=3"] > 20
    assert lost["spare:r=3,domain=4"] == 0


def test_a_simulation_logs_its_events() -> None:
    story: EventLog = []
    outcome = simulate(SETTING, FAILURES, way("mask-and-refill"), runs=1, horizon=DAY, seed=1, log=story)
    assert len([what for _, what in story if "fails" in what]) == outcome.failures[0]
    assert [at for at, _ in story] == sorted(at for at, _ in story)
    assert any("refilled" in what for _, what in story)
    same = simulate(SETTING, FAILURES, way("mask-and-refill"), runs=1, horizon=DAY, seed=1)
    assert np.array_equal(same.wasted, outcome.wasted)
