"""What a step changes before its vote, kept so that the step can be repeated."""

from __future__ import annotations

from typing import Any

import torch

from understudy.device.cpu import local_device

from .kinds import Tracked, tracked_objects
from .memory import is_sparse


class Undo:
    """Everything tracked as it was at the last boundary, except parameters and optimizer state, which do not change
    before the vote. Holds memory for buffers only: gradients are normally absent or zero at a boundary; gradients that
    a script carries over are copied."""

    def __init__(self, tracked: Tracked) -> None:
        self._tracked = tracked_objects(tracked)
        self._kept: list[Any] = [None] * len(self._tracked)
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        """(parameter, gradient, None for zeros) of the parameters that had a gradient."""

    def _parameters(self) -> list[torch.Tensor]:
        """The parameters of all tracked objects, each once."""
        return list({id(p): p for _, thing, kind in self._tracked for p in kind.parameters(thing)}.values())

    @torch.no_grad()
    def remember(self) -> None:
        """Keep the state with which a step begins."""
        self._kept = [
            kind.keep(thing, before) for (_, thing, kind), before in zip(self._tracked, self._kept, strict=True)
        ]
        self._gradients = []
        for parameter in self._parameters():
            grad = parameter.grad
            if grad is not None:
                is_zero = not is_sparse(grad) and not bool(grad.count_nonzero())
                self._gradients.append((parameter, None if is_zero else grad.clone()))

    @torch.no_grad()
    def restore(self) -> None:
        """Make everything as it was when it was last remembered."""
        local_device().synchronize()  # nothing that the step has launched may still write
        for (_, thing, kind), kept in zip(self._tracked, self._kept, strict=True):
            kind.undo(thing, kept)
        kept_gradients = {id(parameter): kept for parameter, kept in self._gradients}
        for parameter in self._parameters():
            carried = kept_gradients.get(id(parameter))
            if id(parameter) not in kept_gradients:
                parameter.grad = None
            elif carried is not None and is_sparse(carried):
                parameter.grad = carried.clone()
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter) if carried is None else carried.clone()
            else:
                parameter.grad.zero_() if carried is None else parameter.grad.copy_(carried)
