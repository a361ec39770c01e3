"""A plain job's checkpoint, in both formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from understudy_bench.scripts.saved import load, save


@pytest.fixture
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optim = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optim.step()
        optim.zero_grad()
    return model, optim


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("dcp", [False, True], ids=["file", "dcp"])
def test_a_worker_that_starts_continues_from_the_last_checkpoint(tmp_path: Path, dcp: bool) -> None:
    place = tmp_path / "checkpoint"
    model, optim = trained(0)
    assert load(place, model, optim, dcp=dcp) == 0
    for steps in (2, 5):
        model, optim = trained(steps)
        save(place, model, optim, steps, dcp=dcp)
    other, its = trained(1)
    assert load(place, other, its, dcp=dcp) == 5
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    for mine, theirs in zip(optim.state.values(), its.state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], theirs["exp_avg"])
        assert float(mine["step"]) == float(theirs["step"])
    assert len(list(tmp_path.iterdir())) == (2 if dcp else 1)
