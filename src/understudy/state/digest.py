"""One number for a role's whole state: equal exactly if every bit is."""

from __future__ import annotations

import msgspec
import xxhash

from .inventory import Inventory
from .memory import PIECE, Staging, in_place, size_of


def digest(inventory: Inventory) -> str:
    """xxh3_128 of all names, shapes, dtypes, bytes and the rest. The order of a dict in the rest does not count."""
    hashed = xxhash.xxh3_128(msgspec.msgpack.encode(inventory.slots))
    staging: Staging | None = None
    for tensor in inventory.tensors:
        if (view := in_place(tensor)) is not None:
            hashed.update(view)
            continue
        staging = staging or Staging()
        size = size_of(tensor)
        for offset in range(0, size, PIECE):
            hashed.update(staging.read(tensor, offset, min(PIECE, size - offset)))
    hashed.update(inventory.rest(sort_keys=True))
    return hashed.hexdigest()
