"""Make a joiner's tensors match the giver's. Optimizers create their state with the first step, which a joiner may not
have made, or may have made in a rehearsal with other results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

import torch

from .codec import DTYPES
from .errors import StateError
from .inventory import Inventory, Slot, dtype_name, state_of, state_tensors, take_inventory
from .tracked import Place, Tracked, is_dtensor, local_part, module_tensors, optimizers, places

_STATE_NAME = re.compile(r"(.+?\[\d+\]\[\d+\])\.(.+)", re.DOTALL)


def grow(tracked: Tracked, slots: Sequence[Slot]) -> Inventory:
    """The inventory of `tracked`, whose slots are now the giver's: optimizer state that was missing is there, as zeros,
    and what the giver has not is gone. What cannot be mended is a StateError."""
    mine = {name: local_part(tensor, name) for name, _, tensor in module_tensors(tracked)}
    known = {place.name: place for name, optimizer in optimizers(tracked) for place in places(name, optimizer)}
    wanted: dict[str, dict[str, torch.Tensor]] = {}
    missing = set(mine)
    for slot in slots:
        if slot.name in mine:
            _same(slot, mine[slot.name])
            missing.discard(slot.name)
            continue
        match = _STATE_NAME.fullmatch(slot.name)
        if match is None or match[1] not in known:
            raise StateError(
                f"{slot.name}: the giver has it, shape {list(slot.shape)}, this worker has not; "
                "build the same objects and track them under the same names on every worker"
            )
        wanted.setdefault(match[1], {})[match[2]] = _state_for(slot, known[match[1]], match[2])
    if missing:
        name = min(missing)
        raise StateError(f"{name}: this worker has it, shape {list(mine[name].shape)}, the giver has not")
    for place in known.values():
        _replace(place, wanted.get(place.name, {}))
    inventory = take_inventory(tracked)
    for mended, slot in zip_longest(inventory.slots, slots):
        if mended != slot:
            raise StateError(f"the giver has {_described(slot)} where this worker has {_described(mended)}")
    return inventory


def _same(slot: Slot, tensor: torch.Tensor) -> None:
    if tuple(tensor.shape) != slot.shape or dtype_name(tensor.dtype) != slot.dtype:
        raise StateError(
            f"{slot.name}: the giver has shape {list(slot.shape)} of {slot.dtype}, this worker "
            f"{list(tensor.shape)} of {dtype_name(tensor.dtype)}; build the same model on every worker"
        )


def _described(slot: Slot | None) -> str:
    return "nothing" if slot is None else f"{slot.name}, shape {list(slot.shape)} of {slot.dtype}"


def _state_for(slot: Slot, place: Place, key: str) -> torch.Tensor:
    """The tensor that is there already, if it fits; zeros otherwise."""
    if slot.dtype not in DTYPES:
        raise StateError(f"{slot.name}: there is no dtype {slot.dtype} here; run the same version of torch everywhere")
    dtype = DTYPES[slot.dtype]
    present = state_tensors(place).get(key)
    if present is not None:
        local = local_part(present, slot.name)
        if tuple(local.shape) == slot.shape and local.dtype == dtype:
            return present
    parameter = place.parameter
    whole = local_part(parameter, slot.name)
    if tuple(whole.shape) == slot.shape and (whole.dim() or key != "step"):
        zeros = torch.zeros_like(whole, dtype=dtype)
        return distributed_like(parameter, zeros) if is_dtensor(parameter) else zeros
    if is_dtensor(parameter) and slot.shape:
        raise StateError(
            f"{slot.name}: shape {list(slot.shape)} at the giver, {list(whole.shape)} is this worker's part of the "
            "parameter; how it is distributed is not known before the joiner has rehearsed a step"
        )
    options = place.optimizer.param_groups[place.group]
    counted_on_host = key == "step" and not options.get("capturable") and not options.get("fused")
    return torch.zeros(slot.shape, dtype=dtype, device="cpu" if counted_on_host else whole.device)


def distributed_like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


@torch.no_grad()
def gradient_of(parameter: torch.Tensor, name: str) -> torch.Tensor:
    """The memory of this role's part of a parameter's gradient, made where there is none."""
    if parameter.grad is None:
        local = torch.empty_like(local_part(parameter, name))
        parameter.grad = distributed_like(parameter, local) if is_dtensor(parameter) else local
    return local_part(parameter.grad, name)


def _replace(place: Place, wanted: dict[str, torch.Tensor]) -> None:
    state = place.optimizer.state
    tensors = state_tensors(place)
    others = {key: value for key, value in state_of(place).items() if key not in tensors}
    merged = {key: value for key, value in others.items() if key not in wanted} | wanted
    if merged:
        state[place.parameter] = merged
    else:
        state.pop(place.parameter, None)
