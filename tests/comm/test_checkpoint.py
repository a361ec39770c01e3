"""torch.distributed.checkpoint: saved under one backend, loaded under the other, into the same shards or others."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.comm.scripts import Net, Outcome, batch, compare, in_turn, sharded

pytestmark = pytest.mark.usefixtures("frameworks")


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = sharded(Net(8, 7))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    loss = model(batch(number, dist.get_rank())).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.item())


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments}


def interrupted(folder: Path, asynchronous: bool) -> Outcome:
    """Two steps, a checkpoint, two more; then a new model goes on from the checkpoint, and comes to the same end."""
    outcome = Outcome()
    where = folder / f"{dist.get_backend()}-{asynchronous}"
    model, optimizer = fresh()
    outcome.losses += [step(model, optimizer, number) for number in (0, 1)]
    if asynchronous:
        beside = dist.new_group()
        assert isinstance(beside, dist.ProcessGroup)
        saving = state_dict_saver.async_save(state_of(model, optimizer), checkpoint_id=where, process_group=beside)
        assert isinstance(saving, Future)
        outcome.losses += [step(model, optimizer, number) for number in (2, 3)]
        saving.result()
    else:
        state_dict_saver.save(state_of(model, optimizer), checkpoint_id=where)
        outcome.losses += [step(model, optimizer, number) for number in (2, 3)]

    model, optimizer = fresh()
    state = state_of(model, optimizer)
    state_dict_loader.load(state, checkpoint_id=where)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    assert [step(model, optimizer, number) for number in (2, 3)] == outcome.losses[2:]
    outcome.keep_all(model.named_parameters())
    return outcome


def resharded(folder: Path) -> Outcome:
    """A tensor that was saved in rows is loaded in columns; a replicated value is loaded by every rank."""
    outcome, mesh = Outcome(), init_device_mesh("cpu", (dist.get_world_size(),))
    where = folder / f"{dist.get_backend()}-resharded"
    whole = torch.arange(35.0).view(7, 5)
    state_dict_saver.save(
        {"matrix": distribute_tensor(whole, mesh, [Shard(0)]), "plain": whole + 1, "number": 3}, checkpoint_id=where
    )
    state: dict[str, Any] = {
        "matrix": distribute_tensor(torch.zeros(7, 5), mesh, [Shard(1)]),
        "plain": torch.zeros(7, 5),
        "number": 0,
    }
    state_dict_loader.load(state, checkpoint_id=where)
    matrix = state["matrix"]
    assert isinstance(matrix, DTensor)
    assert torch.equal(matrix.full_tensor(), whole)
    assert state["number"] == 3
    outcome.keep("matrix", matrix)
    outcome.keep("plain", state["plain"])
    return outcome


def from_one_role() -> Outcome:
    """Only rank 0 has read the file; the others get their shards from it."""
    torch.manual_seed(1)
    weights: dict[str, Any] = {name: torch.randn_like(tensor) for name, tensor in Net(8, 7).state_dict().items()}
    model = sharded(Net(8, 7))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights if dist.get_rank() == 0 else {}, options=options)
    outcome = Outcome()
    outcome.keep_all(model.named_parameters())
    return outcome


def across(folder: Path) -> Outcome:
    """Gloo, which comes second, loads what the other has saved."""
    outcome = Outcome()
    where = folder / "across"
    state = {"weight": sharded(Net(8, 7)).state_dict()}
    if dist.get_backend() != "gloo":
        state_dict_saver.save(state, checkpoint_id=where)
    else:
        for tensor in state["weight"].values():
            tensor.detach().zero_()
        state_dict_loader.load(state, checkpoint_id=where)
    outcome.keep_all(state["weight"].items())
    return outcome


def everything(folder: Path) -> Outcome:
    def kept() -> Outcome:
        return interrupted(folder, asynchronous=False)

    def kept_in_the_background() -> Outcome:
        return interrupted(folder, asynchronous=True)

    def cut_otherwise() -> Outcome:
        return resharded(folder)

    def carried_over() -> Outcome:
        return across(folder)

    return in_turn(kept, kept_in_the_background, cut_otherwise, from_one_role, carried_over)


@pytest.mark.parametrize("machines", [[1, 1], [2]], ids=str)
def test_checkpoints_agree_with_gloo_to_the_last_bit(machines: list[int], tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    compare(everything, machines, tmp_path / "saved", scratch=tmp_path, exact=True)
