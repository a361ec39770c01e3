"""One role's state at a step, in memory of its own, to go back to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .codec import DTYPES
from .errors import StateError
from .grow import gradient_of, grow
from .inventory import Inventory, Slot, dtype_name
from .memory import size_of
from .tracked import Tracked


@dataclass(frozen=True, eq=False)
class Copy:
    """The state with which a step begins. All tensors are contiguous, on the host, and nobody else's."""

    step: int
    slots: tuple[Slot, ...]
    tensors: list[torch.Tensor]
    """One for each slot."""
    rest: bytes
    carried: dict[int, torch.Tensor]
    """Gradients that are carried over the boundary, by the number of their parameter."""
    zeros: tuple[int, ...]
    """Parameters whose gradients are there, and zero."""

    @property
    def bytes(self) -> int:
        return sum(map(size_of, (*self.tensors, *self.carried.values()))) + len(self.rest)

    @property
    def gradients(self) -> tuple[Slot, ...]:
        """What the carried gradients look like."""
        return _slots(self.carried)

    def restore(self, tracked: Tracked) -> None:
        """Make what is tracked as it was, to the bit, in the memory that it has."""
        inventory = grow(tracked, self.slots)
        for tensor, kept in zip(inventory.tensors, self.tensors, strict=True):
            tensor.copy_(kept)
        for number, (name, parameter) in enumerate(inventory.parameters):
            if number in self.carried:
                _fill_gradient(gradient_of(parameter, name), self.carried[number], name)
            elif number in self.zeros:
                gradient_of(parameter, name).zero_()
            else:
                parameter.grad = None
        inventory.restore_rest(self.rest)


def _slots(gradients: dict[int, torch.Tensor]) -> tuple[Slot, ...]:
    return tuple(
        Slot(str(number), tuple(grad.shape), dtype_name(grad.dtype), size_of(grad))
        for number, grad in gradients.items()
    )


def _fill_gradient(grad: torch.Tensor, kept: torch.Tensor, name: str) -> None:
    if grad.shape != kept.shape or grad.dtype != kept.dtype:
        raise StateError(
            f"{name}: its gradient was {dtype_name(kept.dtype)} of shape {list(kept.shape)} and is now "
            f"{dtype_name(grad.dtype)} of shape {list(grad.shape)}; it cannot be carried over"
        )
    grad.copy_(kept)


class Room:
    """Memory for a copy: that of an older one where it fits, new where it does not."""

    def __init__(self, spare: Copy | None = None) -> None:
        self._tensors = {} if spare is None else dict(zip(spare.slots, spare.tensors, strict=True))
        self._gradients = {} if spare is None else dict(zip(spare.gradients, spare.carried.values(), strict=True))

    def tensors(self, slots: Sequence[Slot]) -> list[torch.Tensor]:
        return [_memory(self._tensors.pop(slot, None), slot) for slot in slots]

    def gradients(self, numbers: Sequence[int], slots: Sequence[Slot]) -> dict[int, torch.Tensor]:
        return {
            number: _memory(self._gradients.pop(slot, None), slot) for number, slot in zip(numbers, slots, strict=True)
        }


def _memory(old: torch.Tensor | None, slot: Slot) -> torch.Tensor:
    if old is not None:
        return old
    dtype = DTYPES.get(slot.dtype)
    if dtype is None:
        raise StateError(f"{slot.name}: there is no dtype {slot.dtype} here; run the same version of torch everywhere")
    return torch.empty(slot.shape, dtype=dtype, device="cpu")


class Draft:
    """A copy in the making. What a step changes before its optimizers do is taken at once; the rest, which is most, by
    `finish`, at any time before an optimizer steps."""

    def __init__(self, step: int, inventory: Inventory, spare: Copy | None = None) -> None:
        room = Room(spare)
        self._inventory = inventory
        carried, zeros = inventory.carried()
        tensors = room.tensors(inventory.slots)
        self._copy = Copy(step, inventory.slots, tensors, inventory.rest(), {}, zeros)
        for number, kept in room.gradients(tuple(carried), _slots(carried)).items():
            self._copy.carried[number] = kept.copy_(carried[number])
        self._early = inventory.changing()
        for number in self._early:
            tensors[number].copy_(inventory.tensors[number])

    def finish(self) -> Copy:
        for number, tensor in enumerate(self._inventory.tensors):
            if number not in self._early:
                self._copy.tensors[number].copy_(tensor)
        return self._copy
