"""FSDP2: fully_shard over one dimension, and over two (sharded within, replicated across)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from tests.comm.scripts import Net, Outcome, batch, compare, in_turn, sharded

pytestmark = pytest.mark.usefixtures("frameworks")
STEPS = 3


def blocks() -> nn.Module:
    """Seven rows do not divide evenly: shards are padded."""
    torch.manual_seed(2)
    return nn.Sequential(Net(8, 7), nn.Linear(8, 8))


def shard(model: nn.Module, **options: Any) -> nn.Module:
    for block in model.children():
        sharded(block, **options)
    return sharded(model, **options)


def train(
    model: nn.Module, micro_batches: int = 1, clip: float | None = None, optim: Callable[..., Any] = torch.optim.SGD
) -> Outcome:
    assert isinstance(model, FSDPModule)
    outcome, rank = Outcome(), dist.get_rank()
    optimizer = optim(model.parameters(), lr=0.01)
    for step in range(STEPS):
        for micro in range(micro_batches):
            model.set_requires_gradient_sync(micro == micro_batches - 1)
            loss = model(batch(step, 10 * rank + micro)).float().square().mean()
            loss.backward()
        outcome.losses.append(loss.item())
        grads = [(name, p.grad) for name, p in model.named_parameters()]
        outcome.keep_all((f"step {step} grad {name}", grad) for name, grad in grads if grad is not None)
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
            outcome.keep(f"step {step} norm", norm.full_tensor() if isinstance(norm, DTensor) else norm)
        optimizer.step()
        optimizer.zero_grad()
    outcome.keep_all(model.named_parameters())
    whole = StateDictOptions(full_state_dict=True)
    weights: dict[str, Any] = get_model_state_dict(model, options=whole)
    outcome.keep_all((f"full {name}", value) for name, value in weights.items())
    moments: Any = get_optimizer_state_dict(model, optimizer, options=whole)
    for name, state in moments.get("state", {}).items():
        outcome.keep_all((f"full {name} {key}", value) for key, value in state.items())
    return outcome


def plain() -> Outcome:
    return train(shard(blocks()), optim=torch.optim.AdamW)


def kept_after_forward() -> Outcome:
    return train(shard(blocks(), reshard_after_forward=False), micro_batches=3)


def clipped() -> Outcome:
    return train(shard(blocks()), clip=0.1)


def mixed_precision() -> Outcome:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    return train(shard(blocks(), mp_policy=policy))


def reduced_in_half_precision() -> Outcome:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return train(shard(blocks(), mp_policy=policy))


def offloaded() -> Outcome:
    return train(shard(blocks(), offload_policy=CPUOffloadPolicy(pin_memory=False)))


FLAVOURS = [plain, kept_after_forward, clipped, mixed_precision, reduced_in_half_precision, offloaded]


@pytest.mark.parametrize("machines", [[1, 1], [2]], ids=str)
def test_two_roles_agree_with_gloo_to_the_last_bit(machines: list[int], tmp_path: Path) -> None:
    compare(in_turn, machines, *FLAVOURS, scratch=tmp_path, exact=True)


def hybrid() -> Outcome:
    """Every reduction is over two roles: the order of a sum of two does not matter."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    assert mesh["shard"].size() == 2
    return train(shard(blocks(), mesh=mesh))


@pytest.mark.parametrize("machines", [[2, 2], [4]], ids=str)
def test_hybrid_sharding_agrees_with_gloo_to_the_last_bit(machines: list[int], tmp_path: Path) -> None:
    compare(hybrid, machines, scratch=tmp_path, exact=True)


@pytest.mark.long
def test_three_roles_agree_with_gloo(tmp_path: Path) -> None:
    compare(plain, [2, 1], scratch=tmp_path, exact=False)
