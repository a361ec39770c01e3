"""A role's state as a list of named tensors and one blob for the rest.

Giver and taker track the same objects under the same names, so they come to the same list in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import msgspec
import torch
import xxhash

from .codec import decode, encode
from .errors import StateError
from .kinds import Tracked, by_kind, module_tensors, optimizers, tracked_objects
from .memory import Slot, Staging, contents, local_part, slot_of
from .optimizers import optimizer_parameters


@dataclass(frozen=True)
class Inventory:
    """The state of one role. The tensors are aliases of the memory that training uses, valid until an optimizer step
    creates new state."""

    tracked: Tracked
    slots: tuple[Slot, ...]
    tensors: list[torch.Tensor]
    parameters: tuple[tuple[str, torch.Tensor], ...]
    """The parameters of all optimizers, then those that only modules have, each once; by the module's name for it if a
    tracked module has it. A parameter without an optimizer may accumulate gradients, too."""
    given: Mapping[str, object] = field(default_factory=dict)
    """Tracked object → its rest, for objects whose rest is that of another role."""

    def gradients(self) -> list[tuple[str, torch.Tensor | None]]:
        """(name, this role's part of the gradient, if there is one) of every parameter."""
        return [
            (name, None if parameter.grad is None else local_part(parameter.grad, f"{name}.grad"))
            for name, parameter in self.parameters
        ]

    def carried(self) -> tuple[dict[int, torch.Tensor], tuple[int, ...]]:
        """The gradients that a boundary carries over, by the parameter's number: those that are not zero, and the
        numbers of those that exist and are zero."""
        present = {number: grad for number, (_, grad) in enumerate(self.gradients()) if grad is not None}
        zeros = tuple(number for number, grad in present.items() if not bool(grad.count_nonzero()))
        return {number: grad for number, grad in present.items() if number not in zeros}, zeros

    def changing(self) -> frozenset[int]:
        """The numbers of the slots that a step may change before its optimizers: the buffers of modules."""
        names = {name for kind, things in by_kind(self.tracked) for name in kind.changing(things)}
        return frozenset(number for number, slot in enumerate(self.slots) if slot.name in names)

    def rests(self, *, sort_keys: bool = False) -> dict[str, bytes]:
        """The rest of each tracked object, encoded: its state that is not a slot."""
        return {
            name: encode(self.given[name] if name in self.given else kind.rest(name, thing), name, sort_keys=sort_keys)
            for name, thing, kind in tracked_objects(self.tracked)
        }

    def rest(self, *, sort_keys: bool = False) -> bytes:
        """Everything tracked that is not a slot, encoded."""
        return encode(self.rests(sort_keys=sort_keys), "the rest", sort_keys=sort_keys)

    def with_parts(self, tensors: Mapping[str, torch.Tensor], rests: Mapping[str, object]) -> Inventory:
        """The same state with other contents in these slots and objects. Raises StateError if a tensor misfits."""
        for slot in self.slots:
            if slot.name in tensors and slot_of(slot.name, tensors[slot.name]) != slot:
                raise StateError(f"{slot.name}: {_described(slot_of(slot.name, tensors[slot.name]))} does not fit")
        found = [tensors.get(slot.name, mine) for slot, mine in zip(self.slots, self.tensors, strict=True)]
        return replace(self, tensors=found, given=rests)

    def restore_rest(self, data: bytes | bytearray | memoryview) -> None:
        """Set everything that is not a slot to what the giver has. All of it is checked before anything is changed."""
        parts = decode(data)
        if not isinstance(parts, dict) or not all(isinstance(part, bytes) for part in parts.values()):
            raise StateError("the rest of the state: is not what a giver sends")
        mine = tracked_objects(self.tracked)
        if sorted(parts) != sorted(each.name for each in mine):
            raise StateError(
                f"the giver tracks {', '.join(parts)}; this worker tracks {', '.join(each.name for each in mine)}: "
                "call job.track with the same names on every worker"
            )
        values = {name: decode(part) for name, part in parts.items()}
        for name, thing, kind in mine:
            kind.check_rest(name, thing, values[name])
        for name, thing, kind in mine:
            try:
                kind.restore_rest(name, thing, values[name])
            except StateError:
                raise
            except Exception as error:
                raise StateError(f"{name}: does not accept what the giver's own state was: {error!r}") from error


def take_inventory(tracked: Tracked) -> Inventory:
    """The state that these objects hold now. Call it at a step boundary: it shards what FSDP2 has gathered."""
    slots: dict[str, Slot] = {}
    tensors = []
    for kind, things in by_kind(tracked):
        for name, tensor in kind.tensors(things):
            local = local_part(tensor, name)
            if name in slots:
                raise StateError(f"{name}: two tracked tensors have this name; track the objects under other names")
            slots[name] = slot_of(name, local)
            tensors.append(local)
    return Inventory(tracked, tuple(slots.values()), tensors, _parameters(tracked))


def _parameters(tracked: Tracked) -> tuple[tuple[str, torch.Tensor], ...]:
    names = {id(tensor): name for name, tensor in module_tensors(tracked)}
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, optimizer in optimizers(tracked):
        for each in optimizer_parameters(name, optimizer):
            key = id(each.parameter)
            found.setdefault(key, (names.get(key, each.name), each.parameter))
    for name, thing, kind in tracked_objects(tracked):
        for parameter in kind.parameters(thing):
            found.setdefault(id(parameter), (names.get(id(parameter), name), parameter))
    return tuple(found.values())


def grow(tracked: Tracked, slots: Sequence[Slot]) -> Inventory:
    """The inventory of `tracked` after its tensors were made to match the giver's slots: optimizer state that was
    missing is zeros, state that the giver does not have is gone. Raises StateError if the objects cannot match."""
    wanted = {slot.name: slot for slot in slots}
    grouped = by_kind(tracked)
    claimed = {name for kind, things in grouped for name in kind.claim(things, wanted)}
    for slot in slots:
        if slot.name not in claimed:
            raise StateError(
                f"{slot.name}: the giver has it, shape {list(slot.shape)}, this worker has not; "
                "build the same objects and track them under the same names on every worker"
            )
    for kind, things in grouped:
        kind.make_room(things, wanted)
    inventory = take_inventory(tracked)
    for mine, slot in zip_longest(inventory.slots, slots):
        if mine != slot:
            raise StateError(f"the giver has {_described(slot)} where this worker has {_described(mine)}")
    return inventory


def _described(slot: Slot | None) -> str:
    return "nothing" if slot is None else f"{slot.name}, shape {list(slot.shape)} of {slot.dtype}"


def digest(inventory: Inventory) -> str:
    """One number for the whole state, equal exactly if every bit is: xxh3_128 of all names, shapes, dtypes, bytes and
    the rest. The order of a dict in the rest does not count."""
    hashed = xxhash.xxh3_128(msgspec.msgpack.encode(inventory.slots))
    staging = Staging()
    for tensor in inventory.tensors:
        for part in contents(tensor, staging):
            hashed.update(part)
    hashed.update(inventory.rest(sort_keys=True))
    return hashed.hexdigest()
