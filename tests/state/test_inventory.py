"""Tracked items as slots and a rest, and a joiner that continues from them like the giver."""

from __future__ import annotations

import copy
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from understudy.state.errors import StateError
from understudy.state.inventory import Inventory, digest, grow, take_inventory
from understudy.state.kinds import Tracked
from understudy.state.memory import Slot
from understudy.state.stream import give, take

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 6)
        self.norm = nn.BatchNorm1d(6)
        self.outer = nn.Linear(6, width)
        self.tied = self.inner.weight
        self.register_buffer("table", torch.arange(5.0), persistent=False)
        self.register_buffer("spread", torch.ones(1).expand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.outer(self.norm(torch.relu(self.inner(x))))
        return result


def train(tracked: Tracked, steps: int, seed: int) -> list[float]:
    """A few steps with everything that is tracked under the usual names."""
    model, optim, sched = tracked["model"], tracked["optim"], tracked.get("sched")
    assert isinstance(model, nn.Module)
    assert isinstance(optim, torch.optim.Optimizer)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 4, generator=generator)

        def closure(x: torch.Tensor = x) -> float:
            optim.zero_grad()
            loss: torch.Tensor = (model(x) - x).square().mean()
            loss.backward()
            return loss.item()

        losses.append(optim.step(closure))
        if isinstance(sched, lr_scheduler.ReduceLROnPlateau):
            sched.step(losses[-1])
        elif isinstance(sched, lr_scheduler.LRScheduler):
            sched.step()
    return losses


def hand_over(giver: Tracked, joiner: Tracked) -> Inventory:
    source = take_inventory(giver)
    target = grow(joiner, source.slots)
    assert target.slots == source.slots
    near, far = socket.socketpair()
    with near, far, ThreadPoolExecutor(1) as pool:
        giving = pool.submit(give, [near], source.tensors, stop=lambda: False)
        assert take([far], target.tensors, stop=lambda: False) == giving.result()
    target.restore_rest(source.rest())
    assert digest(take_inventory(joiner)) == digest(source)
    return target


def made(optimizer: Callable[[Any], torch.optim.Optimizer], scheduler: Callable[[Any], Any], seed: int) -> Tracked:
    torch.manual_seed(seed)
    model = Net()
    optim = optimizer(model.parameters())
    return {"model": model, "optim": optim, "sched": scheduler(optim)}


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, line_search_fn="strong_wolfe"),
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 2, 5], gamma=0.5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}


def go_on_equal(giver: Tracked, joiner: Tracked, rehearsed: int) -> None:
    train(giver, 3, seed=1)
    train(joiner, rehearsed, seed=2)
    hand_over(giver, joiner)
    assert train(joiner, 4, seed=3) == train(giver, 4, seed=3)
    assert digest(take_inventory(joiner)) == digest(take_inventory(giver))


@pytest.mark.parametrize("rehearsed", [0, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_joiner_goes_on_with_every_optimizer(
    optimizer: Callable[[Any], torch.optim.Optimizer], rehearsed: int
) -> None:
    scheduler = SCHEDULERS["SequentialLR"]
    go_on_equal(made(optimizer, scheduler, 1), made(optimizer, scheduler, 2), rehearsed)


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_joiner_goes_on_with_every_scheduler(scheduler: Callable[[Any], Any]) -> None:
    optimizer = OPTIMIZERS["AdamW"]
    go_on_equal(made(optimizer, scheduler, 1), made(optimizer, scheduler, 2), 1)


def test_a_joiner_that_has_done_more_than_the_giver_forgets_it() -> None:
    giver, joiner = (made(OPTIMIZERS["AdamW"], SCHEDULERS["LambdaLR"], seed) for seed in (1, 2))
    train(joiner, 2, seed=2)
    hand_over(giver, joiner)
    optim = joiner["optim"]
    assert isinstance(optim, torch.optim.Optimizer)
    assert not optim.state


def test_slots_name_the_memory_that_training_uses() -> None:
    tracked = made(OPTIMIZERS["momentum"], SCHEDULERS["LambdaLR"], 1)
    train(tracked, 1, seed=1)
    inventory = take_inventory(tracked)
    model, optim = tracked["model"], tracked["optim"]
    assert isinstance(model, Net)
    assert isinstance(optim, torch.optim.Optimizer)
    found = {slot.name: tensor for slot, tensor in zip(inventory.slots, inventory.tensors, strict=True)}
    assert sum(tensor.data_ptr() == model.tied.data_ptr() for tensor in inventory.tensors) == 1
    assert {"model.table", "model.norm.running_mean", "model.norm.num_batches_tracked"} <= found.keys()
    assert found["model.spread"].shape == (1,)
    assert found["model.table"].data_ptr() == model.get_buffer("table").data_ptr()
    momentum = optim.state[model.outer.bias]["momentum_buffer"]
    names = [name for name, tensor in found.items() if tensor.data_ptr() == momentum.data_ptr()]
    assert len(names) == 1
    assert names[0].startswith("optim[0][")
    assert names[0].endswith("].momentum_buffer")
    slot = next(slot for slot in inventory.slots if slot.name == "model.outer.weight")
    assert slot == Slot("model.outer.weight", (4, 6), "float32", 96)


def test_gradients_have_the_parameters_names() -> None:
    tracked = made(OPTIMIZERS["AdamW"], SCHEDULERS["LambdaLR"], 1)
    inventory = take_inventory(tracked)
    assert all(grad is None for _, grad in inventory.gradients())
    train(tracked, 1, seed=1)
    model = tracked["model"]
    assert isinstance(model, Net)
    gradients = dict(inventory.gradients())
    assert list(gradients) == [f"model.{name}" for name, _ in model.named_parameters()]
    bias = gradients["model.outer.bias"]
    assert bias is not None
    assert model.outer.bias.grad is not None
    assert bias.data_ptr() == model.outer.bias.grad.data_ptr()


def test_gradients_of_parameters_without_an_optimizer() -> None:
    """They accumulate from step to step, until a later optimizer takes the parameters."""
    body, head = nn.Linear(2, 2), nn.Linear(2, 1)
    tracked = {"model": nn.Sequential(body, head), "optim": torch.optim.SGD(head.parameters(), lr=0.1)}
    inventory = take_inventory(tracked)
    names = [name for name, _ in inventory.gradients()]
    assert names == ["model.1.weight", "model.1.bias", "model.0.weight", "model.0.bias"]
    head(body(torch.ones(1, 2))).sum().backward()
    carried, _ = inventory.carried()
    assert {2, 3} <= carried.keys()


class Keeper(nn.Module):
    def __init__(self, seen: int) -> None:
        super().__init__()
        self.seen = seen

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


class Loader:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: Any) -> None:
        if state is None:
            raise KeyError("position")
        self.state = state


def test_other_state_moves_too() -> None:
    giver: dict[str, object] = {
        "model": nn.Sequential(Keeper(7), nn.Linear(1, 1)),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0),
        "loader": Loader({"position": (3, torch.arange(2)), "rng": 1 << 100}),
    }
    joiner: dict[str, object] = {
        "model": nn.Sequential(Keeper(0), nn.Linear(1, 1)),
        "scaler": torch.amp.GradScaler("cpu"),
        "loader": Loader({}),
    }
    hand_over(giver, joiner)
    model = joiner["model"]
    assert isinstance(model, nn.Sequential)
    assert isinstance(model[0], Keeper)
    assert model[0].seen == 7


def test_a_tensor_learning_rate_keeps_its_memory() -> None:
    giver, joiner = (made(OPTIMIZERS["tensor lr"], SCHEDULERS["LambdaLR"], seed) for seed in (1, 2))
    optim = joiner["optim"]
    assert isinstance(optim, torch.optim.Optimizer)
    rate = optim.param_groups[0]["lr"]
    train(giver, 2, seed=1)
    hand_over(giver, joiner)
    assert optim.param_groups[0]["lr"] is rate


def test_a_digest_sees_every_bit() -> None:
    tracked: dict[str, object] = {"model": Net(), "loader": Loader({"a": 1, "b": 2.0})}
    model, loader = tracked["model"], tracked["loader"]
    assert isinstance(model, Net)
    assert isinstance(loader, Loader)
    seen = {digest(take_inventory(tracked))}
    loader.state = {"b": 2.0, "a": 1}
    seen.add(digest(take_inventory(tracked)))
    assert len(seen) == 1
    loader.state = {"a": 1, "b": 2}
    seen.add(digest(take_inventory(tracked)))
    with torch.no_grad():
        model.get_buffer("table")[0] = -0.0
        seen.add(digest(take_inventory(tracked)))
        model.norm.get_buffer("num_batches_tracked").add_(1)
        seen.add(digest(take_inventory(tracked)))
    assert len(seen) == 4
    turned = nn.Module()
    turned.register_buffer("x", torch.arange(6).view(2, 3).t())
    plain = nn.Module()
    plain.register_buffer("x", torch.arange(6).view(2, 3).t().contiguous())
    assert digest(take_inventory({"m": turned})) == digest(take_inventory({"m": plain}))


# -- what cannot be ----------------------------------------------------------------------------------------------------


def test_what_has_no_state_dict_is_named() -> None:
    with pytest.raises(StateError, match=r"order: a list has no state_dict\(\) .* give it both, or do not track it"):
        take_inventory({"order": [1, 2]})


def test_a_lambda_with_code_is_named() -> None:
    loader = Loader({"pick": [len]})
    with pytest.raises(StateError, match=r"loader\.pick\[0\]: a builtin_function_or_method cannot be moved safely"):
        take_inventory({"loader": loader}).rest()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2, device="meta"), "model.weight: is on the meta device"),
        (nn.LazyLinear(2), "model.weight: has no shape before the first forward"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_tensors_without_memory_are_named(module: nn.Module, message: str) -> None:
    with pytest.raises(StateError, match=message):
        take_inventory({"model": module})


def test_two_tensors_of_one_name_are_refused() -> None:
    outer = nn.Module()
    outer.add_module("b", nn.Linear(1, 1))
    with pytest.raises(StateError, match=r"a\.b\.weight: two tracked tensors have this name"):
        take_inventory({"a": outer, "a.b": nn.Linear(1, 1)})


def test_another_shape_is_named_with_both() -> None:
    slots = take_inventory({"model": nn.Linear(2, 3)}).slots
    with pytest.raises(
        StateError, match=r"model\.weight: the giver has shape \[3, 2\] of float32, this worker \[3, 5\]"
    ):
        grow({"model": nn.Linear(5, 3)}, slots)


@pytest.mark.parametrize(
    ("giver", "joiner", "message"),
    [
        (nn.Linear(2, 3), nn.Linear(2, 3, bias=False), r"model\.bias: the giver has it, shape \[3\]"),
        (nn.Linear(2, 3, bias=False), nn.Linear(2, 3), r"model\.bias: this worker has it, shape \[3\]"),
    ],
)
def test_an_unknown_name_is_named(giver: nn.Module, joiner: nn.Module, message: str) -> None:
    with pytest.raises(StateError, match=message):
        grow({"model": joiner}, take_inventory({"model": giver}).slots)


def test_state_of_an_unknown_parameter_is_named() -> None:
    tracked = made(OPTIMIZERS["AdamW"], SCHEDULERS["LambdaLR"], 1)
    slots = take_inventory(tracked).slots
    with pytest.raises(StateError, match=r"optim\[0\]\[99\]\.exp_avg: the giver has it"):
        grow(tracked, [*slots, Slot("optim[0][99].exp_avg", (1,), "float32", 4)])
    with pytest.raises(StateError, match=r"optim\[0\]\[0\]\.exp_avg: there is no dtype float3"):
        grow(tracked, [*slots, Slot("optim[0][0].exp_avg", (1,), "float3", 4)])
    with pytest.raises(StateError, match="where this worker has"):
        grow(tracked, slots[::-1])


def test_a_group_that_was_added_later_is_refused() -> None:
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    grown = torch.optim.Adam([{"params": [first]}, {"params": [second]}])
    (first + second).sum().backward()
    grown.step()
    slots = take_inventory({"optim": grown}).slots
    with pytest.raises(StateError, match="optim: the giver has at least 2 param_groups, this worker has 1; make all"):
        grow({"optim": torch.optim.Adam([nn.Parameter(torch.ones(1))])}, slots)


def test_other_objects_than_the_givers_are_refused() -> None:
    rest = take_inventory({"loader": Loader(1)}).rest()
    with pytest.raises(StateError, match=r"the giver tracks loader; this worker tracks data: call job.track"):
        take_inventory({"data": Loader(1)}).restore_rest(rest)
    with pytest.raises(StateError, match="loader: the giver tracks something else than an optimizer"):
        take_inventory({"loader": torch.optim.SGD(nn.Linear(1, 1).parameters())}).restore_rest(rest)
    two = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))]}, {"params": [nn.Parameter(torch.ones(1))]}])
    one = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    with pytest.raises(StateError, match="optim: the giver has 2 param_groups, this worker has 1; make all groups"):
        take_inventory({"optim": one}).restore_rest(take_inventory({"optim": two}).rest())
    with pytest.raises(StateError, match=r"loader: does not accept what the giver's own state was: KeyError"):
        take_inventory({"loader": Loader(1)}).restore_rest(take_inventory({"loader": Loader(None)}).rest())
