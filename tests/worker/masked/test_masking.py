"""Masked steps in real processes: a replica dies at any point; the others end with the bits of an undisturbed run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from tests.worker.masked.masked import Death, MaskedRun, Result, perform

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("frameworks")]

DDP = MaskedRun()


@cache
def undisturbed(run: MaskedRun) -> Result:
    results = perform(run)
    assert len({result.digest for result in results.values()}) == 1
    return results[0]


def check(run: MaskedRun, results: dict[int, Result]) -> None:
    """All that are left have the same, to the bit what an undisturbed run has; every step was applied once."""
    whole = undisturbed(replace(run, deaths=(), keep="own"))
    for result in results.values():
        assert len(result.values) == run.steps
        if run.deterministic:
            assert result.digest == whole.digest
            assert [v["loss"] for v in result.values] == [v["loss"] for v in whole.values]
        else:
            assert result.digest == results[0].digest
            assert result.state == pytest.approx(whole.state, rel=1e-3, abs=1e-4)


def own(result: Result, role: int, step: int, micro: int) -> Counter[int]:
    return Counter(number for at, number in result.computed if at == step and number // micro == role)


LONG = pytest.mark.long
"""`test_gradients.py` interrupts the sum in each of its operations, within one process."""
DEATHS = [
    pytest.param(Death(2, 1, "before", 0), marks=LONG, id="before the first shard"),
    pytest.param(Death(2, 1, "before", 1), id="between two shards"),
    pytest.param(Death(2, 1, "backward", 1), id="in a backward"),
    pytest.param(Death(2, 1, "sum", 1), marks=LONG, id="with the first operation of the sum"),
    pytest.param(Death(2, 1, "sum", 3), id="in the sum"),
    pytest.param(Death(2, 1, "vote"), id="before the vote"),
    pytest.param(Death(0, 0, "backward", 0), id="the first role in the first step"),
]


@pytest.mark.parametrize("death", DEATHS)
def test_ddp(death: Death) -> None:
    run = replace(DDP, deaths=(death,))
    results = perform(run)
    check(run, results)
    if death.where in ("before", "backward"):
        for role, result in results.items():
            assert set(own(result, role, death.step, run.micro).values()) == {1}, "it had what it has computed again"


@pytest.mark.parametrize("keep", ["copy", pytest.param("none", marks=LONG)])
def test_what_is_kept(keep: str) -> None:
    run = replace(DDP, keep=keep, deaths=(Death(1, 1, "backward", 1),))
    results = perform(run)
    check(run, results)
    counts = {n for role, result in results.items() for n in own(result, role, 1, run.micro).values()}
    assert (counts == {1}) if keep == "copy" else (2 in counts)


def test_one_after_the_other() -> None:
    run = replace(DDP, mesh=(("dp", 4),), steps=4, deaths=(Death(3, 1, "backward", 0), Death(0, 2, "before", 1)))
    results = perform(run)
    check(run, results)
    last = {number for result in results.values() for step, number in result.computed if step == 3}
    assert last == set(range(8)), "two replicas compute the micro-shards of four"


def test_without_one_order() -> None:
    run = replace(DDP, deterministic=False, deaths=(Death(2, 1, "backward", 1),))
    check(run, perform(run))


def test_a_plain_module() -> None:
    run = replace(DDP, kind="plain", deaths=(Death(1, 1, "backward", 1),))
    check(run, perform(run))


def by_replica(mesh: tuple[tuple[str, int], ...], name: str) -> Callable[[int], int]:
    from understudy.protocol.mesh import coordinates

    return lambda role: coordinates(mesh, role)[name]


@pytest.mark.parametrize(
    ("where", "deterministic"),
    [
        pytest.param("before", False, marks=LONG, id="before"),
        pytest.param("backward", True, id="backward"),
        pytest.param("sum", True, id="sum"),
    ],
)
def test_hsdp(where: str, deterministic: bool) -> None:
    run = MaskedRun("hsdp", (("dp_replicate", 2), ("dp_shard", 2)), deterministic=deterministic)
    compare_by_place(run, Death(2, 1, where, 1), "dp_replicate")


@pytest.mark.parametrize("where", ["backward", pytest.param("sum", marks=LONG)])
def test_pipeline(where: str) -> None:
    compare_by_place(MaskedRun("pipeline", (("pp", 2), ("dp", 2))), Death(1, 1, where, 1), "dp")


@cache
def all_roles(run: MaskedRun, name: str) -> dict[int, Result]:
    return perform(run, by_replica(run.mesh, name))


def compare_by_place(run: MaskedRun, death: Death, name: str) -> None:
    """Roles at the same place of their replica hold the same; they are compared with those of an undisturbed run."""
    replica_of = by_replica(run.mesh, name)
    whole = all_roles(replace(run, deterministic=True), name)
    results = perform(replace(run, deaths=(death,)), replica_of)
    assert len(results) == run.roles // 2
    assert all(replica_of(role) != replica_of(death.role) for role in results)
    for role, result in results.items():
        assert len(result.values) == run.steps
        if run.deterministic:
            assert result.digest == whole[role].digest
            assert result.values == whole[role].values
        else:
            assert result.state == pytest.approx(whole[role].state, rel=1e-3, abs=1e-4)
