"""DistributedDataParallel and ZeroRedundancyOptimizer, in the flavours people use."""

# Annotations are evaluated here: torch looks at those of communication hooks.

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType, GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from tests.comm.scripts import Net, Outcome, batch, compare, in_turn

pytestmark = pytest.mark.usefixtures("frameworks")
STEPS = 4


def wrapped(model: nn.Module, **options: Any) -> DistributedDataParallel:
    """Buckets so small that every step reduces several."""
    return DistributedDataParallel(model, bucket_cap_mb=0.0003, **options)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int = 1, width: int = 8) -> Outcome:
    outcome, rank = Outcome(), dist.get_rank()
    for step in range(STEPS):
        for micro in range(micro_batches):
            last = micro == micro_batches - 1
            with nullcontext() if last or not isinstance(model, DistributedDataParallel) else model.no_sync():
                loss = model(batch(step, 10 * rank + micro, width)).square().mean()
                loss.backward()
        outcome.losses.append(loss.item())
        outcome.keep_all(
            (f"step {step} grad {name}", p.grad) for name, p in model.named_parameters() if p.grad is not None
        )
        optimizer.step()
        optimizer.zero_grad()
    outcome.keep_all(model.named_parameters())
    outcome.keep_all(model.named_buffers())
    return outcome


def plain() -> Outcome:
    model = wrapped(Net())
    return train(model, torch.optim.AdamW(model.parameters(), lr=0.01))


def static_graph() -> Outcome:
    model = wrapped(Net(), static_graph=True, gradient_as_bucket_view=True)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def accumulation() -> Outcome:
    model = wrapped(Net())
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), micro_batches=3)


def unused_parameters() -> Outcome:
    """Even steps skip one layer, odd roles another."""

    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.first, self.second, self.common = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.turn = dist.get_rank()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.turn += 1
            result: torch.Tensor = self.common(self.first(x) if self.turn % 2 else self.second(x))
            return result

    model = wrapped(Fork(), find_unused_parameters=True)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def buffers() -> Outcome:
    """Running statistics are broadcast from rank 0 before every forward pass."""
    torch.manual_seed(5)
    model = wrapped(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)))
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def compressed(hook: Callable[..., Any]) -> Outcome:
    model = wrapped(Net())
    model.register_comm_hook(None, hook)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def bf16_compressed() -> Outcome:
    """By another name, since torch admits this hook by its name on GPUs only."""

    def narrow(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return default_hooks.bf16_compress_hook(state, bucket)

    return compressed(narrow)


def fp16_compressed() -> Outcome:
    return compressed(default_hooks.fp16_compress_hook)


def built_in_fp16() -> Outcome:
    """The hook in C++, which reads a list of tensors from the future."""
    model = wrapped(Net())
    model._register_builtin_comm_hook(BuiltinCommHookType.FP16_COMPRESS)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def own_hook() -> Outcome:
    """A hook as people write them: its own collective, and a chain of futures behind it."""

    def halve(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        assert work is not None
        chained: torch.futures.Future[torch.Tensor] = (
            work.get_future().then(lambda done: done.value()[0] * 2).then(lambda done: done.value() / 4)
        )
        return chained

    return compressed(halve)


def powersgd() -> Outcome:
    """A hook with callbacks that start collectives of their own and wait for them."""
    model = DistributedDataParallel(Net(32, 32))
    state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), width=32)


def uneven_inputs(by_initial: bool = True) -> Outcome:
    """Roles with more batches than others, under Join."""
    model, outcome, rank = wrapped(Net()), Outcome(), dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model], divide_by_initial_world_size=by_initial):
        for step in range(1 + 2 * rank):
            loss = model(batch(step, rank)).square().mean()
            loss.backward()
            outcome.losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    outcome.keep_all(model.named_parameters())
    return outcome


def uneven_inputs_of_present_roles() -> Outcome:
    """Gradients are divided by the number of roles that still have batches: a Work of DDP's forward pass tells it."""
    return uneven_inputs(by_initial=False)


def sparse_gradients() -> Outcome:
    """An embedding of which every role uses other rows."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.words, self.last = nn.Embedding(32, 8, sparse=True), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x.abs().mul(9).long() % 32
            result: torch.Tensor = self.last(self.words(rows).sum(1))
            return result

    model = DistributedDataParallel(Words())
    outcome = train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    outcome.tensors = {name: value.to_dense() for name, value in outcome.tensors.items()}
    return outcome


def zero_redundancy() -> Outcome:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # not above: to import it warns

    model = wrapped(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    outcome = train(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        for number, state in optimizer.state_dict()["state"].items():
            outcome.keep_all((f"{number} {name}", value) for name, value in state.items())
    return outcome


FULL_PRECISION = [
    plain,
    static_graph,
    accumulation,
    unused_parameters,
    buffers,
    own_hook,
    powersgd,
    uneven_inputs,
    uneven_inputs_of_present_roles,
    sparse_gradients,
    zero_redundancy,
]
COMPRESSED = [bf16_compressed, fp16_compressed, built_in_fp16]


@pytest.mark.parametrize("machines", [[1, 1], [2]], ids=str)
def test_two_roles_agree_with_gloo_to_the_last_bit(machines: list[int], tmp_path: Path) -> None:
    compare(in_turn, machines, *FULL_PRECISION, *COMPRESSED, scratch=tmp_path, exact=True)


def test_three_roles_agree_with_gloo(tmp_path: Path) -> None:
    """Not where gradients travel in half precision: Gloo rounds them at every hop."""
    compare(in_turn, [2, 1], *FULL_PRECISION, scratch=tmp_path, exact=False)
