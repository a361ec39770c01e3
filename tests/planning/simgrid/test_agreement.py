"""Two simulators that share no line of simulation come to the same result."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from numpy.random import SeedSequence

from tests.planning.simgrid.cases import NEVER, REPAIR, failures, going_back, never_going_back, setting
from tests.planning.simgrid.dates import jump_on
from understudy.planning.outcome import SimulationOutcome, Waste
from understudy.planning.setting import PlanningSetting
from understudy.planning.simgrid import engine
from understudy.planning.simgrid.prepare import PreparedRun, holders, prepare
from understudy.planning.simulation import jump
from understudy.planning.strategy import Strategy, mask_and_refill, spare

ENOUGH = 50_000.0
SEEDS = range(3)

try:
    PYTHON, MISSING = engine.interpreter(), ""
except engine.SimgridMissing as error:
    PYTHON, MISSING = "", str(error)

pytestmark = [pytest.mark.skipif(not PYTHON, reason=MISSING), pytest.mark.long]


def on_the_same_dates(
    s: PlanningSetting, strategy: Strategy, seed: int, horizon: float = 1e15
) -> tuple[SimulationOutcome, SimulationOutcome]:
    """A run in SimGrid and one of the jumping engine with the same failures and draws."""
    run = prepare(s, failures(s), strategy, REPAIR, horizon=horizon, known=ENOUGH, seed=SeedSequence(seed))
    return on(run, s, strategy, horizon)


def on_these_dates(
    s: PlanningSetting, strategy: Strategy, dates: dict[int, tuple[float, ...]]
) -> tuple[SimulationOutcome, SimulationOutcome]:
    """The same with the failures of these machines and of no others."""
    run = prepare(s, failures(s), strategy, REPAIR, horizon=1e15, known=ENOUGH, seed=SeedSequence(0))
    own = tuple(dates.get(machine, ()) for machine in range(s.cluster.machines))
    return on(msgspec.structs.replace(run, dates=own), s, strategy)


def on(
    run: PreparedRun, s: PlanningSetting, strategy: Strategy, horizon: float = 1e15
) -> tuple[SimulationOutcome, SimulationOutcome]:
    result = engine.run_script(PYTHON, run)
    assert not result.beyond
    found = engine.outcome([result], 0.0)
    np.testing.assert_allclose(found.useful + found.wasted.sum(axis=1), found.seconds, rtol=1e-9)
    return found, jump_on(run, s, failures(s), strategy, REPAIR, horizon)


def assert_to_the_millisecond(one: SimulationOutcome, other: SimulationOutcome) -> None:
    assert one.failures == other.failures > 0
    assert one.restarts == other.restarts
    np.testing.assert_allclose(one.seconds, other.seconds, rtol=1e-6)
    np.testing.assert_allclose(one.wasted, other.wasted, atol=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", never_going_back(setting()))
def test_without_going_back_they_agree_to_the_millisecond(name: str, seed: int) -> None:
    s = setting()
    assert_to_the_millisecond(*on_the_same_dates(s, never_going_back(s)[name], seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_both_simulators_agree_with_restarts_without_a_checkpoint(seed: int) -> None:
    """Whether a lost member needs a patch is drawn; with the same draws both engines agree."""
    s = setting()
    one, other = on_the_same_dates(s, spare(s, 3, NEVER, restart_after=2), seed)
    assert one.restarts[0] > 0
    assert_to_the_millisecond(one, other)


@pytest.mark.parametrize("name", ["trainmover", "mask and refill anywhere, micro-shards", "torchft"])
def test_both_simulators_agree_when_all_machines_wait_for_the_slowest(name: str) -> None:
    """Both simulate the mean of how long the slowest takes."""
    s = setting()
    s = msgspec.structs.replace(s, work=msgspec.structs.replace(s.work, jitter=0.1))
    one, other = on_the_same_dates(s, never_going_back(s)[name], 0)
    assert one.wasted[0, Waste.STRAGGLING] > 0
    assert_to_the_millisecond(one, other)


def test_failures_within_one_step_are_made_up_for_together() -> None:
    """The second and the third come in one step, at different instants; the fifth while the job stands still. With no
    standby all of them are masked."""
    s = setting(step=5.0)
    strategy = mask_and_refill(s, 0, NEVER)
    a_failure = strategy.stall + strategy.patch(s)
    dates: dict[int, tuple[float, ...]] = {0: (11.0,), 1: (142.0,), 2: (149.5,), 3: (300.0,), 4: (301.0,)}
    one, other = on_these_dates(s, strategy, dates)
    assert_to_the_millisecond(one, other)
    assert one.wasted[0, Waste.STALLED] == pytest.approx(3 * a_failure + 1.0, abs=2e-3)


def test_what_fails_while_it_waits_in_a_restart_is_missed_afterwards() -> None:
    """Three are lost, and all restart; one fails meanwhile and begins anew, and two others fail that wait for it."""
    s = setting()
    strategy = spare(s, 3, NEVER, restart_after=3)
    lost = {0: (10.0,), 1: (40.0,), 2: (80.0,)}
    without, _ = on_these_dates(s, strategy, {**lost, 5: (150.0,)})
    one, other = on_these_dates(s, strategy, {**lost, 5: (150.0,), 3: (200.0,), 7: (220.0,)})
    assert_to_the_millisecond(one, other)
    assert one.wasted[0, Waste.DEGRADED] > without.wasted[0, Waste.DEGRADED] + 100.0


@pytest.mark.parametrize(("sync", "date"), [(0.0, 10.0), (0.5, 9.5), (0.5, 10.0)])
def test_a_failure_may_come_in_the_very_instant_in_which_something_ends(sync: float, date: float) -> None:
    s = setting(sync=sync)
    assert_to_the_millisecond(*on_these_dates(s, never_going_back(s)["trainmover"], {0: (date,), 1: (date,)}))


def test_a_machine_cannot_fail_before_it_has_come() -> None:
    """After a wipe-out the job goes on at once; the machine that was fetched before cannot fail until it is there."""
    s = setting()
    strategy = mask_and_refill(s, 0, NEVER, "spare:r=2", 4)
    first, second = holders(strategy, 8)[0][0]
    one, other = on_these_dates(s, strategy, {first: (10.3, 140.2), second: (11.6,)})
    assert one.failures == 2
    assert one.restarts == 1
    assert_to_the_millisecond(one, other)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", going_back(setting()))
def test_going_back_differs_by_steps_only(name: str, seed: int) -> None:
    """SimGrid saves between steps, the jumping engine on the second; each return to a checkpoint may show that, and
    which failures come within one step and cost less together."""
    s = setting(step=1.0, steps=503)
    strategy = going_back(s)[name]
    one, other = on_the_same_dates(s, strategy, seed)
    assert one.restarts == other.restarts
    assert one.failures == other.failures > 0
    a_step = max(strategy.stretch(s, missing) for missing in range(4)) * s.work.step
    assert abs(one.seconds - other.seconds) <= 2 * a_step * (one.restarts + 1)


@pytest.mark.parametrize("name", ["trainmover", "mask and refill anywhere, micro-shards", "spare", "replication"])
def test_both_simulators_agree_when_gradients_take_time_too(name: str) -> None:
    """A step is then computing and summing: which of the two a failure meets is known to SimGrid only."""
    s = setting(step=1.0, sync=0.25, steps=503)
    strategy = {**never_going_back(s), **going_back(s)}[name]
    one, other = on_the_same_dates(s, strategy, 1)
    assert one.failures == other.failures
    assert abs(one.seconds - other.seconds) <= 5 * (one.failures + 1) * s.work.step


def test_both_simulators_agree_on_replicas_of_several_machines() -> None:
    s = setting(steps=0, machines=16, replicas=8)
    one, other = on_the_same_dates(s, never_going_back(s)["mask and refill anywhere, micro-shards"], 2, horizon=3000.0)
    assert one.seconds == pytest.approx(3000.0)
    assert one.failures == other.failures
    np.testing.assert_allclose(one.useful, other.useful, rtol=2e-3)


@pytest.mark.parametrize("name", ["checkpoint", "trainmover", "spare", "replication", "mask and refill anywhere"])
def test_each_with_its_own_failures_they_agree_within_what_chance_allows(name: str) -> None:
    s = setting(step=5.0, sync=0.5)
    strategy = {**never_going_back(s), **going_back(s)}[name]
    few = engine.simulate(s, failures(s), strategy, REPAIR, runs=24, seed=5)
    many = jump.simulate(s, failures(s), strategy, REPAIR, runs=4000, seed=6)
    spread = float(np.std(many.seconds / many.useful)) / np.sqrt(24)
    assert few.inflation.value == pytest.approx(many.inflation.value, abs=3 * spread + 0.01 * many.inflation.value)


def test_maintenance_stragglers_and_domains_are_simulated_too() -> None:
    s = setting(machines=8)
    ill = failures(s)
    ill = type(ill)(ill.mtbf, together=0.5, maintenance=8 * 200.0, straggling=8 * 400.0, noticed=20.0)
    s = PlanningSetting(type(s.cluster)(8, 8, domain=2), s.work, s.durations)
    told: list[float] = []
    found = engine.simulate(
        s, ill, never_going_back(s)["mask and refill anywhere"], REPAIR, runs=2, progress=told.append
    )
    np.testing.assert_allclose(found.useful + found.wasted.sum(axis=1), found.seconds, rtol=1e-9)
    assert found.share(Waste.PLANNED) > 0
    assert found.share(Waste.STRAGGLING) > 0
    assert told == [0.5, 1.0]
