"""The sum over all micro-shards, with every set of vacant replicas and after every interruption."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch

from tests.comm.helpers import Ensemble, at_once
from tests.worker.masked.replicas import Replicas, expected
from understudy.comm.endpoint import Endpoint
from understudy.comm.faults import Fault
from understudy.masking.assignment import assign
from understudy.masking.placement import parse
from understudy.worker.masked.gradients import Miscounted

REPLICAS = 4
PLACEMENTS = ("anywhere", "spare:r=2", "random:r=3,seed=1", "blocks:r=2", "consecutive:r=3")
VACANT = [vacant for size in range(REPLICAS) for vacant in combinations(range(REPLICAS), size)]
Gradients = list[torch.Tensor | None]


def close(found: Gradients, wanted: Gradients) -> bool:
    return all(
        (one is None) == (other is None)
        and (one is None or other is None or torch.allclose(one, other.to(one.dtype), atol=1e-6))
        for one, other in zip(found, wanted, strict=True)
    )


def same_bits(one: Gradients, other: Gradients) -> bool:
    return all(
        a is b is None or (a is not None and b is not None and bytes(a.numpy()) == bytes(b.numpy()))
        for a, b in zip(one, other, strict=True)
    )


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, Gradients]:
    """By q: all replicas live, deterministic order."""
    found = {}
    with Ensemble() as ensemble:
        replicas = Replicas(ensemble, REPLICAS)
        for q in (1, 2, 3):
            replicas.step("anywhere", q, deterministic=True)
            found[q] = replicas.gradients()[0]
            replicas.clear()
    return found


@pytest.mark.parametrize("vacant", VACANT, ids=lambda vacant: "".join(map(str, vacant)) or "none")
def test_the_sum_is_right_with_any_set_of_vacant_replicas(
    vacant: tuple[int, ...], undisturbed: dict[int, Gradients]
) -> None:
    with Ensemble() as ensemble:
        replicas = Replicas(ensemble, REPLICAS)
        if vacant:
            replicas.vacate(vacant)
        for placement in PLACEMENTS:
            if assign(parse(placement, REPLICAS), 1, replicas.live).lost:
                continue
            for q in (1, 2, 3):
                for deterministic in (False, True):
                    means = replicas.step(placement, q, deterministic=deterministic)
                    loss = sum(0.1 * number for number in range(REPLICAS * q)) / (REPLICAS * q)
                    assert all(mean is not None and mean["loss"] == pytest.approx(loss) for mean in means)
                    for found in replicas.gradients():
                        assert close(found, expected(REPLICAS * q, REPLICAS))
                        assert not deterministic or same_bits(found, undisturbed[q])
                        assert same_bits(found, replicas.gradients()[0])
                    replicas.clear()


class Death:
    """Interrupts a replica's generation with its n-th operation from now on, before or after it was given."""

    def __init__(self, endpoint: Endpoint, at: int, *, before: bool) -> None:
        self._endpoint, self._left, self._before = endpoint, at, before
        self._submit, self._message = endpoint.submit, endpoint.message
        self.happened = False
        endpoint.submit = self._submitting  # type: ignore[method-assign]
        endpoint.message = self._sending  # type: ignore[method-assign]

    def _submitting(self, *args: Any, **kwargs: Any) -> None:
        self._around(lambda: self._submit(*args, **kwargs))

    def _sending(self, job: Any) -> None:
        self._around(lambda: self._message(job))

    def _around(self, act: Any) -> None:
        self._left -= 1
        if self._before and self._left == 0:
            self._strike()
        act()
        if not self._before and self._left == 0:
            self._strike()

    def _strike(self) -> None:
        assert self._endpoint.poison is not None
        self.happened = True
        self._endpoint.poison.set(Fault("interrupt", "so says the test"))

    def over(self) -> None:
        del self._endpoint.submit, self._endpoint.message


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["summed", "deterministic"])
def test_interrupted_in_every_operation(deterministic: bool, before: bool, undisturbed: dict[int, Gradients]) -> None:
    """One replica dies with each of its operations in turn. The others go on with what they have."""
    q, dying, kept, totals = 2, 3, 0, 0
    for operation in range(1, 1000):
        with Ensemble() as ensemble:
            replicas = Replicas(ensemble, REPLICAS)
            death = Death(replicas.replicas[dying].group.endpoint, operation, before=before)
            replicas.step("anywhere", q, deterministic=deterministic)
            death.over()
            if not death.happened:
                break
            replicas.clear()
            for replica in replicas.replicas:
                replica.computed.clear()
            totals += sum(len(replica.sums.totals) for replica in replicas.replicas[:dying] if replica.sums is not None)
            kept += sum(replica.sums is not None for replica in replicas.replicas[:dying])
            complete = {replica.number for replica in replicas.replicas if replica.sums is None}
            replicas.vacate([dying])
            assert all(mean is not None for mean in replicas.step("anywhere", q, deterministic=deterministic))
            for replica in replicas.replicas[:dying]:
                own = [number for number in replica.computed if number // q == replica.number]
                assert len(own) == (q if replica.number in complete else 0), "it had what it has computed again"
            for found in replicas.gradients():
                assert close(found, expected(REPLICAS * q, REPLICAS))
                assert not deterministic or same_bits(found, undisturbed[q])
                assert same_bits(found, replicas.gradients()[0])
    assert operation > 6, "a header, what was logged, and several buckets"
    assert kept
    assert totals, "no worker was interrupted between two buckets"


def test_interrupted_twice(undisturbed: dict[int, Gradients]) -> None:
    with Ensemble() as ensemble:
        replicas = Replicas(ensemble, REPLICAS)
        for dying in (3, 1):
            death = Death(replicas.replicas[dying].group.endpoint, 5, before=True)
            replicas.step("anywhere", 3, deterministic=True)
            assert death.happened
            death.over()
            replicas.clear()
            replicas.vacate([dying])
        replicas.step("anywhere", 3, deterministic=True)
        for found in replicas.gradients():
            assert same_bits(found, undisturbed[3])


def test_a_micro_shard_too_few_is_a_defect() -> None:
    with Ensemble() as ensemble:
        replicas = Replicas(ensemble, 2)
        first, second = (replicas.plan(replica, "anywhere", q, deterministic=False) for replica, q in ((0, 2), (1, 1)))
        with pytest.raises(Miscounted, match="the same number"):
            at_once(lambda: replicas.replicas[0].step(first), lambda: replicas.replicas[1].step(second))


def test_values_of_other_names_are_refused() -> None:
    with Ensemble() as ensemble:
        replicas = Replicas(ensemble, 2)
        plans = [replicas.plan(replica, "anywhere", 1, deterministic=False) for replica in (0, 1)]
        for replica, plan in zip(replicas.replicas, plans, strict=True):
            replica.compute(plan)
            assert replica.sums is not None
            replica.sums.values = {replica.number: {f"loss{replica.number}": 1.0}}
        with pytest.raises(Miscounted, match="different names"):
            at_once(*[lambda n=n: replicas.replicas[n].step(plans[n]) for n in (0, 1)])
