from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import StepLR

from understudy.state.undo import Undo


class Net(nn.Module):
    """Batch norm has buffers that a forward pass changes; `idle` never gets a gradient."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.idle = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.norm(self.layer(x))
        return out


def compute(net: Net, seed: int = 5) -> None:
    """What a step does before its vote."""
    generator = torch.Generator().manual_seed(seed)
    net(torch.randn(6, 3, generator=generator)).pow(2).sum().backward()


def snapshot(net: Net) -> dict[str, Any]:
    tensors = dict(net.state_dict()) | {f"{name}.grad": p.grad for name, p in net.named_parameters()}
    return {name: None if tensor is None else tensor.detach().clone() for name, tensor in tensors.items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        (one[name] is None and other[name] is None)
        or (one[name] is not None and other[name] is not None and torch.equal(one[name], other[name]))
        for name in one
    )


@pytest.fixture
def net() -> Net:
    return Net()


def test_buffers_are_as_they_were_and_keep_their_memory(net: Net) -> None:
    undo = Undo({"net": net})
    places = [buffer.data_ptr() for buffer in net.buffers()]
    undo.remember()
    before = snapshot(net)
    compute(net)
    assert not same(snapshot(net), before)
    undo.restore()
    assert same(snapshot(net), before)
    assert [buffer.data_ptr() for buffer in net.buffers()] == places


def test_a_repeated_step_is_bit_identical_to_an_undisturbed_one(net: Net) -> None:
    other = Net()
    optim, twin = (torch.optim.AdamW(each.parameters(), lr=0.1) for each in (net, other))
    undo = Undo({"net": net, "optim": optim})
    for step in range(5):
        twin.zero_grad()
        compute(other, step)
        twin.step()
        undo.remember()
        for _ in range(step % 3):
            optim.zero_grad()
            compute(net, step)
            undo.restore()
        optim.zero_grad()
        compute(net, step)
        optim.step()
    assert same(snapshot(net), snapshot(other))


def test_a_step_can_be_undone_several_times_and_remembered_anew(net: Net) -> None:
    undo = Undo({"net": net})
    undo.remember()
    before = snapshot(net)
    for seed in range(3):
        compute(net, seed)
        undo.restore()
        assert same(snapshot(net), before)
    undo.restore()
    assert same(snapshot(net), before)
    compute(net)
    undo.remember()
    later = snapshot(net)
    compute(net)
    undo.restore()
    assert same(snapshot(net), later)


def _none(net: Net) -> None:
    for parameter in net.parameters():
        parameter.grad = None


def _zero(net: Net) -> None:
    compute(net)
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def _carried(net: Net) -> None:
    compute(net, 9)


def _mixed(net: Net) -> None:
    compute(net, 9)
    net.norm.weight.grad = None
    assert net.layer.bias.grad is not None
    net.layer.bias.grad.zero_()


GRADIENTS = [_none, _zero, _carried, _mixed]


def _again(net: Net) -> None:
    compute(net)


def _anew(net: Net) -> None:
    """`zero_grad` sets them to none, so the backward pass makes others."""
    net.zero_grad(set_to_none=True)
    compute(net)


def _dropped(net: Net) -> None:
    """The failure came between `zero_grad` and the backward pass."""
    net.zero_grad(set_to_none=True)


def _zeroed(net: Net) -> None:
    net.zero_grad(set_to_none=False)
    compute(net)


@pytest.mark.parametrize("then", [_again, _anew, _dropped, _zeroed])
@pytest.mark.parametrize("at_first", GRADIENTS)
def test_gradients_are_as_they_were(net: Net, at_first: Callable[[Net], None], then: Callable[[Net], None]) -> None:
    at_first(net)
    undo = Undo({"net": net})
    undo.remember()
    before = snapshot(net)
    then(net)
    undo.restore()
    assert same(snapshot(net), before)


def test_gradients_of_parameters_that_only_an_optimizer_knows() -> None:
    loose = torch.ones(3, requires_grad=True)
    optim = torch.optim.SGD([loose], lr=0.1)
    undo = Undo({"optim": optim})
    undo.remember()
    loose.sum().backward()
    undo.restore()
    assert loose.grad is None


def test_a_gradient_that_is_not_a_number_is_not_taken_for_zero(net: Net) -> None:
    compute(net)
    grad = net.layer.weight.grad
    assert grad is not None
    grad.fill_(torch.nan)
    undo = Undo({"net": net})
    undo.remember()
    net.zero_grad(set_to_none=True)
    compute(net)
    undo.restore()
    assert net.layer.weight.grad is not None
    assert bool(net.layer.weight.grad.isnan().all())


def test_hyper_parameters_are_as_they_were(net: Net) -> None:
    groups: list[dict[str, Any]] = [
        {"params": [*net.layer.parameters()], "lr": 0.5},
        {"params": [*net.norm.parameters()]},
    ]
    optim = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    undo = Undo({"net": net, "optim": optim})
    undo.remember()
    optim.param_groups[0]["lr"] = 7.0
    optim.param_groups[1]["momentum"] = 0.0
    optim.param_groups[1]["warm"] = True
    undo.restore()
    assert [group["lr"] for group in optim.param_groups] == [0.5, 0.1]
    assert [group["momentum"] for group in optim.param_groups] == [0.9, 0.9]
    assert "warm" not in optim.param_groups[1]


def test_a_group_that_a_step_has_added_goes(net: Net) -> None:
    optim = torch.optim.SGD(net.layer.parameters(), lr=0.1)
    undo = Undo({"net": net, "optim": optim})
    undo.remember()
    optim.add_param_group({"params": [*net.norm.parameters()], "lr": 0.5})
    undo.restore()
    assert [group["lr"] for group in optim.param_groups] == [0.1]
    optim.add_param_group({"params": [*net.norm.parameters()], "lr": 0.5})  # as the repeated step does


def test_hyper_parameters_that_are_tensors_and_change_in_place(net: Net) -> None:
    optim = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.5))
    rate = optim.param_groups[0]["lr"]
    undo = Undo({"net": net, "optim": optim})
    undo.remember()
    rate.mul_(0.1)
    undo.restore()
    assert float(optim.param_groups[0]["lr"]) == pytest.approx(0.5)
    assert optim.param_groups[0]["lr"] is rate  # a captured graph or a compiled step reads this very tensor


def test_lists_among_the_hyper_parameters(net: Net) -> None:
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    optim.param_groups[0]["history"] = [1]
    undo = Undo({"net": net, "optim": optim})
    undo.remember()
    optim.param_groups[0]["history"].append(2)
    undo.restore()
    assert optim.param_groups[0]["history"] == [1]


def test_a_scheduler_that_was_stepped_too_early(net: Net) -> None:
    optim = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = StepLR(optim, step_size=1, gamma=0.5)
    optim.step()
    undo = Undo({"net": net, "optim": optim, "scheduler": scheduler})
    undo.remember()
    before = scheduler.state_dict()["last_epoch"], optim.param_groups[0]["lr"]
    for _ in range(2):
        scheduler.step()
    assert optim.param_groups[0]["lr"] == pytest.approx(0.25)
    undo.restore()
    assert (scheduler.state_dict()["last_epoch"], optim.param_groups[0]["lr"]) == before
    scheduler.step()
    assert optim.param_groups[0]["lr"] == pytest.approx(0.5)


def test_a_scaler_that_has_unscaled_can_do_so_again(net: Net) -> None:
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=8.0)
    undo = Undo({"net": net, "optim": optim, "scaler": scaler})
    undo.remember()
    grads = []
    for _ in range(2):
        optim.zero_grad()
        scaler.scale(net(torch.ones(6, 3)).pow(2).sum()).backward()
        scaler.unscale_(optim)
        assert net.layer.weight.grad is not None
        grads.append(net.layer.weight.grad.clone())
        undo.restore()
    assert torch.equal(*grads)
    assert scaler.get_scale() == 8.0


class Counter:
    """Anything with a state; what it hands out is its own."""

    def __init__(self) -> None:
        self.seen = [0]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_other_things_are_kept_apart_from_what_is_remembered() -> None:
    counter = Counter()
    undo = Undo({"counter": counter})
    undo.remember()
    for _ in range(3):
        counter.seen.append(1)
        undo.restore()
        assert counter.seen == [0]


def test_a_buffer_that_was_replaced_is_remembered_anew(net: Net) -> None:
    """`half()` and `reset_running_stats` of some modules assign new buffers."""
    undo = Undo({"net": net})
    undo.remember()
    net.calls = torch.full((), 7)
    undo.remember()
    compute(net)
    undo.restore()
    assert int(net.calls) == 7


def test_a_buffer_that_is_replaced_within_the_step(net: Net) -> None:
    undo = Undo({"net": net})
    undo.remember()
    net.calls = net.calls + 5
    undo.restore()
    assert int(net.calls) == 0


def test_nothing_at_all() -> None:
    undo = Undo({})
    undo.remember()
    undo.restore()


def test_a_disabled_scaler_is_as_it_was(net: Net) -> None:
    scaler = GradScaler("cpu", enabled=False)
    undo = Undo({"net": net, "scaler": scaler})
    undo.remember()
    compute(net)
    undo.restore()
    assert scaler.state_dict() == {}
