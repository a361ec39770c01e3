"""Functional collectives, eager and inside torch.compile; compiled models of every kind of parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.comm.scripts import Net, Outcome, batch, compare, in_turn, sharded

pytestmark = [pytest.mark.usefixtures("frameworks"), pytest.mark.timeout(240)]


def compiled(body: Any, *, fullgraph: bool = True) -> Any:
    """Under Gloo the same code runs as it is: it is there to say what must come out, and compiling takes long."""
    if dist.get_backend() == "gloo":
        return body
    torch._dynamo.reset()
    return torch.compile(body, backend="aot_eager", fullgraph=fullgraph)


def value() -> torch.Tensor:
    return batch(0, dist.get_rank(), rows=6 * dist.get_world_size())


def every_collective(x: torch.Tensor, group: Any) -> list[torch.Tensor]:
    size = dist.get_world_size()
    results: list[Any] = [
        functional.all_reduce(x, "sum", group),
        functional.all_reduce(x, "max", group),
        functional.all_gather_tensor(x, 0, group),
        functional.all_gather_tensor(x, 1, group),
        functional.reduce_scatter_tensor(x, "sum", 0, group),
        functional.reduce_scatter_tensor(x.t().contiguous(), "sum", 1, group),
        functional.broadcast(x, 1, group),
        functional.all_to_all_single(x, None, None, group),
        functional.all_to_all_single(x, [6] * size, [6] * size, group),
        *functional.all_reduce_coalesced([x, x[0]], "sum", group),
        *functional.all_gather_into_tensor_coalesced([x, x[0]], group),
        *functional.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group),
    ]
    return [functional.wait_tensor(result) * 2 for result in results]


def functional_eager() -> Outcome:
    outcome = Outcome()
    outcome.keep_all((f"{i}", result) for i, result in enumerate(every_collective(value(), dist.group.WORLD)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    outcome.keep("along a mesh", functional.wait_tensor(functional.all_reduce(value(), "sum", (mesh, 0))))
    return outcome


def functional_compiled() -> Outcome:
    outcome = Outcome()
    results = compiled(every_collective)(value(), dist.group.WORLD)
    outcome.keep_all((f"{i}", result) for i, result in enumerate(results))
    return outcome


def plain_calls_compiled() -> Outcome:
    """torch.distributed's ordinary functions, which torch.compile replaces by functional ones."""

    def body(x: torch.Tensor) -> list[torch.Tensor]:
        total = x + 1
        dist.all_reduce(total)
        gathered = torch.empty(dist.get_world_size() * x.shape[0], x.shape[1])
        dist.all_gather_single(gathered, x)
        part = torch.empty(x.shape[0] // dist.get_world_size(), x.shape[1])
        dist.reduce_scatter_single(part, x)
        swapped = torch.empty_like(x)
        dist.all_to_all_single(swapped, x)
        return [total * 2, gathered + 1, part - 1, swapped]

    outcome = Outcome()
    outcome.keep_all((f"{i}", result) for i, result in enumerate(compiled(body)(value())))
    return outcome


def broken_graphs() -> Outcome:
    """What no graph can hold runs between graphs, and torch.compile does not look into it."""

    def body(x: torch.Tensor) -> torch.Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        start = x * 2
        dist.broadcast(start, 1)
        dist.barrier()
        sending = dist.isend(start + rank, (rank + 1) % size)
        got = torch.empty_like(start)
        dist.recv(got, (rank - 1) % size)
        assert sending is not None
        sending.wait()
        outs = [torch.empty_like(got) for _ in range(size)]
        dist.all_gather(outs, got.sin())
        handle = dist.all_reduce(outs[0], async_op=True)
        assert handle is not None
        handle.wait()
        return torch.stack(outs).cos()

    outcome = Outcome()
    outcome.keep("result", compiled(body, fullgraph=False)(value()))
    return outcome


def gradients_through_collectives() -> Outcome:
    outcome, group = Outcome(), dist.distributed_c10d._get_default_group()

    def body(x: torch.Tensor) -> torch.Tensor:
        gathered = functional.all_gather_tensor_autograd(x * 2, 0, group)
        part = functional.reduce_scatter_tensor_autograd(gathered.square(), "sum", 0, group)
        swapped = functional.all_to_all_single_autograd(part, None, None, group)
        return swapped.sin().sum()

    for name, run in (("eager", body), ("compiled", compiled(body))):
        x = value().requires_grad_()
        loss = run(x)
        loss.backward()
        outcome.losses.append(loss.item())
        assert x.grad is not None
        outcome.keep(f"{name} grad", x.grad)
    x = value().requires_grad_()
    loss = torch.stack(differentiable.all_gather(differentiable.all_reduce(x.clone()) * x)).sum()
    loss.backward()
    assert x.grad is not None
    outcome.keep("differentiable grad", x.grad)
    return outcome


def train(model: nn.Module, parameters: list[nn.Parameter]) -> Outcome:
    outcome, optimizer = Outcome(), torch.optim.SGD(parameters, lr=0.1)
    for step in range(2):
        loss = model(batch(step, dist.get_rank())).square().mean()
        loss.backward()
        outcome.losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    outcome.keep_all((f"{i}", p) for i, p in enumerate(parameters))
    return outcome


def compiled_inside_ddp() -> Outcome:
    model = DistributedDataParallel(compiled(Net()))
    return train(model, list(model.parameters()))


def compiled_ddp() -> Outcome:
    """Compiled from outside: DDP calls the group while torch.compile watches."""
    model = DistributedDataParallel(Net())
    return train(compiled(model, fullgraph=False), list(model.parameters()))


def compiled_fsdp() -> Outcome:
    model = sharded(Net())
    return train(compiled(model, fullgraph=False), list(model.parameters()))


def compiled_tensor_parallel() -> Outcome:
    plan = {"inner": ColwiseParallel(output_layouts=Replicate()), "outer": RowwiseParallel(input_layouts=Replicate())}
    model = parallelize_module(Net(), init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    return train(compiled(model), list(model.parameters()))


@pytest.mark.parametrize("machines", [[1, 1], [2]], ids=str)
def test_functional_collectives_agree_with_gloo_to_the_last_bit(machines: list[int], tmp_path: Path) -> None:
    compare(functional_eager, machines, scratch=tmp_path, exact=True)


@pytest.mark.long
def test_functional_collectives_of_three_roles_agree_with_gloo(tmp_path: Path) -> None:
    compare(functional_eager, [2, 1], scratch=tmp_path, exact=False)


@pytest.mark.long
def test_compiled_collectives_agree_with_gloo_to_the_last_bit(tmp_path: Path) -> None:
    scripts = (functional_compiled, plain_calls_compiled, broken_graphs, gradients_through_collectives)
    compare(in_turn, [1, 1], *scripts, scratch=tmp_path, exact=True)


def test_compiled_models_agree_with_gloo_to_the_last_bit(tmp_path: Path) -> None:
    scripts = (compiled_inside_ddp, compiled_ddp, compiled_fsdp, compiled_tensor_parallel)
    compare(in_turn, [2], *scripts, scratch=tmp_path, exact=True)
