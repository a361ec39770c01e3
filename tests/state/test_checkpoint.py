"""A role's state goes to disk and comes back, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from understudy.state.checkpoint import KEPT, CheckpointFolder
from understudy.state.errors import StateError
from understudy.state.inventory import digest, take_inventory


def parts(seed: int, steps: int = 0) -> dict[str, object]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optim, 2, 0.5)
    for _ in range(steps):
        model(torch.rand(4, 8)).sum().backward()
        optim.step()
        optim.zero_grad()
        schedule.step()
    return {"model": model, "optim": optim, "schedule": schedule}


@pytest.mark.parametrize("rehearsed", [0, 1])
def test_what_was_saved_is_loaded(tmp_path: Path, rehearsed: int) -> None:
    given = parts(1, steps=5)
    complaints: list[str] = []
    store = CheckpointFolder(tmp_path, 1, complaints.append)
    writer = store.writer(0)
    writer.save(5, take_inventory(given))
    writer.wait()
    assert not complaints
    assert store.complete() == [5]
    taken = parts(2, steps=rehearsed)
    store.load(5, 0, taken)
    assert digest(take_inventory(taken)) == digest(take_inventory(given))


def test_training_may_go_on_while_it_is_written(tmp_path: Path) -> None:
    given = parts(1, steps=2)
    before = digest(take_inventory(given))
    store = CheckpointFolder(tmp_path, 1, print)
    writer = store.writer(0)
    writer.save(2, take_inventory(given))
    for tensor in take_inventory(given).tensors:
        tensor.zero_()
    writer.wait()
    taken = parts(2)
    store.load(2, 0, taken)
    assert digest(take_inventory(taken)) == before


def test_a_checkpoint_is_complete_with_all_roles_and_old_ones_are_removed(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path, 2, pytest.fail)
    writers = [store.writer(role) for role in range(2)]
    for step in range(1, 6):
        writers[0].save(step, take_inventory(parts(step)))
        writers[0].wait()
        assert step not in store.complete()
        writers[1].save(step, take_inventory(parts(step)))
        writers[1].wait()
        assert store.complete()[-1] == step
    assert len(store.complete()) <= KEPT
    assert len(list(tmp_path.glob("step-*"))) <= KEPT + 1


def test_a_part_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path, 1, print)
    writer = store.writer(0)
    writer.save(3, take_inventory(parts(1)))
    writer.wait()
    (store.part(3, 0) / "done").unlink()
    assert store.complete() == []


def test_a_damaged_one_is_named(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path, 1, print)
    writer = store.writer(0)
    writer.save(3, take_inventory(parts(1)))
    writer.wait()
    (store.part(3, 0) / "note.json").write_text("{")
    with pytest.raises(StateError, match=r"step-00000003.*move it away"):
        store.load(3, 0, parts(1))


def test_a_disk_that_cannot_be_written_does_not_end_training(tmp_path: Path) -> None:
    (tmp_path / "step-00000001").write_text("in the way")
    complaints: list[str] = []
    store = CheckpointFolder(tmp_path, 1, complaints.append)
    writer = store.writer(0)
    writer.save(1, take_inventory(parts(1)))
    writer.wait()
    assert "step 1 could not be written" in complaints[0]
