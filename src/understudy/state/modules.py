"""Tracked modules: parameters and buffers are slots, torch's extra state is the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from .errors import StateError
from .memory import Slot, dtype_name, is_instance, local_part

Modules = Mapping[str, nn.Module]
"""The tracked modules, by the names under which the job tracks them."""


def tensors(modules: Modules) -> Iterator[tuple[str, torch.Tensor]]:
    """All parameters, then all buffers, of each module. A tensor that modules share comes once.

    Afterwards the parameters of FSDP2 are sharded; those of a root module stay whole after an evaluation."""
    seen: set[int] = set()
    for name, module in modules.items():
        for inner in module.modules():
            if is_instance(inner, "torch.distributed.fsdp", "FSDPModule"):
                inner.reshard()
        for found in (module.named_parameters(), module.named_buffers()):
            for path, tensor in found:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{name}.{path}", tensor


def buffer_names(modules: Modules) -> set[str]:
    return {f"{name}.{inner}" for name, module in modules.items() for inner, _ in module.named_buffers()}


def belongings(module: nn.Module) -> Iterator[object]:
    """The submodules and their tensors."""
    for inner in module.modules():
        yield inner
        yield from inner.parameters(recurse=False)
        yield from inner.buffers(recurse=False)


# -- making room -------------------------------------------------------------------------------------------------------


def claim(modules: Modules, slots: Mapping[str, Slot]) -> set[str]:
    """The names of the slots that are tensors of these modules. Raises StateError if one has another shape or dtype."""
    claimed = set()
    for name, tensor in tensors(modules):
        local, slot = local_part(tensor, name), slots.get(name)
        if slot is None:
            continue
        if tuple(local.shape) != slot.shape or dtype_name(local.dtype) != slot.dtype:
            raise StateError(
                f"{name}: the giver has shape {list(slot.shape)} of {slot.dtype}, this worker "
                f"{list(local.shape)} of {dtype_name(local.dtype)}; build the same model on every worker"
            )
        claimed.add(name)
    return claimed


def make_room(modules: Modules, slots: Mapping[str, Slot]) -> None:
    """A module has its tensors from the start; raises StateError if the giver has none for one of them."""
    for name, tensor in tensors(modules):
        if name not in slots:
            shape = list(local_part(tensor, name).shape)
            raise StateError(f"{name}: this worker has it, shape {shape}, the giver has not")


# -- the rest ----------------------------------------------------------------------------------------------------------


def extra_states(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The submodules that keep more than tensors, by torch's own get_extra_state."""
    for name, inner in module.named_modules():
        if type(inner).get_extra_state is not nn.Module.get_extra_state:
            yield name, inner


def rest(name: str, module: nn.Module) -> dict[str, Any]:
    """The extra state of each submodule that has one."""
    return {inner: owner.get_extra_state() for inner, owner in extra_states(module)}


def check_rest(name: str, module: nn.Module, value: Any) -> None:
    """Raise StateError if the giver's extra state belongs to other submodules."""
    mine = [inner for inner, _ in extra_states(module)]
    if not isinstance(value, dict) or list(value) != mine:
        raise StateError(f"{name}: the giver's module keeps extra state in other places than this one ({mine})")


def restore_rest(name: str, module: nn.Module, value: Any) -> None:
    """Set the extra state of each submodule that has one."""
    for inner, owner in extra_states(module):
        owner.set_extra_state(value[inner])


# -- undoing a step ----------------------------------------------------------------------------------------------------


class _KeptBuffer(NamedTuple):
    owner: nn.Module
    name: str
    buffer: torch.Tensor
    kept: torch.Tensor


def keep_buffers(module: nn.Module, before: list[_KeptBuffer] | None) -> list[_KeptBuffer]:
    """Copy every buffer, every time: batch norm changes its statistics without a trace in the version counter."""
    copies = {id(each.buffer): each.kept for each in before or ()}
    found = [(owner, name, buffer) for owner in module.modules() for name, buffer in _own_buffers(owner)]
    for buffer in {id(buffer): buffer for _, _, buffer in found}.values():
        if id(buffer) in copies:
            copies[id(buffer)].copy_(buffer)
        else:
            copies[id(buffer)] = buffer.detach().clone()
    return [_KeptBuffer(owner, name, buffer, copies[id(buffer)]) for owner, name, buffer in found]


def _own_buffers(owner: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    return owner.named_buffers(recurse=False, remove_duplicate=False)


def restore_buffers(module: nn.Module, kept: list[_KeptBuffer]) -> None:
    """Put the buffers back, with their contents, into the modules that own them."""
    for owner, name, buffer, contents in kept:
        buffer.copy_(contents)
        setattr(owner, name, buffer)
