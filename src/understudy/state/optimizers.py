"""Tracked optimizers: the tensors kept for each parameter are slots, hyper-parameters and other values the rest."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

import torch
from torch.optim import Optimizer

from understudy.device.cpu import HOST

from .errors import StateError
from .memory import Slot, distributed_like, dtype_of, is_dtensor, is_instance, local_part

Optimizers = Mapping[str, Optimizer]
"""The tracked optimizers, by the names under which the job tracks them."""
_STATE_NAME = re.compile(r"(.+?\[\d+\]\[\d+\])\.(.+)", re.DOTALL)
_GROUP_NAME = re.compile(r"(.+?)\[(\d+)\]\[\d+\]\.", re.DOTALL)


class OptimizerParameter(NamedTuple):
    """A parameter by its position in an optimizer: the same parameter on every worker of a role."""

    optimizer: Optimizer
    group: int
    position: int
    parameter: torch.Tensor
    name: str

    @property
    def state(self) -> dict[Any, Any]:
        """What the optimizer keeps for the parameter; reading creates nothing."""
        everything: dict[Any, dict[Any, Any]] = self.optimizer.state
        return everything.get(self.parameter, {})

    @property
    def state_tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that the optimizer keeps for the parameter. A tensor that is nested deeper is not among them."""
        return {
            key: value for key, value in self.state.items() if isinstance(key, str) and isinstance(value, torch.Tensor)
        }

    @property
    def other_state(self) -> dict[Any, Any]:
        tensors = self.state_tensors
        return {key: value for key, value in self.state.items() if key not in tensors}

    def set_state(self, state: dict[Any, Any]) -> None:
        """Set what the optimizer keeps for the parameter; an optimizer that keeps nothing has no entry for it."""
        if state:
            self.optimizer.state[self.parameter] = state
        else:
            self.optimizer.state.pop(self.parameter, None)


def optimizer_parameters(name: str, optimizer: Optimizer) -> Iterator[OptimizerParameter]:
    """The parameters of an optimizer in order, named by their position, such as `optim[0][3]`."""
    for group, options in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(options["params"]):
            yield OptimizerParameter(optimizer, group, position, parameter, f"{name}[{group}][{position}]")


def is_partitioned(optimizer: object) -> TypeGuard[Any]:
    return is_instance(optimizer, "torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer")


def inner(name: str, optimizer: Optimizer) -> Iterator[tuple[str, Optimizer]]:
    """A ZeroRedundancyOptimizer has an inner optimizer, which holds this role's part of the state."""
    if is_partitioned(optimizer):
        yield f"{name}.optim", optimizer.optim


def tensors(optimizers: Optimizers) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that are kept for each parameter, such as `optim[0][3].exp_avg`."""
    for name, optimizer in optimizers.items():
        for each in optimizer_parameters(name, optimizer):
            for key, tensor in sorted(each.state_tensors.items()):
                yield f"{each.name}.{key}", tensor


def parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def belongings(optimizer: Optimizer) -> Iterator[object]:
    """The containers of state and hyper-parameters."""
    yield optimizer.state
    yield optimizer.param_groups
    yield from optimizer.param_groups


# -- making room -------------------------------------------------------------------------------------------------------


def _known(optimizers: Optimizers) -> dict[str, OptimizerParameter]:
    return {each.name: each for name, known in optimizers.items() for each in optimizer_parameters(name, known)}


def _owners(optimizers: Optimizers, slots: Mapping[str, Slot]) -> Iterator[tuple[Slot, OptimizerParameter, str]]:
    """(slot, parameter, key) of every slot that is state of a parameter of these optimizers."""
    known = _known(optimizers)
    for slot in slots.values():
        match = _STATE_NAME.fullmatch(slot.name)
        if match is not None and match[1] in known:
            yield slot, known[match[1]], match[2]


def claim(optimizers: Optimizers, slots: Mapping[str, Slot]) -> set[str]:
    """The names of the slots that are state of a parameter of these optimizers."""
    groups = {name: len(known.param_groups) for name, known in optimizers.items()}
    for slot in slots.values():
        match = _GROUP_NAME.match(slot.name)
        if match is not None and int(match[2]) >= groups.get(match[1], int(match[2]) + 1):
            raise _lacks_groups(match[1], f"at least {int(match[2]) + 1}", groups[match[1]])
    return {slot.name for slot, _, _ in _owners(optimizers, slots)}


def _lacks_groups(name: str, theirs: str | int, mine: int) -> StateError:
    return StateError(
        f"{name}: the giver has {theirs} param_groups, this worker has {mine}; make all groups before job.steps(…): a "
        "group that is added in a step is missing in a joiner, so let it begin with lr=0, or without requires_grad"
    )


def make_room(optimizers: Optimizers, slots: Mapping[str, Slot]) -> None:
    """Give every parameter exactly the state tensors of the slots: present ones that fit stay, others are zeros.

    Optimizers create their state with the first step, which a joiner may not have made, or may have made in a rehearsal
    with other results."""
    wanted: dict[str, dict[str, torch.Tensor]] = {}
    for slot, each, key in _owners(optimizers, slots):
        wanted.setdefault(each.name, {})[key] = _state_for(slot, each, key)
    for each in _known(optimizers).values():
        each.set_state(each.other_state | wanted.get(each.name, {}))


def _state_for(slot: Slot, each: OptimizerParameter, key: str) -> torch.Tensor:
    """The tensor that is present, if it fits the slot; zeros otherwise."""
    dtype = dtype_of(slot)
    present = each.state_tensors.get(key)
    if present is not None:
        local = local_part(present, slot.name)
        if tuple(local.shape) == slot.shape and local.dtype == dtype:
            return present
    parameter = each.parameter
    whole = local_part(parameter, slot.name)
    if tuple(whole.shape) == slot.shape and (whole.dim() or key != "step"):
        zeros = torch.zeros_like(whole, dtype=dtype)
        return distributed_like(parameter, zeros) if is_dtensor(parameter) else zeros
    if is_dtensor(parameter) and slot.shape:
        raise StateError(
            f"{slot.name}: shape {list(slot.shape)} at the giver, {list(whole.shape)} is this worker's part of the "
            "parameter; how it is distributed is not known before the joiner has rehearsed a step"
        )
    options = each.optimizer.param_groups[each.group]
    counted_on_host = key == "step" and not options.get("capturable") and not options.get("fused")
    return torch.zeros(slot.shape, dtype=dtype, device=HOST.torch_device() if counted_on_host else whole.device)


# -- the rest ----------------------------------------------------------------------------------------------------------


def rest(name: str, optimizer: Optimizer) -> dict[str, object]:
    """Hyper-parameters, and all state that is not a tensor of a parameter."""
    known = list(optimizer_parameters(name, optimizer))
    values = {(each.group, each.position): own for each in known if (own := each.other_state)}
    ids = {id(each.parameter) for each in known}
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


def check_rest(name: str, optimizer: Optimizer, value: Any) -> None:
    """Raise StateError if the value is not the rest of an optimizer with as many groups."""
    if not isinstance(value, dict) or list(value) != ["param_groups", "state", "shared"]:
        raise StateError(f"{name}: the giver tracks something else than an optimizer under this name")
    if len(value["param_groups"]) != len(optimizer.param_groups):
        raise _lacks_groups(name, len(value["param_groups"]), len(optimizer.param_groups))


def restore_rest(name: str, optimizer: Optimizer, value: Any) -> None:
    """Set hyper-parameters and all state that is not a tensor of a parameter."""
    for group, options in zip(optimizer.param_groups, value["param_groups"], strict=True):
        merged = {"params": group["params"]} | {key: _adopt(group.get(key), new) for key, new in options.items()}
        group.clear()
        group.update(merged)
    for each in optimizer_parameters(name, optimizer):
        values = value["state"].get((each.group, each.position), {})
        each.set_state(
            each.state_tensors | {key: _to_device(new, each.parameter.device) for key, new in values.items()}
        )
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


# -- undoing a step ----------------------------------------------------------------------------------------------------


class _KeptTensor(NamedTuple):
    """A tensor among the hyper-parameters, which other objects may hold too, and a copy of its contents."""

    tensor: torch.Tensor
    kept: torch.Tensor


def keep_options(optimizer: Optimizer, before: object) -> list[dict[str, Any]]:
    """Copy the hyper-parameters of all groups. The state of an optimizer does not change before the vote."""
    return [{key: _kept(value) for key, value in _options(group).items()} for group in optimizer.param_groups]


def restore_options(optimizer: Optimizer, kept: list[dict[str, Any]]) -> None:
    """Set the hyper-parameters of all groups; groups and hyper-parameters that were added go."""
    del optimizer.param_groups[len(kept) :]
    for group, values in zip(optimizer.param_groups, kept, strict=True):
        for key in group.keys() - values.keys() - {"params"}:
            del group[key]
        group.update({key: _given_back(value) for key, value in values.items()})


def _kept(value: Any) -> Any:
    return _KeptTensor(value, value.detach().clone()) if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _given_back(value: Any) -> Any:
    return value.tensor.copy_(value.kept) if isinstance(value, _KeptTensor) else copy.deepcopy(value)
