"""DeviceMesh, DTensor and tensor parallelism; alone and together with FSDP2."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from tests.comm.scripts import Net, Outcome, batch, compare, in_turn, sharded

pytestmark = pytest.mark.usefixtures("frameworks")
STEPS = 2


def train(model: nn.Module, data_rank: int) -> Outcome:
    outcome = Outcome()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        loss = model(batch(step, data_rank)).square().mean()
        loss.backward()
        whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
        outcome.losses.append(whole.item())
        grads = [(name, p.grad) for name, p in model.named_parameters()]
        outcome.keep_all((f"step {step} grad {name}", grad) for name, grad in grads if grad is not None)
        optimizer.step()
        optimizer.zero_grad()
    outcome.keep_all(model.named_parameters())
    return outcome


def tensor_parallel() -> Outcome:
    """The hidden layer is cut in two; its norm is computed on the whole of it."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {
        "inner": ColwiseParallel(output_layouts=Replicate()),
        "outer": RowwiseParallel(input_layouts=Replicate()),
    }
    return train(parallelize_module(Net(), mesh, plan), 0)


def sequence_parallel() -> Outcome:
    """Activations are cut along the sequence between the layers."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {
        "inner": ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(0)),
        "norm": SequenceParallel(sequence_dim=0),
        "outer": RowwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
        "": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(0),), use_local_output=True),
    }
    return train(parallelize_module(Net(), mesh, plan), 0)


def parallel_loss() -> Outcome:
    """Cross entropy over classes that no role has all of."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(
        Net(), mesh, {"outer": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    )
    outcome = Outcome()
    with loss_parallel():
        logits = model(batch(0, 0))
        loss = nn.functional.cross_entropy(logits, torch.tensor([0, 7, 3, 5]))
        torch.autograd.backward(loss)
    outcome.losses.append(loss.full_tensor().item() if isinstance(loss, DTensor) else loss.item())
    outcome.keep_all((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
    return outcome


def redistribution() -> Outcome:
    """From every placement to every other one, evenly and unevenly cut."""
    outcome, mesh = Outcome(), init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(11)
    for shape in ((4, 6), (5, 3), (1, 2)):
        whole = torch.randn(shape)
        for first in (Replicate(), Shard(0), Shard(1)):
            tensor = distribute_tensor(whole, mesh, [first])
            for second in (Replicate(), Shard(0), Shard(1)):
                moved = tensor.redistribute(mesh, [second])
                outcome.keep(f"{shape} {first} to {second}", moved)
                torch.testing.assert_close(moved.full_tensor(), whole, rtol=0, atol=0)
        part = DTensor.from_local(whole * (dist.get_rank() + 1), mesh, [Partial()])
        for second in (Replicate(), Shard(0), Shard(1)):
            outcome.keep(f"{shape} partial to {second}", part.redistribute(mesh, [second]))
        product = distribute_tensor(whole.t(), mesh, [Shard(0)]) @ part
        assert isinstance(product, DTensor)
        outcome.keep(f"{shape} product", product.full_tensor())
    return outcome


def meshes() -> Outcome:
    """Every way to come by a mesh, and a collective along each of its dimensions."""
    outcome, size = Outcome(), dist.get_world_size()
    flat = init_device_mesh("cpu", (size,), mesh_dim_names=("all",))
    wide = init_device_mesh("cpu", (1, size), mesh_dim_names=("one", "rest"))
    given = DeviceMesh.from_group(dist.new_group(), "cpu")
    for name, mesh in (("flat", flat), ("one", wide["one"]), ("rest", wide["rest"]), ("given", given)):
        value = torch.full((3,), float(dist.get_rank() + 1))
        dist.all_reduce(value, group=mesh.get_group())
        outcome.keep(name, value)
        outcome.losses.append(float(mesh.get_local_rank()))
    outcome.losses.append(float(wide["one", "rest"]._flatten("both").size()))
    return outcome


@pytest.mark.parametrize("machines", [[1, 1], [2]], ids=str)
def test_two_roles_agree_with_gloo_to_the_last_bit(machines: list[int], tmp_path: Path) -> None:
    scripts = (tensor_parallel, sequence_parallel, parallel_loss, redistribution, meshes)
    compare(in_turn, machines, *scripts, scratch=tmp_path, exact=True)


@pytest.mark.long
def test_three_roles_agree_with_gloo(tmp_path: Path) -> None:
    compare(in_turn, [2, 1], redistribution, meshes, scratch=tmp_path, exact=False)


def tensor_parallel_and_sharded() -> Outcome:
    """TP × FSDP: every collective is over two of the four roles."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {
        "inner": ColwiseParallel(output_layouts=Replicate()),
        "outer": RowwiseParallel(input_layouts=Replicate()),
    }
    model = sharded(parallelize_module(Net(), mesh["tp"], plan), mesh=mesh["dp"])
    outcome = train(model, mesh["dp"].get_local_rank())
    outcome.keep_all(
        (f"full {name}", p.full_tensor()) for name, p in model.named_parameters() if isinstance(p, DTensor)
    )
    return outcome


@pytest.mark.parametrize("machines", [[2, 2], pytest.param([1, 1, 1, 1], marks=pytest.mark.long)], ids=str)
def test_two_dimensions_agree_with_gloo_to_the_last_bit(machines: list[int], tmp_path: Path) -> None:
    compare(tensor_parallel_and_sharded, machines, scratch=tmp_path, exact=True)
