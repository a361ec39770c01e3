"""A role's state goes to disk and comes back, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from understudy.state.checkpoint import KEPT, Saver, complete, load, place
from understudy.state.digest import digest
from understudy.state.errors import StateError
from understudy.state.inventory import take_inventory


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
    saver = Saver(tmp_path, 0, 1, complaints.append)
    saver.save(5, take_inventory(given))
    saver.wait()
    assert not complaints
    assert complete(tmp_path, 1) == [5]
    taken = parts(2, steps=rehearsed)
    load(tmp_path, 5, 0, taken)
    assert digest(take_inventory(taken)) == digest(take_inventory(given))


def test_training_may_go_on_while_it_is_written(tmp_path: Path) -> None:
    given = parts(1, steps=2)
    before = digest(take_inventory(given))
    saver = Saver(tmp_path, 0, 1, print)
    saver.save(2, take_inventory(given))
    for tensor in take_inventory(given).tensors:
        tensor.zero_()
    saver.wait()
    taken = parts(2)
    load(tmp_path, 2, 0, taken)
    assert digest(take_inventory(taken)) == before


def test_it_counts_when_all_roles_are_there_and_old_ones_go(tmp_path: Path) -> None:
    savers = [Saver(tmp_path, role, 2, pytest.fail) for role in range(2)]
    for step in range(1, 6):
        savers[0].save(step, take_inventory(parts(step)))
        savers[0].wait()
        assert step not in complete(tmp_path, 2)
        savers[1].save(step, take_inventory(parts(step)))
        savers[1].wait()
        assert complete(tmp_path, 2)[-1] == step
    assert len(complete(tmp_path, 2)) <= KEPT
    assert len(list(tmp_path.glob("step-*"))) <= KEPT + 1


def test_a_part_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    saver = Saver(tmp_path, 0, 1, print)
    saver.save(3, take_inventory(parts(1)))
    saver.wait()
    (place(tmp_path, 3, 0) / "done").unlink()
    assert complete(tmp_path, 1) == []


def test_a_damaged_one_is_named(tmp_path: Path) -> None:
    saver = Saver(tmp_path, 0, 1, print)
    saver.save(3, take_inventory(parts(1)))
    saver.wait()
    (place(tmp_path, 3, 0) / "note.json").write_text("{")
    with pytest.raises(StateError, match=r"step-00000003.*move it away"):
        load(tmp_path, 3, 0, parts(1))


def test_a_disk_that_cannot_be_written_does_not_end_training(tmp_path: Path) -> None:
    (tmp_path / "step-00000001").write_text("in the way")
    complaints: list[str] = []
    saver = Saver(tmp_path, 0, 1, complaints.append)
    saver.save(1, take_inventory(parts(1)))
    saver.wait()
    assert "step 1 could not be written" in complaints[0]
