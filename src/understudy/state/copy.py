"""One role's state at a step, in memory of its own, to go back to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from understudy.device.cpu import local_device

from .errors import StateError
from .inventory import Inventory, grow
from .kinds import Tracked
from .memory import Slot, dtype_name, dtype_of, gradient_of, size_of, slot_of


@dataclass(frozen=True, eq=False)
class Copy:
    """The state with which a step begins. All tensors are contiguous, on the host, and used by nothing else."""

    step: int
    slots: tuple[Slot, ...]
    tensors: list[torch.Tensor]
    """One for each slot."""
    rest: bytes
    carried: dict[int, torch.Tensor]
    """The gradients that the boundary carries over, by the number of their parameter."""
    zeros: tuple[int, ...]
    """The numbers of the parameters with a gradient that is zero."""

    @property
    def bytes(self) -> int:
        return sum(map(size_of, (*self.tensors, *self.carried.values()))) + len(self.rest)

    @property
    def gradients(self) -> tuple[Slot, ...]:
        """The description of each carried gradient."""
        return _slots(self.carried)

    def restore(self, tracked: Tracked) -> None:
        """Set all tracked state to the copy, to the bit. Tensors keep their memory."""
        inventory = grow(tracked, self.slots)
        for tensor, kept in zip(inventory.tensors, self.tensors, strict=True):
            tensor.copy_(kept)
        for number, (name, parameter) in enumerate(inventory.parameters):
            if number in self.carried:
                kept, grad = self.carried[number], gradient_of(parameter, name)
                if grad.shape != kept.shape or grad.dtype != kept.dtype:
                    raise StateError(
                        f"{name}: its gradient was {dtype_name(kept.dtype)} of shape {list(kept.shape)} and is now "
                        f"{dtype_name(grad.dtype)} of shape {list(grad.shape)}; it cannot be carried over"
                    )
                grad.copy_(kept)
            elif number in self.zeros:
                gradient_of(parameter, name).zero_()
            else:
                parameter.grad = None
        inventory.restore_rest(self.rest)


def _slots(gradients: dict[int, torch.Tensor]) -> tuple[Slot, ...]:
    return tuple(slot_of(str(number), grad) for number, grad in gradients.items())


class CopyMemory:
    """Memory for a copy: that of a spare copy if it fits, new memory otherwise."""

    def __init__(self, spare: Copy | None = None) -> None:
        self._tensors = {} if spare is None else dict(zip(spare.slots, spare.tensors, strict=True))
        self._gradients = {} if spare is None else dict(zip(spare.gradients, spare.carried.values(), strict=True))

    def tensors(self, slots: Sequence[Slot]) -> list[torch.Tensor]:
        """Memory for each of these slots."""
        return [_memory(self._tensors, slot) for slot in slots]

    def gradients(self, numbers: Sequence[int], slots: Sequence[Slot]) -> dict[int, torch.Tensor]:
        """Memory for the gradients of these parameters."""
        return {number: _memory(self._gradients, slot) for number, slot in zip(numbers, slots, strict=True)}


def _memory(spare: dict[Slot, torch.Tensor], slot: Slot) -> torch.Tensor:
    return spare.pop(slot) if slot in spare else local_device().host_empty(slot.shape, dtype_of(slot))


class Draft:
    """A copy that is being made. The constructor takes what a step changes before its optimizers; `finish` takes the
    rest, which is most, at any time before an optimizer steps."""

    def __init__(self, step: int, inventory: Inventory, spare: Copy | None = None) -> None:
        memory = CopyMemory(spare)
        self._inventory = inventory
        carried, zeros = inventory.carried()
        tensors = memory.tensors(inventory.slots)
        self._copy = Copy(step, inventory.slots, tensors, inventory.rest(), {}, zeros)
        for number, kept in memory.gradients(tuple(carried), _slots(carried)).items():
            self._copy.carried[number] = kept.copy_(carried[number])
        self._early = inventory.changing()
        for number in self._early:
            tensors[number].copy_(inventory.tensors[number])

    def finish(self) -> Copy:
        """The whole copy."""
        with local_device().side_stream():
            for number, tensor in enumerate(self._inventory.tensors):
                if number not in self._early:
                    self._copy.tensors[number].copy_(tensor)
        return self._copy
