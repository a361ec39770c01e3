"""torch.distributed.pipelining: schedules that pass activations and gradients from stage to stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from tests.comm.scripts import Net, Outcome, batch, compare, in_turn, sharded

pytestmark = pytest.mark.usefixtures("frameworks")
STEPS, MICRO_BATCHES, ROWS = 2, 4, 12
CPU = torch.device("cpu")


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def layer(number: int) -> nn.Module:
    torch.manual_seed(20 + number)
    return nn.Sequential(nn.Linear(8, 8), Net(8, 16))


def train(schedule: Any, parts: list[nn.Module], first: bool, last: bool, data_rank: int = 0) -> Outcome:
    outcome = Outcome()
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)
    for step in range(STEPS):
        losses: list[torch.Tensor] = []
        inputs = (batch(step, data_rank, rows=ROWS),) if first else ()
        result = schedule.step(
            *inputs, **({"target": batch(50 + step, 0, rows=ROWS), "losses": losses} if last else {})
        )
        if last:
            outcome.losses += [loss.item() for loss in losses]
            outcome.keep(f"step {step} output", result)
        for number, part in enumerate(parts):
            grads = [(name, p.grad) for name, p in part.named_parameters()]
            outcome.keep_all((f"step {step} grad {number} {name}", grad) for name, grad in grads if grad is not None)
        optimizer.step()
        optimizer.zero_grad()
    for number, part in enumerate(parts):
        outcome.keep_all((f"{number} {name}", p) for name, p in part.named_parameters())
    return outcome


def one_stage_per_role(kind: Any) -> Outcome:
    rank, size = dist.get_rank(), dist.get_world_size()
    part = layer(rank)
    schedule = kind(PipelineStage(part, rank, size, CPU), MICRO_BATCHES, loss_fn=loss_of)
    return train(schedule, [part], rank == 0, rank == size - 1)


def gpipe() -> Outcome:
    return one_stage_per_role(ScheduleGPipe)


def one_forward_one_backward() -> Outcome:
    return one_stage_per_role(Schedule1F1B)


def interleaved() -> Outcome:
    """Two stages per role: the pipeline goes round twice."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [layer(rank), layer(rank + size)]
    stages: list[Any] = [PipelineStage(part, rank + turn * size, 2 * size, CPU) for turn, part in enumerate(parts)]
    schedule = ScheduleInterleaved1F1B(stages, 2 * size, loss_fn=loss_of)
    return train(schedule, parts, rank == 0, rank == size - 1)


@pytest.mark.parametrize("machines", [[1, 1], [2], [2, 1]], ids=str)
def test_pipelines_agree_with_gloo_to_the_last_bit(machines: list[int], tmp_path: Path) -> None:
    """Whatever their number: nothing is summed between stages."""
    compare(in_turn, machines, gpipe, one_forward_one_backward, interleaved, scratch=tmp_path, exact=True)


def replicated() -> Outcome:
    """Two pipelines of two stages, each stage's parameters sharded over the pipelines."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    dp, pp = mesh["dp"].get_local_rank(), mesh["pp"].get_local_rank()
    part = sharded(layer(pp), mesh=mesh["dp"])
    stage = PipelineStage(part, pp, 2, CPU, group=mesh["pp"].get_group())
    return train(ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=loss_of), [part], pp == 0, pp == 1, dp)


@pytest.mark.parametrize("machines", [[2, 2], pytest.param([1, 1, 1, 1], marks=pytest.mark.long)], ids=str)
def test_replicated_pipelines_agree_with_gloo_to_the_last_bit(machines: list[int], tmp_path: Path) -> None:
    compare(replicated, machines, scratch=tmp_path, exact=True)
