"""The observations of a worker at a boundary, and its waits."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from understudy.host.extensions import Extensions
from understudy.host.world import REAL, World
from understudy.testing import FakeClock
from understudy.verify.script.observation import AWAITS_KILL, EXTENSION, PACE, Observation, Pace, read_observations
from understudy.verify.script.observer import ScriptObserver, watch_loaders
from understudy.worker.runtime import WorkerRuntime

COUNT = {"calls": 0}


@dataclass
class Stand:
    """As much of a worker as an observer sees."""

    folder: Path
    tracked: dict[str, object] = field(default_factory=dict)
    same: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.spec = SimpleNamespace(uid="w0", machine="m0")
        self.role = 0
        self.world: World = REAL
        self.redundancy = SimpleNamespace(twins=())
        self.fabric, self.is_primary = SimpleNamespace(fault=None), True

    def observer(self) -> ScriptObserver:
        return ScriptObserver(cast(WorkerRuntime, self), self.folder)


def values(observation: Observation) -> dict[str, str]:
    """By name; the nearest, where modules of other tests have one of that name, too."""
    found: dict[str, str] = {}
    for path, value in observation.values.items():
        found.setdefault(path.partition(":")[2], value.short)
    return found


def test_what_a_function_holds_beside_what_it_tracks(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    stand = Stand(tmp_path, {"model": model, "optim": optim}, same=(0, 1))
    observer = stand.observer()

    def train() -> None:
        inner, weight = model, model.weight  # noqa: F841
        ema, count, name = nn.Linear(2, 2), 3, "x"  # noqa: F841
        observer.at_boundary(5)

    COUNT["calls"] += 1
    train()
    (found,) = read_observations(tmp_path)
    assert (found.role, found.step, found.uid, found.machine, found.disturbances) == (0, 5, "w0", "m0", 0)
    assert found.twins == (0, 1)
    assert {"model.weight", "model.bias", "optim.param_groups"} <= found.state.keys()
    seen = values(found)
    assert {"ema", "count", "name", "COUNT"} <= seen.keys()
    assert not {"inner", "weight", "model", "optim"} & seen.keys()
    assert seen["COUNT"] == f"calls: {COUNT['calls']}"
    assert found.scopes[0].function == "train"
    assert str(Path(__file__)) in found.files


def test_an_object_that_functions_pass_on_belongs_to_the_one_that_has_made_it(tmp_path: Path) -> None:
    observer = Stand(tmp_path).observer()

    def epoch(average: nn.Module, number: int) -> None:
        observer.at_boundary(0)

    def train() -> None:
        ema, first = nn.Linear(2, 2), 3
        epoch(ema, first)

    train()
    (found,) = read_observations(tmp_path)
    assert [scope.function for scope in found.scopes[:2]] == ["epoch", "train"]
    assert {path for path in found.values if path.partition(":")[2] in ("average", "number", "ema", "first")} == {
        *("0:number", "1:ema", "1:first")
    }


def test_iterators_of_loaders_that_draw_from_the_global_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    observer = Stand(tmp_path).observer()
    watch_loaders(observer.seeded)
    data: Any = TensorDataset(torch.zeros(4, 2))
    observer.at_boundary(0)
    assert len(list(DataLoader(data, 2))) == 2
    line = sys._getframe().f_lineno - 1
    observer.at_boundary(1)
    assert len(list(DataLoader(data, 2, generator=torch.Generator()))) == 2
    observer.at_boundary(2)
    assert [each.seeded for each in read_observations(tmp_path)] == [(), (f"test_observer.py:{line}",), ()]


def test_the_state_is_told_tensor_by_tensor(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optim, 1)
    observer = Stand(tmp_path, {"model": model, "optim": optim, "schedule": schedule}).observer()
    observer.at_boundary(0)
    with torch.no_grad():
        model.bias.add_(1)
    schedule.last_epoch = 4
    observer.at_boundary(1)
    first, second = read_observations(tmp_path)
    changed = {name for name in first.state if first.state[name] != second.state[name]}
    assert changed == {"model.bias", "schedule.last_epoch"}


def test_nothing_is_kept_alive(tmp_path: Path) -> None:
    observer = Stand(tmp_path, {"model": nn.Linear(2, 2)}).observer()
    loss: Any = torch.ones(3)
    gone = weakref.ref(loss)
    observer.at_boundary(0)
    del loss
    assert gone() is None


def test_the_pace_says_which_step_may_begin(tmp_path: Path) -> None:
    stand = Stand(tmp_path, {"model": nn.Linear(2, 2)})
    observer = stand.observer()
    assert observer.may_begin(3)
    (tmp_path / PACE).write_bytes(msgspec.json.encode(Pace(3, disturbances=1)))
    assert observer.may_begin(2)
    assert not observer.may_begin(3)
    observer.at_boundary(2)
    assert read_observations(tmp_path)[0].disturbances == 1


def order(folder: Path, pace: Pace) -> None:
    (folder / f"{PACE}.draft").write_bytes(msgspec.json.encode(pace))
    (folder / f"{PACE}.draft").replace(folder / PACE)


@pytest.mark.parametrize("end", ["withdrawn", "fault"])
def test_only_the_machine_that_is_to_die_comes_no_further(tmp_path: Path, end: str) -> None:
    stand, clock = Stand(tmp_path, {"model": nn.Linear(2, 2)}), FakeClock()
    stand.world = clock
    observer = stand.observer()
    observer.before_vote(2)
    for pace in (Pace(3, dying="m1"), Pace(4, dying="m0")):
        order(tmp_path, pace)
        observer.before_vote(2)
    order(tmp_path, Pace(3, dying="m0"))
    dying = clock.start(lambda: observer.before_vote(2), "dying")
    clock.until_waiting(1)
    assert (tmp_path / f"{AWAITS_KILL}w0").exists()
    if end == "withdrawn":
        order(tmp_path, Pace(9))
    else:
        stand.fabric.fault = object()
    clock.advance(1.0)
    dying.join(30)
    assert not dying.is_alive()


def test_a_worker_gets_an_observer_by_its_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    worker: Any = Stand(tmp_path)
    Extensions({EXTENSION: str(tmp_path)}, "extend_worker", worker, object())
    assert isinstance(worker.observer, ScriptObserver)


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    observer = Stand(tmp_path, {"model": nn.Linear(2, 2)}).observer()
    observer.at_boundary(0)
    with (tmp_path / "w0.jsonl").open("ab") as file:
        file.write(b'{"role": 0, "st')
    assert [observation.step for observation in read_observations(tmp_path)] == [0]
