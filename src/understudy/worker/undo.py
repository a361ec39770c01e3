"""What a step changes before its vote, kept so that the step can be begun again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer


class _Buffer(NamedTuple):
    """A buffer, where it belongs, and what was in it."""

    owner: nn.Module
    name: str
    buffer: torch.Tensor
    kept: torch.Tensor


class Undo:
    """Buffers, gradients, hyper-parameters and the state of everything else that is tracked, as they were at the
    boundary. Parameters and optimizer state do not change before the vote. Holds memory for the buffers only: gradients
    are normally none or zero at a boundary; those of a script that carries some over are copied."""

    def __init__(self, tracked: Mapping[str, object]) -> None:
        self._modules = [thing for thing in tracked.values() if isinstance(thing, nn.Module)]
        self._optimizers = [thing for thing in tracked.values() if isinstance(thing, Optimizer)]
        self._others: list[Any] = [thing for thing in tracked.values() if not isinstance(thing, nn.Module | Optimizer)]
        self._buffers: list[_Buffer] = []
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._groups: list[list[dict[str, Any]]] = []
        self._states: list[Any] = []

    def _parameters(self) -> list[torch.Tensor]:
        """Each once, whoever has it."""
        owned = [p for module in self._modules for p in module.parameters()]
        driven = [p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]]
        return list({id(p): p for p in (*owned, *driven)}.values())

    @torch.no_grad()
    def remember(self) -> None:
        """This is where a repeated step begins."""
        self._remember_buffers()
        self._gradients = []
        for parameter in self._parameters():
            grad = parameter.grad
            if grad is not None and bool(grad.count_nonzero()):
                self._gradients.append((parameter, grad.clone()))
            elif grad is not None:
                self._gradients.append((parameter, None))
        self._groups = [
            [{key: _kept(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]
        self._states = [copy.deepcopy(other.state_dict()) for other in self._others]

    def _remember_buffers(self) -> None:
        """Every buffer, every time: batch norm writes its statistics without a trace in their version counters."""
        copies = {id(each.buffer): each.kept for each in self._buffers}
        fresh: set[int] = set()
        found = []
        for owner in {id(part): part for module in self._modules for part in module.modules()}.values():
            for name, buffer in owner._buffers.items():
                if buffer is None:
                    continue
                if id(buffer) not in copies:
                    copies[id(buffer)] = buffer.detach().clone()
                elif id(buffer) not in fresh:
                    copies[id(buffer)].copy_(buffer)
                fresh.add(id(buffer))
                found.append(_Buffer(owner, name, buffer, copies[id(buffer)]))
        self._buffers = found

    @torch.no_grad()
    def restore(self) -> None:
        """Everything is as it was when it was remembered."""
        for owner, name, buffer, kept in self._buffers:
            buffer.copy_(kept)
            owner._buffers[name] = buffer
        kept_gradients = {id(parameter): kept for parameter, kept in self._gradients}
        for parameter in self._parameters():
            if id(parameter) not in kept_gradients:
                parameter.grad = None
                continue
            carried = kept_gradients[id(parameter)]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter) if carried is None else carried.clone()
            else:
                parameter.grad.zero_() if carried is None else parameter.grad.copy_(carried)
        for optimizer, groups in zip(self._optimizers, self._groups, strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                for key in group.keys() - values.keys() - {"params"}:
                    del group[key]
                group.update({key: _given_back(value) for key, value in values.items()})
        for other, state in zip(self._others, self._states, strict=True):
            other.load_state_dict(copy.deepcopy(state))
            if isinstance(other, GradScaler):
                other._per_optimizer_states.clear()


class _KeptTensor(NamedTuple):
    """A tensor among the hyper-parameters and what was in it; others may hold the same one."""

    tensor: torch.Tensor
    kept: torch.Tensor


def _kept(value: Any) -> Any:
    return _KeptTensor(value, value.detach().clone()) if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _given_back(value: Any) -> Any:
    return value.tensor.copy_(value.kept) if isinstance(value, _KeptTensor) else copy.deepcopy(value)
