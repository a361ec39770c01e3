"""A copy holds the state of its step, independent of later changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from understudy.state.copy import Copy, Draft
from understudy.state.errors import StateError
from understudy.state.inventory import digest, take_inventory


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads of such small operations only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.outer = nn.Linear(5, 2)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("phase", torch.arange(4) + 1j)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.outer(torch.relu(self.norm(self.inner(x))))
        return result


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "rprop": lambda p: torch.optim.Rprop(p),
}


def made(optimizer: str = "adam", seed: int = 1) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = Net()
    optim = OPTIMIZERS[optimizer](model.parameters())
    return {"model": model, "optim": optim, "scheduler": torch.optim.lr_scheduler.StepLR(optim, 2, gamma=0.5)}


def backward(tracked: dict[str, Any]) -> None:
    tracked["model"](torch.randn(4, 6)).square().mean().backward()


def step(tracked: dict[str, Any], *, to_none: bool = True) -> None:
    backward(tracked)
    tracked["optim"].step()
    tracked["scheduler"].step()
    tracked["optim"].zero_grad(set_to_none=to_none)


def everything(tracked: dict[str, Any]) -> tuple[str, list[bytes | None]]:
    inventory = take_inventory(tracked)
    return digest(inventory), [None if g is None else g.numpy().tobytes() for _, g in inventory.gradients()]


def copied(tracked: dict[str, Any], at: int = 0, spare: Copy | None = None) -> Copy:
    return Draft(at, take_inventory(tracked), spare).finish()


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(OPTIMIZERS)),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_going_back(optimizer: str, before: int, after: int, to_none: bool, carried: bool, another: bool) -> None:
    """From any later state of the same objects, or into other objects, with any kind of gradient carried over."""
    tracked = made(optimizer)
    for _ in range(before):
        step(tracked, to_none=to_none)
    if carried:
        backward(tracked)
    kept, was = copied(tracked, before), everything(tracked)
    assert kept.step == before
    target = made(optimizer, seed=2) if another else tracked
    for _ in range(after):
        step(target)
    kept.restore(target)
    assert everything(target) == was
    torch.manual_seed(9)
    step(tracked)
    ahead = everything(tracked)
    kept.restore(target)
    torch.manual_seed(9)
    step(target)
    assert everything(target) == ahead, "it goes on as it did"


def test_what_a_step_changes_is_taken_at_once() -> None:
    """The rest is copied beside the step, up to its first optimizer."""
    tracked = made()
    step(tracked)
    backward(tracked)
    was = everything(tracked)
    draft = Draft(1, take_inventory(tracked))
    backward(tracked)
    tracked["optim"].param_groups[0]["lr"] = 5.0
    tracked["scheduler"].last_epoch = 77
    assert everything(tracked) != was
    kept = draft.finish()
    tracked["optim"].step()
    kept.restore(tracked)
    assert everything(tracked) == was


def test_memory_is_used_again() -> None:
    tracked = made()
    step(tracked)
    backward(tracked)
    first = copied(tracked, 1)
    places = {tensor.data_ptr() for tensor in (*first.tensors, *first.carried.values())}
    step(tracked, to_none=False)
    backward(tracked)
    was = everything(tracked)
    second = copied(tracked, 2, first)
    assert {tensor.data_ptr() for tensor in (*second.tensors, *second.carried.values())} == places
    second.restore(tracked)
    assert everything(tracked) == was


def test_memory_of_another_shape_is_not() -> None:
    """Adam's state is not there before its first step; what does not fit is made anew, what does is used."""
    tracked = made()
    first = copied(tracked)
    step(tracked)
    was = everything(tracked)
    second = copied(tracked, 1, first)
    assert len(second.tensors) > len(first.tensors)
    assert {t.data_ptr() for t in first.tensors} <= {t.data_ptr() for t in second.tensors}
    step(tracked)
    second.restore(tracked)
    assert everything(tracked) == was


def test_a_copy_shares_no_memory_with_what_is_tracked() -> None:
    tracked = made()
    step(tracked)
    backward(tracked)
    inventory = take_inventory(tracked)
    kept = copied(tracked)
    theirs = {t.data_ptr() for t in inventory.tensors} | {
        g.data_ptr() for _, g in inventory.gradients() if g is not None
    }
    assert not theirs & {t.data_ptr() for t in (*kept.tensors, *kept.carried.values())}
    assert kept.bytes >= sum(slot.bytes for slot in kept.slots)


def test_restoring_a_copy_keeps_the_addresses_of_tensors() -> None:
    tracked = made()
    step(tracked)
    kept = copied(tracked)
    places = [tensor.data_ptr() for tensor in take_inventory(tracked).tensors]
    step(tracked)
    kept.restore(tracked)
    assert [tensor.data_ptr() for tensor in take_inventory(tracked).tensors] == places


def test_bits_that_no_arithmetic_keeps() -> None:
    odd = torch.tensor([0x7FC12345, -0x80000000, 0x7F800001, 1], dtype=torch.int32).view(torch.float32)
    model = nn.Module()
    model.register_buffer("lazy", torch.view_as_complex(torch.randn(3, 2)).conj())
    model.register_buffer("across", torch.arange(6.0).view(2, 3).t())
    model.register_parameter("odd", nn.Parameter(odd))
    tracked = {"model": model}
    was = digest(take_inventory(tracked))
    kept = Draft(0, take_inventory(tracked)).finish()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    kept.restore(tracked)
    assert digest(take_inventory(tracked)) == was


def test_other_objects_are_refused() -> None:
    kept = copied(made())
    with pytest.raises(StateError, match="this worker has not"):
        kept.restore({"model": nn.Linear(2, 2)})
