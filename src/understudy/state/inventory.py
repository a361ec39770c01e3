"""A role's state as a list of named tensors and one blob for the rest.

Giver and taker track the same objects under the same names, so they come to the same list in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer

from .codec import decode, encode
from .errors import StateError
from .memory import size_of
from .tracked import Place, Tracked, extra_states, local_part, module_tensors, modules, optimizers, places


class Slot(msgspec.Struct, frozen=True):
    """What the taker has to know of a tensor before its bytes come."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


@dataclass(frozen=True)
class Inventory:
    """The tensors are aliases of the memory that training uses; valid until an optimizer step makes new state."""

    tracked: Tracked
    slots: tuple[Slot, ...]
    tensors: list[torch.Tensor]
    parameters: tuple[tuple[str, torch.Tensor], ...]
    """What the optimizers work on, each once; by the module's name for it where a tracked module has it."""

    def gradients(self) -> list[tuple[str, torch.Tensor | None]]:
        """(name, this role's part of the gradient, if there is one) of every parameter that an optimizer has."""
        return [
            (name, None if parameter.grad is None else local_part(parameter.grad, f"{name}.grad"))
            for name, parameter in self.parameters
        ]

    def carried(self) -> tuple[dict[int, torch.Tensor], tuple[int, ...]]:
        """What a boundary carries over of the gradients, by the parameter's number: those that are not zero, and the
        numbers of those that are there and zero."""
        present = {number: grad for number, (_, grad) in enumerate(self.gradients()) if grad is not None}
        zeros = tuple(number for number, grad in present.items() if not bool(grad.count_nonzero()))
        return {number: grad for number, grad in present.items() if number not in zeros}, zeros

    def changing(self) -> frozenset[int]:
        """Which slots a step may change before its optimizers: the buffers of modules."""
        names = {f"{name}.{inner}" for name, module in modules(self.tracked) for inner, _ in module.named_buffers()}
        return frozenset(number for number, slot in enumerate(self.slots) if slot.name in names)

    def rest(self, *, sort_keys: bool = False) -> bytes:
        """Everything tracked that is not a slot, encoded."""
        parts = {name: encode(value, name, sort_keys=sort_keys) for name, value in _rest(self.tracked)}
        return encode(parts, "the rest", sort_keys=sort_keys)

    def restore_rest(self, data: bytes | bytearray | memoryview) -> None:
        """Make everything that is not a slot as the giver had it. Checked before anything is changed."""
        parts = decode(data)
        if not isinstance(parts, dict) or not all(isinstance(part, bytes) for part in parts.values()):
            raise StateError("the rest of the state: is not what a giver sends")
        mine = [name for name, _ in _keepers(self.tracked)]
        if sorted(parts) != sorted(mine):
            raise StateError(
                f"the giver tracks {', '.join(parts)}; this worker tracks {', '.join(mine)}: "
                "call job.track with the same names on every worker"
            )
        values = {name: decode(part) for name, part in parts.items()}
        for name, keeper in _keepers(self.tracked):
            _check(name, keeper, values[name])
        for name, keeper in _keepers(self.tracked):
            _restore(name, keeper, values[name])


def take_inventory(tracked: Tracked) -> Inventory:
    """The state that these objects hold now. At a step boundary: what FSDP2 shards is sharded afterwards."""
    for _ in _keepers(tracked):
        pass
    slots: dict[str, Slot] = {}
    tensors = []
    for name, tensor in _named_tensors(tracked):
        local = local_part(tensor, name)
        if name in slots:
            raise StateError(f"{name}: two tracked tensors have this name; track the objects under other names")
        slots[name] = Slot(name, tuple(local.shape), dtype_name(local.dtype), size_of(local))
        tensors.append(local)
    return Inventory(tracked, tuple(slots.values()), tensors, _parameters(tracked))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _parameters(tracked: Tracked) -> tuple[tuple[str, torch.Tensor], ...]:
    names = {id(tensor): name for name, _, tensor in module_tensors(tracked)}
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, optimizer in optimizers(tracked):
        for place in places(name, optimizer):
            key = id(place.parameter)
            found.setdefault(key, (names.get(key, place.name), place.parameter))
    return tuple(found.values())


def _named_tensors(tracked: Tracked) -> Iterator[tuple[str, torch.Tensor]]:
    for name, _, tensor in module_tensors(tracked):
        yield name, tensor
    for name, optimizer in optimizers(tracked):
        for place in places(name, optimizer):
            for key, tensor in sorted(state_tensors(place).items()):
                yield f"{place.name}.{key}", tensor


def state_tensors(place: Place) -> dict[str, torch.Tensor]:
    """The optimizer's tensors for one parameter; what is nested deeper belongs to the rest."""
    return {
        key: value for key, value in state_of(place).items() if isinstance(key, str) and isinstance(value, torch.Tensor)
    }


def state_of(place: Place) -> dict[Any, Any]:
    """What the optimizer keeps for one parameter; nothing is created by asking."""
    everything: dict[Any, dict[Any, Any]] = place.optimizer.state
    return everything.get(place.parameter, {})


# -- the rest ----------------------------------------------------------------------------------------------------------


def _keepers(tracked: Tracked) -> Iterator[tuple[str, nn.Module | Optimizer | Stateful]]:
    """Everything whose rest is encoded on its own."""
    inner = {name: optimizer for name, optimizer in optimizers(tracked) if name not in tracked}
    for name, thing in tracked.items():
        if not isinstance(thing, nn.Module | Optimizer | Stateful):
            raise StateError(
                f"{name}: a {type(thing).__name__} has no state_dict() and load_state_dict(), so it cannot move with a "
                "role; give it both, or do not track it"
            )
        yield name, thing
    yield from inner.items()


def _rest(tracked: Tracked) -> Iterator[tuple[str, object]]:
    for name, keeper in _keepers(tracked):
        if isinstance(keeper, nn.Module):
            yield name, {inner: module.get_extra_state() for inner, module in extra_states(keeper)}
        elif isinstance(keeper, Optimizer):
            yield name, _optimizer_rest(name, keeper)
        else:
            yield name, keeper.state_dict()


def _optimizer_rest(name: str, optimizer: Optimizer) -> dict[str, object]:
    known = list(places(name, optimizer))
    values = {}
    for place in known:
        tensors = state_tensors(place)
        if own := {key: value for key, value in state_of(place).items() if key not in tensors}:
            values[place.group, place.position] = own
    ids = {id(place.parameter) for place in known}
    everything: dict[Any, Any] = optimizer.state
    for key in everything:
        if isinstance(key, torch.Tensor) and id(key) not in ids:
            raise StateError(f"{name}: has state for a tensor of shape {tuple(key.shape)} in none of its param_groups")
    return {
        "param_groups": [_options(group) for group in optimizer.param_groups],
        "state": values,
        "shared": {key: value for key, value in everything.items() if not isinstance(key, torch.Tensor)},
    }


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _check(name: str, keeper: nn.Module | Optimizer | Stateful, value: Any) -> None:
    if isinstance(keeper, nn.Module):
        mine = [inner for inner, _ in extra_states(keeper)]
        if not isinstance(value, dict) or list(value) != mine:
            raise StateError(f"{name}: the giver's module keeps extra state in other places than this one ({mine})")
    elif isinstance(keeper, Optimizer):
        if not isinstance(value, dict) or list(value) != ["param_groups", "state", "shared"]:
            raise StateError(f"{name}: the giver tracks something else than an optimizer under this name")
        if len(value["param_groups"]) != len(keeper.param_groups):
            raise StateError(
                f"{name}: the giver has {len(value['param_groups'])} param_groups, this worker "
                f"{len(keeper.param_groups)}; build the optimizer in the same way on every worker"
            )


def _restore(name: str, keeper: nn.Module | Optimizer | Stateful, value: Any) -> None:
    try:
        if isinstance(keeper, nn.Module):
            for inner, module in extra_states(keeper):
                module.set_extra_state(value[inner])
        elif isinstance(keeper, Optimizer):
            _restore_optimizer(name, keeper, value)
        else:
            keeper.load_state_dict(value)
    except StateError:
        raise
    except Exception as error:
        raise StateError(f"{name}: does not accept what the giver's own state was: {error!r}") from error


def _restore_optimizer(name: str, optimizer: Optimizer, value: dict[str, Any]) -> None:
    for group, options in zip(optimizer.param_groups, value["param_groups"], strict=True):
        merged = {key: _adopt(group.get(key), new) for key, new in options.items()}
        parameters = group["params"]
        group.clear()
        group.update({"params": parameters} | merged)
    for place in places(name, optimizer):
        tensors = state_tensors(place)
        values = value["state"].get((place.group, place.position), {})
        merged = tensors | {key: _to_device(new, place.parameter.device) for key, new in values.items()}
        optimizer.state.pop(place.parameter, None)
        if merged:
            optimizer.state[place.parameter] = merged
    everything: dict[Any, Any] = optimizer.state
    for key in [key for key in everything if not isinstance(key, torch.Tensor)]:
        del everything[key]
    everything.update(value["shared"])


def _adopt(old: object, new: object) -> object:
    """The new value; a tensor, such as a learning rate that a compiled step has captured, keeps its memory."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        if old.shape == new.shape and old.dtype == new.dtype:
            with torch.no_grad():
                return old.copy_(new)
        return new.to(old.device)
    return new


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if type(value) in (list, tuple):
        return type(value)(_to_device(item, device) for item in value)
    if type(value) is dict:
        return {key: _to_device(item, device) for key, item in value.items()}
    return value
