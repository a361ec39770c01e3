"""What a step changes before its vote, kept so that the step can be begun again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer


class Undo:
    """Buffers, gradients, hyper-parameters and the state of everything else that is tracked, as they were at the
    boundary. Parameters and optimizer state do not change before the vote. Holds memory for the buffers only: gradients
    are normally none or zero at a boundary; those of a script that carries some over are copied."""

    def __init__(self, tracked: Mapping[str, object]) -> None:
        self._modules = [thing for thing in tracked.values() if isinstance(thing, nn.Module)]
        self._optimizers = [thing for thing in tracked.values() if isinstance(thing, Optimizer)]
        self._others: list[Any] = [thing for thing in tracked.values() if not isinstance(thing, nn.Module | Optimizer)]
        self._buffers: list[tuple[torch.Tensor, torch.Tensor, int]] = []
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
            [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]
        self._states = [copy.deepcopy(other.state_dict()) for other in self._others]

    def _remember_buffers(self) -> None:
        known = {id(buffer): (kept, version) for buffer, kept, version in self._buffers}
        self._buffers = []
        for buffer in [buffer for module in self._modules for buffer in module.buffers()]:
            if id(buffer) not in known:
                kept = buffer.detach().clone()
            else:
                kept, version = known[id(buffer)]
                if version != buffer._version:
                    kept.copy_(buffer)
            self._buffers.append((buffer, kept, buffer._version))

    @torch.no_grad()
    def restore(self) -> None:
        """Everything is as it was when it was remembered."""
        for buffer, kept, version in self._buffers:
            if buffer._version != version:
                buffer.copy_(kept)
        kept_gradients = {id(parameter): kept for parameter, kept in self._gradients}
        for parameter in self._parameters():
            if id(parameter) not in kept_gradients:
                parameter.grad = None
            elif parameter.grad is not None:
                carried = kept_gradients[id(parameter)]
                parameter.grad.zero_() if carried is None else parameter.grad.copy_(carried)
        for optimizer, groups in zip(self._optimizers, self._groups, strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.update(values)
        for other, state in zip(self._others, self._states, strict=True):
            other.load_state_dict(copy.deepcopy(state))
            if isinstance(other, GradScaler):
                other._per_optimizer_states.clear()
        self._remember_buffers()
