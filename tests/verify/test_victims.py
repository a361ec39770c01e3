"""The choice of victims: never a dead worker, and never the last copy of a role's state."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.verify.victims import (
    LiveWorker,
    NotPossible,
    Snapshot,
    orphaned,
    pick_machines,
    pick_standby,
    pick_worker,
    snapshot_of,
)


def snapshot(nproc: int, twins: dict[int, tuple[int, ...]], machines: int, standbys: int = 0) -> Snapshot:
    workers = [
        LiveWorker(
            f"w{number}",
            1000 + number,
            f"m{number // nproc}",
            number if number < machines * nproc else None,
        )
        for number in range((machines + standbys) * nproc)
    ]
    states = {f"m{number}": "active" if number < machines else "standby" for number in range(machines + standbys)}
    return Snapshot(tuple(workers), twins, states)


DDP = snapshot(1, dict.fromkeys(range(3), (0, 1, 2)), machines=3, standbys=1)
STAGES = snapshot(2, {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}, machines=2)
"""Both copies of a stage on one machine."""
REPLICAS = snapshot(2, {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}, machines=2)
"""A whole copy on each machine."""
SHARDED = snapshot(1, {0: (0,), 1: (1,)}, machines=2)


def test_the_roles_that_a_loss_leaves_without_a_copy() -> None:
    assert orphaned(DDP, {"w0", "w1"}) == []
    assert orphaned(DDP, {"w0", "w1", "w2"}) == [0, 1, 2]
    assert orphaned(DDP, {"w3"}) == []
    assert orphaned(STAGES, {"w0", "w2"}) == []
    assert orphaned(STAGES, {"w0", "w1"}) == [0, 1]
    assert orphaned(REPLICAS, {"w0", "w1"}) == []
    assert orphaned(REPLICAS, {"w0", "w2"}) == [0, 2]
    assert orphaned(SHARDED, {"w1"}) == [1]


def test_no_worker_is_a_victim_before_the_holders_of_copies_are_known() -> None:
    unknown = Snapshot(DDP.workers, {}, DDP.states)
    with pytest.raises(NotPossible, match="only copy"):
        pick_worker(unknown, Random(0))
    assert pick_worker(unknown, Random(0), reckless=True).role is not None


def test_the_last_copy_is_spared() -> None:
    with pytest.raises(NotPossible, match="each worker with a role holds the only copy"):
        pick_worker(SHARDED, Random(0))
    with pytest.raises(NotPossible, match="each machine with roles holds"):
        pick_machines(STAGES, Random(0))
    with pytest.raises(NotPossible, match="any 2 machines with roles hold"):
        pick_machines(REPLICAS, Random(0), 2)
    assert len(pick_machines(DDP, Random(0), 2)) == 2
    with pytest.raises(NotPossible):
        pick_machines(DDP, Random(0), 3)
    assert len(pick_machines(DDP, Random(0), 3, reckless=True)) == 3


@given(st.integers(), st.sampled_from([DDP, STAGES, REPLICAS]))
def test_victims_never_hold_the_last_copy_of_a_state(seed: int, there: Snapshot) -> None:
    dice = Random(seed)
    one = pick_worker(there, dice)
    two = pick_worker(there, dice, also={one.uid})
    assert one.uid != two.uid
    assert one.role is not None
    assert orphaned(there, {one.uid, two.uid}) == []
    assert pick_worker(there, Random(seed)) == one


def test_a_standby_is_needed() -> None:
    assert pick_standby(DDP, Random(0)) == "m3"
    with pytest.raises(NotPossible, match="there is no standby"):
        pick_standby(STAGES, Random(0))


def test_from_what_the_controller_shows() -> None:
    machines = [
        {"name": "m0", "state": "active", "workers": ["w0"], "pids": [10]},
        {"name": "m1", "state": "gone", "workers": ["w1"], "pids": [11]},
        {"name": "m2", "state": "standby", "workers": ["w2", "w3"], "pids": [12, 0]},
    ]
    roster: list[dict[str, object]] = [
        {"role": 0, "worker": "w0", "machine": "m0", "twins": [0, 1]},
        {"role": 1, "worker": None, "machine": None, "twins": [0, 1]},
    ]
    found = snapshot_of(machines, roster)
    assert found.workers == (LiveWorker("w0", 10, "m0", 0), LiveWorker("w2", 12, "m2", None))
    assert found.twins == {0: (0, 1), 1: (0, 1)}
    assert found.machines("standby") == ["m2"]
    assert found.machines("gone") == []
    assert orphaned(found, {"w0"}) == [0]
