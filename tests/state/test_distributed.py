"""State of DDP, FSDP2, tensor parallelism and ZeRO, in worker processes under understudy's own groups."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from understudy.comm.group import install, uninstall
from understudy.state.errors import StateError
from understudy.state.inventory import digest, grow, take_inventory
from understudy.state.kinds import Tracked
from understudy.state.memory import Slot
from understudy.state.twins import twins
from understudy.testing.local_workers import LocalWorker, run_workers


def played(script: Callable[[], Any], roles: int) -> list[Any]:
    """What the script returns on each role."""
    return run_workers(_installed, [roles], script, timeout=90.0, limit=30.0)


def _installed(worker: LocalWorker, script: Callable[[], Any]) -> Any:
    warnings.simplefilter("ignore")
    roster = worker.fabric.roster
    assert roster is not None
    install(worker.fabric, len(roster.seats))
    try:
        return script()
    finally:
        uninstall()


class Net(nn.Module):
    def __init__(self, seed: int = 7) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = nn.Linear(8, 15)
        self.outer = nn.Linear(15, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.outer(torch.relu(self.inner(x)))
        return result


def loss_of(model: nn.Module, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
    loss: torch.Tensor = model(torch.randn(4, 8, generator=generator)).square().mean()
    return loss


def step(model: nn.Module, optim: torch.optim.Optimizer, number: int) -> float:
    loss = loss_of(model, number)
    loss.backward()
    optim.step()
    optim.zero_grad()
    return loss.item()


def handed_over(giver: Tracked, joiner: Tracked) -> None:
    source = take_inventory(giver)
    target = grow(joiner, source.slots)
    for old, new in zip(target.tensors, source.tensors, strict=True):
        old.copy_(new)
    target.restore_rest(source.rest())
    assert digest(take_inventory(joiner)) == digest(source)


# -- FSDP2 -------------------------------------------------------------------------------------------------------------


def fsdp(seed: int = 7, **options: Any) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard

    model = Net(seed)
    fully_shard(model.inner, **options)
    fully_shard(model, **options)
    return {"model": model, "optim": torch.optim.AdamW(model.parameters())}


def shards_stay_in_place() -> None:
    """Between two optimizer steps the sharded tensors neither move nor change, whatever forward and backward do."""
    for tracked in (fsdp(), fsdp(reshard_after_forward=False)):
        model, optim = tracked["model"], tracked["optim"]
        step(model, optim, 0)
        places = [tensor.data_ptr() for tensor in take_inventory(tracked).tensors]
        for number in range(1, 3):
            inventory = take_inventory(tracked)
            assert [tensor.data_ptr() for tensor in inventory.tensors] == places
            before = [tensor.clone() for tensor in inventory.tensors]
            loss = loss_of(model, number)
            assert all(map(torch.equal, before, inventory.tensors)), "changed by forward"
            loss.backward()
            assert all(map(torch.equal, before, inventory.tensors)), "changed by backward"
            grads = inventory.gradients()
            assert [name for name, _ in grads] == [f"model.{name}" for name, _ in model.named_parameters()]
            for (_, grad), parameter in zip(grads, model.parameters(), strict=True):
                assert grad is not None
                assert grad.data_ptr() == parameter.grad.to_local().data_ptr()
            optim.step()
            optim.zero_grad()
            assert not all(map(torch.equal, before, inventory.tensors)), "the step does not reach this memory"


def whole_after_evaluation() -> None:
    """A root module stays unsharded after a forward without backward; an inventory is of shards all the same."""
    tracked = fsdp()
    model, optim = tracked["model"], tracked["optim"]
    step(model, optim, 0)
    first = take_inventory(tracked)
    with torch.no_grad():
        loss_of(model, 1)
    assert not all(hasattr(parameter, "to_local") for parameter in model.parameters())
    second = take_inventory(tracked)
    assert second.slots == first.slots
    assert digest(second) == digest(first)
    step(model, optim, 2)


def fsdp_joiner_goes_on() -> None:
    giver = fsdp()
    for number in range(2):
        step(giver["model"], giver["optim"], number)
    for rehearsed in (0, 1):
        joiner = fsdp(seed=8)
        for number in range(rehearsed):
            step(joiner["model"], joiner["optim"], number)
        handed_over(giver, joiner)
        moment = next(iter(joiner["optim"].state.values()))["exp_avg"]
        assert moment.placements == next(iter(joiner["model"].parameters())).placements
        copied = fsdp(seed=9)
        handed_over(joiner, copied)
        losses = [[step(worker["model"], worker["optim"], number) for number in (5, 6)] for worker in (joiner, copied)]
        assert losses[0] == losses[1]
        assert digest(take_inventory(joiner)) == digest(take_inventory(copied))
    odd = Slot("optim[0][0].odd", (3, 3), "float32", 36)
    with pytest.raises(StateError, match=r"optim\[0\]\[0\]\.odd: shape \[3, 3\] at the giver"):
        grow(giver, [*take_inventory(giver).slots, odd])


def in_turn_fsdp() -> frozenset[int]:
    shards_stay_in_place()
    whole_after_evaluation()
    fsdp_joiner_goes_on()
    return twins(fsdp())


def test_fsdp2_on_two_roles() -> None:
    assert played(in_turn_fsdp, 2) == [{0}, {1}]


# -- DDP, ZeRO ---------------------------------------------------------------------------------------------------------


def ddp(model: nn.Module, **options: Any) -> dict[str, Any]:
    wrapped = nn.parallel.DistributedDataParallel(model, **options)
    optim = torch.optim.AdamW(wrapped.parameters())
    sched = torch.optim.lr_scheduler.StepLR(optim, 1)
    return {"model": wrapped, "optim": optim, "sched": sched, "scaler": torch.amp.GradScaler("cpu", enabled=False)}


def zero(seed: int) -> dict[str, Any]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(Net(seed))
    return {"model": model, "optim": ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)}


def zero_joiner_goes_on() -> None:
    giver, joiner = zero(7), zero(8)
    for number in range(2):
        step(giver["model"], giver["optim"], number)
    giver["optim"].param_groups[0]["lr"] = 0.02
    assert any(".optim[0][0].exp_avg" in slot.name for slot in take_inventory(giver).slots)
    handed_over(giver, joiner)
    losses = [[step(worker["model"], worker["optim"], number) for number in (5, 6)] for worker in (giver, joiner)]
    assert losses[0] == losses[1]
    assert digest(take_inventory(giver)) == digest(take_inventory(joiner))


class Loader:
    def state_dict(self) -> int:
        return 1

    def load_state_dict(self, state: int) -> None:
        pass


def roles_with_the_same_items() -> dict[str, frozenset[int]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    halves = mesh["dp"].get_group()
    replicated = Net()
    fully_shard(replicated, mesh=mesh)
    with_table = Net()
    with_table.register_buffer("table", torch.ones(2))
    fully_shard(with_table, mesh=mesh)
    parallel = Net()
    parallelize_module(parallel, mesh["tp"], {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
    trained = ddp(Net())
    step(trained["model"], trained["optim"], 0)
    zero_joiner_goes_on()
    return {
        "ddp": twins(trained),
        "ddp of some": twins(ddp(Net(), process_group=halves)),
        "within": twins({"model": nn.Sequential(nn.parallel.DistributedDataParallel(Net(), process_group=halves))}),
        "statistics": twins(ddp(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))),
        "plain": twins({"model": Net()}),
        "beside": twins({**ddp(Net()), "other": nn.Linear(1, 1)}),
        "loader": twins({**ddp(Net()), "loader": Loader()}),
        "hsdp": twins({"model": replicated, "optim": torch.optim.SGD(replicated.parameters())}),
        "hsdp with a plain buffer": twins({"model": with_table}),
        "tp": twins({"model": parallel}),
        "zero": twins(zero(7)),
        "nothing": twins({}),
    }


def test_twins_on_four_roles() -> None:
    for role, found in enumerate(played(roles_with_the_same_items, 4)):
        all_ranks = {0, 1, 2, 3}
        column = {role % 2, role % 2 + 2}
        assert found == {
            "ddp": all_ranks,
            "ddp of some": column,
            "within": column,
            "statistics": {role},
            "plain": {role},
            "beside": {role},
            "loader": {role},
            "hsdp": column,
            "hsdp with a plain buffer": {role},
            "tp": {role},
            "zero": {role},
            "nothing": {role},
        }


def test_without_torch_distributed_there_is_only_this_worker() -> None:
    assert twins({"model": Net()}) == {0}
