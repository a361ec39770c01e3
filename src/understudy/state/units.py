"""The units of a role's state: the parts by which roles are compared, bit by bit. Every tensor is one, and so is the
rest of every tracked object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby

import msgspec
import torch
import xxhash

from .codec import decode, encode
from .errors import StateError
from .inventory import Inventory
from .kinds import OPTIMIZER, tracked_objects
from .memory import Staging, contents

_DIGEST_BITS = 63
"""A digest fits into a signed integer of 64 bits."""


class Unit(msgspec.Struct, frozen=True):
    """One part of a role's state at a boundary."""

    item: str
    """The name under which the job tracks the object that the unit belongs to."""
    name: str
    is_tensor: bool
    loose: bool
    """Whether replicas may differ in it: a step changes it by itself, not by the gradients that all of them share. That
    are buffers and the rests of all objects but optimizers; parameters and the state of optimizers are never loose."""
    bytes: int
    digest: int

    @property
    def key(self) -> tuple[str, bool]:
        return self.name, self.is_tensor


def units_of(inventory: Inventory) -> list[Unit]:
    """All units of a state, in the order of its slots, the rests after them."""
    loose, items, staging = inventory.changing(), list(inventory.tracked), Staging()
    found = []
    for number, (slot, tensor) in enumerate(zip(inventory.slots, inventory.tensors, strict=True)):
        digest = _digest(contents(tensor, staging))
        found.append(Unit(_item(slot.name, items), slot.name, True, number in loose, slot.bytes, digest))
    rests = inventory.rests(sort_keys=True)
    for name, _, kind in tracked_objects(inventory.tracked):
        data = rests[name]
        found.append(Unit(_item(name, items), name, False, kind is not OPTIMIZER, len(data), _digest([data])))
    return found


def _digest(parts: Iterable[bytes | memoryview]) -> int:
    hashed = xxhash.xxh3_64()
    for part in parts:
        hashed.update(part)
    return hashed.intdigest() >> (64 - _DIGEST_BITS)


def _item(name: str, items: Iterable[str]) -> str:
    """The tracked object that a slot or a rest belongs to: their names begin with its name."""
    fitting = [item for item in items if re.match(re.escape(item) + r"(\W|$)", name)]
    return max(fitting, key=len, default=name)


def layout_of(units: Iterable[Unit]) -> int:
    """A number that is equal on roles whose units have the same names. Sizes of rests may differ."""
    names = [(unit.name, unit.bytes if unit.is_tensor else 0) for unit in units]
    return _digest([msgspec.msgpack.encode(names)])


def merged(units: Iterable[Unit]) -> list[Unit]:
    """One unit for each tracked object, for jobs so large that a list of all units would be too long to exchange."""
    ordered = sorted(units, key=lambda unit: unit.item)
    found = []
    for item, parts in groupby(ordered, key=lambda unit: unit.item):
        each = list(parts)
        digest = _digest([msgspec.msgpack.encode([unit.digest for unit in each])])
        loose = all(unit.loose for unit in each) and not any(unit.is_tensor for unit in each)
        found.append(Unit(item, item, False, loose, sum(unit.bytes for unit in each), digest))
    return found


def pack(inventory: Inventory, keys: Iterable[tuple[str, bool]]) -> bytes:
    """The contents of some units, encoded."""
    wanted = set(keys)
    tensors = {
        slot.name: tensor
        for slot, tensor in zip(inventory.slots, inventory.tensors, strict=True)
        if (slot.name, True) in wanted
    }
    rests = {
        name: inventory.given[name] if name in inventory.given else kind.rest(name, thing)
        for name, thing, kind in tracked_objects(inventory.tracked)
        if (name, False) in wanted
    }
    return encode({"tensors": tensors, "rests": rests}, "the state of this role alone", sort_keys=True)


def unpack(inventory: Inventory, data: bytes) -> Inventory:
    """This state with the units of another role, as `pack` has encoded them there."""
    match decode(data):
        case {"tensors": dict() as tensors, "rests": dict() as rests}:
            return inventory.with_parts(_checked(tensors), rests)
    raise StateError("the state of a role alone: is not what a worker exchanges")


def _checked(tensors: Mapping[object, object]) -> dict[str, torch.Tensor]:
    return {str(name): value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
