"""What SimGrid is given, without SimGrid."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from numpy.random import SeedSequence, default_rng

from tests.planning.simgrid.cases import PERIOD, REPAIR, failures, going_back, never_going_back, setting
from understudy.masking.coverage import wipe_out
from understudy.masking.placement import parse
from understudy.planning.failures import Failures
from understudy.planning.setting import Cluster
from understudy.planning.simgrid.prepare import PreparedRun, failure_dates, holders, platform, prepare, trace
from understudy.planning.simgrid.script import BLINK
from understudy.planning.strategy import Strategy, checkpoint, mask_and_refill, replication, spare, trainmover

S = setting()


def prepared_run(known: float = 2000.0, seed: int = 1, shape: float = 1.0) -> PreparedRun:
    ill = Failures(failures(S).mtbf, shape=shape)
    return prepare(S, ill, trainmover(S, 1, PERIOD), REPAIR, horizon=1e15, known=known, seed=SeedSequence(seed))


def prepared(strategy: Strategy) -> PreparedRun:
    return prepare(S, failures(S), strategy, REPAIR, horizon=1e15, known=100.0, seed=SeedSequence(0))


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    assert prepared_run() == prepared_run()
    assert prepared_run().dates != prepared_run(seed=2).dates


def test_more_time_adds_failures_and_changes_none() -> None:
    short, long = prepared_run(2000.0), prepared_run(8000.0)
    assert [tuple(date for date in dates if date < 2000.0) for dates in long.dates] == list(short.dates)
    assert sum(map(len, long.dates)) > sum(map(len, short.dates))
    assert long.repairs[: len(short.repairs)] == short.repairs


def test_failures_are_as_frequent_as_asked_for() -> None:
    ill = Failures(1000.0)
    dates = failure_dates(ill, Cluster(16, 16), default_rng(0), 100_000.0)
    assert sum(map(len, dates)) == pytest.approx(16 * 100, rel=0.1)
    gaps = np.concatenate([np.diff(own) for own in dates])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)


def test_neighbours_fail_at_the_same_date_if_failures_are_shared() -> None:
    dates = failure_dates(Failures(1000.0, together=1.0), Cluster(4, 4, domain=2), default_rng(0), 5000.0)
    assert dates[0] == dates[1] != dates[2] == dates[3]


def test_a_trace_is_in_order_and_ends_switched_on() -> None:
    lines = [line.split() for line in trace([1.5, 700.25]).splitlines()]
    assert [float(date) for date, _ in lines] == [1.5, 1.5 + BLINK, 700.25, 700.25 + BLINK]
    assert [state for _, state in lines] == ["0", "1", "0", "1"]
    many = failure_dates(Failures(0.01), Cluster(2, 2), default_rng(0), 1.0)
    dates = [float(line.split()[0]) for line in trace(many[0]).splitlines()]
    assert dates == sorted(set(dates))


def test_the_platform_has_every_machine_and_no_trace_twice() -> None:
    root = ElementTree.fromstring(platform(((1.0,), (), (2.0, 3.0))))
    assert [host.get("id") for host in root.iter("host")] == ["m0", "m1", "m2", "controller", "storage"]
    named = [name for item in root.iter() if (name := item.get("state_file"))]
    assert sorted(named) == ["m0.host", "m0.link", "m2.host", "m2.link"]
    assert len(list(root.iter("route"))) == 5


def test_every_trace_that_the_platform_names_is_a_file() -> None:
    files = prepared_run().files
    root = ElementTree.fromstring(files["platform.xml"])
    assert {item.get("state_file") for item in root.iter() if item.get("state_file")} == {*files} - {"platform.xml"}


@pytest.mark.parametrize("strategy", [*never_going_back(S).values(), *going_back(S).values()], ids=lambda s: s.name)
def test_a_prepared_run_survives_json(strategy: Strategy) -> None:
    run = prepared(strategy)
    read: Any = json.loads(msgspec.json.encode(run), object_hook=lambda fields: SimpleNamespace(**fields))
    assert read.strategy.period == strategy.period
    assert read.setting.durations.outside == S.durations.outside
    assert msgspec.convert(json.loads(msgspec.json.encode(run)), PreparedRun) == run


def test_the_tables_are_what_the_runtime_decides() -> None:
    whole = prepared(mask_and_refill(S, 1, PERIOD))
    assert whole.loads == [1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 4.0, 8.0]
    assert prepared(mask_and_refill(S, 1, PERIOD, q=7)).loads[1] == pytest.approx(8 / 7)
    assert whole.shares == [1.0] * 8
    first, *later = prepared(spare(S, 3, PERIOD)).shares
    assert first == 1.0
    assert all(0 <= share <= 1 for share in later)
    assert any(0 < share < 1 for share in later)
    assert len(whole.masks) == 9
    unready, ready = zip(*whole.masks, strict=True)
    assert all(unready[:-1])
    assert not unready[-1]
    assert ready[0]
    assert not ready[-2]


def test_a_strategy_that_masks_nothing_needs_no_tables() -> None:
    one = prepared(checkpoint(S, PERIOD))
    assert (one.loads, one.shares, one.masks, one.holders) == ([1.0], [], [], [])


@pytest.mark.parametrize("strategy", [spare(S, 3, PERIOD), replication(S, 2, PERIOD)], ids=lambda s: s.name)
def test_holders_say_what_is_a_wipe_out(strategy: Strategy) -> None:
    table, placement, rng = holders(strategy, 8), parse(strategy.placement, 8), default_rng(3)
    for _ in range(200):
        gone = rng.permutation(8)[: rng.integers(1, 7)].tolist()
        live = [member for member in range(8) if member not in gone]
        lost = any(all(holder in gone for holder in shard) for member in gone for shard in table[member])
        assert lost == bool(wipe_out(placement, live))


def test_if_every_replica_holds_every_shard_there_is_no_table_of_holders() -> None:
    assert holders(mask_and_refill(S, 1, PERIOD), 8) == []


def test_too_large_a_cluster_is_refused() -> None:
    big = setting(machines=1024, replicas=128)
    with pytest.raises(ValueError, match=r"small cases of up to 256 machines, not 1,024; use another engine"):
        prepare(big, failures(big), checkpoint(big, PERIOD), REPAIR, horizon=1.0, known=1.0, seed=SeedSequence(0))


def test_lives_that_begin_at_an_unknown_date_are_refused() -> None:
    ill = Failures(1000.0, shape=0.7)
    with pytest.raises(ValueError, match="spare: machines are new after a restart"):
        prepare(S, ill, spare(S, 3, PERIOD), REPAIR, horizon=1.0, known=1.0, seed=SeedSequence(0))
    assert prepared_run(shape=0.7).dates != prepared_run().dates
