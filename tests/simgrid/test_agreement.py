"""Two simulators that share no line of simulation come to the same result."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import SeedSequence

from tests.simgrid.cases import REPAIR, failures, going_back, never_going_back, setting
from tests.simgrid.dates import jump_on
from understudy.model import jump
from understudy.model.failures import Repair
from understudy.model.outcome import Outcome, Waste
from understudy.model.setting import Setting
from understudy.model.strategy import Strategy
from understudy.simgrid import engine
from understudy.simgrid.stage import staged

ENOUGH = 50_000.0
SEEDS = range(3)

try:
    PYTHON, MISSING = engine.interpreter(), ""
except engine.SimgridMissing as error:
    PYTHON, MISSING = "", str(error)

pytestmark = pytest.mark.skipif(not PYTHON, reason=MISSING)


def on_the_same_dates(s: Setting, strategy: Strategy, seed: int, horizon: float = 1e15) -> tuple[Outcome, Outcome]:
    """A run in SimGrid and one of the jumping engine with the same failures, and nothing else left to chance."""
    share = Strategy.patched
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Strategy, "patched", lambda *args: float(round(share(*args))))
        stage = staged(s, failures(s), strategy, REPAIR, horizon=horizon, known=ENOUGH, seed=SeedSequence(seed))
        played = engine.play(PYTHON, stage)
        assert not played.beyond
        found = engine.outcome([played], 0.0)
        np.testing.assert_allclose(found.useful + found.wasted.sum(axis=1), found.seconds, rtol=1e-9)
        return found, jump_on(stage.dates, s, failures(s), strategy, REPAIR, horizon)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", never_going_back(setting()))
def test_without_going_back_they_agree_to_the_millisecond(name: str, seed: int) -> None:
    s = setting()
    one, other = on_the_same_dates(s, never_going_back(s)[name], seed)
    assert one.failures == other.failures > 0
    assert one.restarts == other.restarts
    np.testing.assert_allclose(one.seconds, other.seconds, rtol=1e-6)
    np.testing.assert_allclose(one.wasted, other.wasted, atol=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", going_back(setting()))
def test_going_back_differs_by_steps_only(name: str, seed: int) -> None:
    """SimGrid saves between steps, the jumping engine on the second; each return to a checkpoint may show that."""
    s = setting(step=1.0, steps=503)
    strategy = going_back(s)[name]
    one, other = on_the_same_dates(s, strategy, seed)
    assert one.restarts == other.restarts
    assert one.failures == other.failures > 0
    a_step = max(strategy.stretch(s, missing) for missing in range(4)) * s.work.step
    assert abs(one.seconds - other.seconds) <= 2 * a_step * (one.restarts + 1)


@pytest.mark.parametrize("name", ["trainmover", "mask and refill anywhere, micro-shards", "spare", "replication"])
def test_they_agree_when_gradients_take_time_too(name: str) -> None:
    """A step is then computing and summing: which of the two a failure meets is known to SimGrid only."""
    s = setting(step=1.0, sync=0.25, steps=503)
    strategy = {**never_going_back(s), **going_back(s)}[name]
    one, other = on_the_same_dates(s, strategy, 1)
    assert one.failures == other.failures
    assert abs(one.seconds - other.seconds) <= 5 * (one.failures + 1) * s.work.step


def test_they_agree_on_replicas_of_several_machines_until_a_horizon() -> None:
    s = setting(steps=0, machines=16, replicas=8)
    one, other = on_the_same_dates(s, never_going_back(s)["mask and refill anywhere, micro-shards"], 2, horizon=3000.0)
    assert one.seconds == pytest.approx(3000.0)
    assert one.failures == other.failures
    np.testing.assert_allclose(one.useful, other.useful, rtol=2e-3)


@pytest.mark.parametrize("name", ["checkpoint", "trainmover", "spare", "replication", "mask and refill anywhere"])
@pytest.mark.long
def test_each_with_its_own_failures_they_agree_within_what_chance_allows(name: str) -> None:
    s = setting(step=5.0, sync=0.5)
    strategy = {**never_going_back(s), **going_back(s)}[name]
    repair = Repair(200.0)
    few = engine.simulate(s, failures(s), strategy, repair, runs=24, seed=5)
    many = jump.simulate(s, failures(s), strategy, repair, runs=1000, seed=6)
    spread = float(np.std(many.seconds / many.useful)) / np.sqrt(few.runs)
    assert few.inflation.value == pytest.approx(many.inflation.value, abs=3 * spread + 0.01 * many.inflation.value)


def test_maintenance_stragglers_and_domains_are_played_too() -> None:
    s = setting(machines=8)
    ill = failures(s)
    ill = type(ill)(ill.mtbf, together=0.5, maintenance=8 * 200.0, straggling=8 * 400.0, noticed=20.0)
    s = Setting(type(s.cluster)(8, 8, domain=2), s.work, s.durations)
    told: list[float] = []
    found = engine.simulate(
        s, ill, never_going_back(s)["mask and refill anywhere"], REPAIR, runs=2, progress=told.append
    )
    np.testing.assert_allclose(found.useful + found.wasted.sum(axis=1), found.seconds, rtol=1e-9)
    assert found.share(Waste.PLANNED) > 0
    assert found.share(Waste.STRAGGLING) > 0
    assert told == [0.5, 1.0]
