"""The check that a dataset gives the same sample for an index every time, so that any replica can compute any shard."""

from __future__ import annotations

import dataclasses
import random
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from understudy.device.cpu import HOST

from .sampler import DataError, permute

READ = 8
"""The number of samples that are read."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_WAY_OUT = "seed what is random from the index, such as torch.Generator().manual_seed(index)"


def check(dataset: object, samples: int = READ) -> int:
    """Check that a dataset gives the same bits for an index whenever it is read. Returns its number of samples.

    Reads a few samples, and again in another order. Raises DataError if a sample differs, or draws from the global
    random numbers, which belong to training. The state of these is restored.
    """
    size = _size(dataset)
    chosen = sorted({0, size - 1, *permute(np.arange(min(samples, size)), size, 0).tolist()[: max(samples - 2, 0)]})
    states = random.getstate(), np.random.get_state(), HOST.rng_state()
    try:
        before = {index: _leaves_of(dataset, index) for index in chosen}
        for index in reversed(chosen):
            _compare(index, before[index], _leaves_of(dataset, index))
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        HOST.set_rng_state(states[2])
    return size


def _size(dataset: object) -> int:
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{name} can only be read from its beginning on, but any replica must be able to read any sample; "
            f"give it __getitem__(index) and __len__()"
        )
    try:
        size = len(dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        raise DataError(f"{name} does not say how many samples it has; give it __len__()") from None
    if size < 1:
        raise DataError(f"{name} has no samples")
    return size


Leaves = dict[str, tuple[str, bytes]]
"""The values of a sample: by path, the type and the bits of each."""


def _leaves_of(dataset: Any, index: int) -> Leaves:
    states = _random_states()
    leaves = dict(_leaves(read(dataset, index), ""))
    for (source, before), (_, after) in zip(states, _random_states(), strict=True):
        if before != after:
            raise DataError(f"sample {index} draws from the global random numbers of {source}; {_WAY_OUT}")
    return leaves


def read(dataset: Any, index: int) -> Any:
    """A sample. Raises DataError if the dataset cannot read it."""
    try:
        return dataset[index]
    except Exception as error:
        raise DataError(f"sample {index} of {type(dataset).__name__} cannot be read: {error!r}") from error


def _random_states() -> list[tuple[str, bytes]]:
    _, keys, place, *_ = np.random.get_state()
    return [
        ("random", repr(random.getstate()).encode()),
        ("numpy", np.asarray(keys).tobytes() + str(place).encode()),
        ("torch", HOST.rng_state().numpy().tobytes()),
    ]


def _leaves(value: Any, at: str, above: tuple[int, ...] = ()) -> Iterator[tuple[str, tuple[str, bytes]]]:
    if id(value) in above:
        return
    inside = (*above, id(value))
    match value:
        case torch.Tensor():
            dense = value if value.layout == torch.strided else value.to_dense()
            tensor = HOST.bring(dense)
            kind = f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
            yield at, (kind, tensor.flatten().view(torch.uint8).numpy().tobytes())
        case np.ndarray() | np.generic() if value.dtype != object:
            yield at, (f"{value.dtype} of shape {value.shape}", value.tobytes())
        case float():
            yield at, ("float", struct.pack("<d", value))
        case str():
            yield at, ("str", value.encode("utf-8", "surrogatepass"))
        case bytes() | bytearray():
            yield at, (type(value).__name__, bytes(value))
        case Mapping():
            yield at, ("mapping", repr(sorted(map(repr, value))).encode())
            for key in value:
                yield from _leaves(value[key], f"{at}[{key!r}]", inside)
        case Sequence() | np.ndarray():
            yield at, (type(value).__name__, str(len(value)).encode())
            for number, item in enumerate(value):
                yield from _leaves(item, f"{at}[{number}]", inside)
        case _ if callable(getattr(value, "tobytes", None)):  # such as an image
            yield at, (type(value).__name__, value.tobytes())
        case _ if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                yield from _leaves(getattr(value, field.name), f"{at}.{field.name}", inside)
        case _ if hasattr(value, "__dict__"):
            for key, item in list(vars(value).items()):
                yield from _leaves(item, f"{at}.{key}", inside)
        case set() | frozenset():
            yield at, (type(value).__name__, repr(sorted(map(repr, value))).encode())
        case _:
            yield at, (type(value).__name__, _ADDRESS.sub("", repr(value)).encode())


def _compare(index: int, before: Leaves, after: Leaves) -> None:
    for at in sorted(before.keys() | after.keys()):
        kind, bits = before.get(at, ("missing", b""))
        other, others = after.get(at, ("missing", b""))
        if (kind, bits) == (other, others):
            continue
        if kind != other:
            difference = f"{kind} at first, then {other}"
        elif len(bits) != len(others):
            difference = f"{kind} of {len(bits):,} bytes at first, then {len(others):,}"
        else:
            changed = sum(a != b for a, b in zip(bits, others, strict=True))
            difference = f"{kind}, of which {changed:,} of {len(bits):,} bytes differ"
        where = f" at {at}" if at else ""
        raise DataError(f"sample {index} is not the same when it is read again:{where} {difference}; {_WAY_OUT}")
