"""Nested Python values, such as those of a `state_dict()`, as bytes and back. Nothing is ever unpickled.

None, bool, float, bytes and most int and str are plain MessagePack. Every other value is an array that begins with a
tag; so a tuple stays a tuple, and a declared size is always checked against the bytes that have arrived.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from math import prod
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import torch

from understudy.device.cpu import HOST

from .errors import StateError
from .memory import DTYPES, dtype_name, flat_bytes

_IN_SET = object()
"""The place of an element of a set."""
_DEEPEST = 100
"""Levels of nesting. The limit also finds a structure that contains itself."""
_MOST_DIMENSIONS = 64
_ARRAY_DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[SU]\d{1,9}|[mM]8(\[\w{1,16}\])?)")


class _Tag(IntEnum):
    LIST, TUPLE, SET, FROZENSET, DICT, ORDERED_DICT, COUNTER, SIZE = range(8)
    INT, STR, COMPLEX, TENSOR, ARRAY, SCALAR, DTYPE, DEVICE = range(8, 16)


_PLAIN = (NoneType, bool, float, bytes)
_ATOMS = (NoneType, bool, int, float, str, bytes)
_SEQUENCES: dict[type, _Tag] = {list: _Tag.LIST, tuple: _Tag.TUPLE, torch.Size: _Tag.SIZE}
_SETS: dict[type, _Tag] = {set: _Tag.SET, frozenset: _Tag.FROZENSET}
_MAPPINGS: dict[type, _Tag] = {dict: _Tag.DICT, OrderedDict: _Tag.ORDERED_DICT, Counter: _Tag.COUNTER}
_MAPPINGS[defaultdict] = _Tag.DICT  # it loses its factory, which is code


class _Unmovable(Exception):
    """A value that cannot be encoded: the reason, and the path to the value, built from the inside out."""

    def __init__(self, reason: str) -> None:
        self.reason, self.path = reason, list[str]()


def encode(value: object, where: str, *, sort_keys: bool = False) -> bytes:
    """`value` as bytes that `decode` turns back into an equal value. Equal values give equal bytes, in every process.

    The order of a dict is kept, and counts, unless `sort_keys`. `where` is the name of the value in errors."""
    try:
        return msgspec.msgpack.encode(_Encoder(sort_keys).plain(value, 0))
    except _Unmovable as error:
        raise StateError(f"{where}{''.join(reversed(error.path))}: {error.reason}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise StateError(f"{where}: cannot be encoded: {error}; a single value has a limit of 4 GiB") from error


def decode(data: bytes | bytearray | memoryview) -> Any:
    """The value that `encode` was given, with tensors on the host. Raises StateError for any fault in the bytes."""
    try:
        return _build(msgspec.msgpack.decode(data))
    except StateError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise StateError(f"received state: {reason}; giver and taker must run the same version") from error


# -- to bytes ----------------------------------------------------------------------------------------------------------


class _Encoder:
    def __init__(self, sort_keys: bool) -> None:
        self.sort_keys = sort_keys

    def plain(self, value: Any, depth: int) -> object:
        """The value as one of the types that MessagePack has."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int and not -(1 << 63) <= value < 1 << 64:
            return [_Tag.INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]
        if kind is int:
            return value
        if kind is str:
            return _str(value)
        if depth > _DEEPEST:
            raise _Unmovable(f"more than {_DEEPEST} levels deep, or it contains itself; let state_dict() be flatter")
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind], *(self._inside(item, depth, number) for number, item in enumerate(value))]
        if kind in _MAPPINGS:
            return self._mapping(_MAPPINGS[kind], value, depth)
        if kind in _SETS:
            items = [self._inside(item, depth, _IN_SET) for item in value]
            return [_SETS[kind], *sorted(items, key=msgspec.msgpack.encode)]
        return _leaf(value)

    def _inside(self, item: object, depth: int, place: object) -> object:
        try:
            return self.plain(item, depth + 1)
        except _Unmovable as error:
            error.path.append(_step(place))
            raise

    def _mapping(self, tag: _Tag, value: Mapping[object, object], depth: int) -> list[object]:
        pairs = [(self._inside(key, depth, key), self._inside(item, depth, key)) for key, item in value.items()]
        if self.sort_keys:
            pairs.sort(key=lambda pair: msgspec.msgpack.encode(pair[0]))
        return [tag, *(part for pair in pairs for part in pair)]


def _step(key: object) -> str:
    """A step of the path to a value, as Python would write it."""
    if key is _IN_SET:
        return "{…}"
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r:.80}]"


def _str(value: str) -> object:
    try:
        value.encode()
    except UnicodeEncodeError:
        return [_Tag.STR, value.encode("utf-8", "surrogatepass")]
    return value


def _leaf(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if type(value) is np.ndarray:
        return _array(_Tag.ARRAY, value)
    if isinstance(value, np.str_):
        return _str(str(value))
    if isinstance(value, np.bytes_):
        return bytes(value)
    if isinstance(value, np.generic):
        return _array(_Tag.SCALAR, np.asarray(value))
    if isinstance(value, complex) and type(value) is complex:
        return [_Tag.COMPLEX, value.real, value.imag]
    if isinstance(value, torch.dtype):
        return [_Tag.DTYPE, dtype_name(value)]
    if isinstance(value, torch.device):
        return [_Tag.DEVICE, str(value)]
    raise _unsafe(type(value).__name__)


def _unsafe(name: str) -> _Unmovable:
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    return _Unmovable(f"{article} {name} cannot be moved safely; let state_dict() return plain values")


def _tensor(value: torch.Tensor) -> object:
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_quantized:
        raise _unsafe(f"{type(value).__name__} ({value.layout})")
    if value.is_meta:
        raise _Unmovable("a tensor on the meta device holds nothing to move; give it memory first")
    flat = HOST.bring(value.detach().resolve_conj().resolve_neg())
    return [_Tag.TENSOR, dtype_name(value.dtype), list(value.shape), flat_bytes(flat)]


def _array(tag: _Tag, value: np.ndarray[Any, Any]) -> object:
    if not _ARRAY_DTYPE.fullmatch(value.dtype.str) or value.dtype.itemsize == 0:
        raise _unsafe(f"numpy array of {value.dtype}")
    return [tag, value.dtype.str, list(value.shape), value.tobytes()]


# -- and back ----------------------------------------------------------------------------------------------------------


def _build(node: Any) -> Any:
    if type(node) is not list:
        if type(node) in _ATOMS:
            return node
        raise StateError(f"received state: holds a {type(node).__name__}, which no giver sends")
    if not node or type(node[0]) is not int or node[0] not in _BUILDERS:
        raise StateError(f"received state: unknown tag {node[:1]!r:.80}; giver and taker must run the same version")
    return _BUILDERS[node[0]](node[1:])


def _parts(parts: list[Any], *kinds: type) -> list[Any]:
    if [type(part) for part in parts] != list(kinds):
        raise StateError("received state: a value has other parts than its tag needs")
    return parts


def _pairs(parts: list[Any]) -> Iterable[tuple[Any, Any]]:
    if len(parts) % 2:
        raise StateError("received state: a dict has a key without a value")
    built = iter([_build(part) for part in parts])
    return zip(built, built, strict=True)


def _to_tensor(parts: list[Any]) -> torch.Tensor:
    name, shape, raw = _parts(parts, str, list, bytes)
    dtype = _to_dtype([name])
    _check_size(shape, dtype.itemsize, raw)
    tensor = HOST.empty(shape, dtype)
    if raw:
        flat_bytes(tensor)[:] = raw
    return tensor


def _to_array(parts: list[Any]) -> np.ndarray[Any, Any]:
    name, shape, raw = _parts(parts, str, list, bytes)
    if not _ARRAY_DTYPE.fullmatch(name):
        raise StateError(f"received state: an array of {name!r:.80}")
    dtype = np.dtype(name)
    _check_size(shape, dtype.itemsize, raw)
    return np.ndarray(shape, dtype, bytearray(raw))


def _check_size(shape: list[Any], itemsize: int, raw: bytes) -> None:
    if len(shape) > _MOST_DIMENSIONS or any(type(size) is not int or size < 0 for size in shape):
        raise StateError(f"received state: {shape!r:.80} is no shape")
    if itemsize == 0 or prod(shape) * itemsize != len(raw):
        raise StateError(f"received state: {len(raw)} bytes for shape {shape}, {itemsize} bytes each")


def _to_dtype(parts: list[Any]) -> torch.dtype:
    (name,) = _parts(parts, str)
    if name not in DTYPES:
        raise StateError(f"received state: no dtype {name!r:.80}")
    return DTYPES[name]


def _to_size(parts: list[Any]) -> torch.Size:
    if any(type(part) is not int for part in parts):
        raise StateError("received state: a size that is not of integers")
    return torch.Size(parts)


_BUILDERS: dict[int, Callable[[list[Any]], Any]] = {
    _Tag.LIST: lambda parts: [_build(part) for part in parts],
    _Tag.TUPLE: lambda parts: tuple(_build(part) for part in parts),
    _Tag.SET: lambda parts: {_build(part) for part in parts},
    _Tag.FROZENSET: lambda parts: frozenset(_build(part) for part in parts),
    _Tag.DICT: lambda parts: dict(_pairs(parts)),
    _Tag.ORDERED_DICT: lambda parts: OrderedDict(_pairs(parts)),
    _Tag.COUNTER: lambda parts: Counter(dict(_pairs(parts))),
    _Tag.SIZE: _to_size,
    _Tag.INT: lambda parts: int.from_bytes(_parts(parts, bytes)[0], "little", signed=True),
    _Tag.STR: lambda parts: _parts(parts, bytes)[0].decode("utf-8", "surrogatepass"),
    _Tag.COMPLEX: lambda parts: complex(*_parts(parts, float, float)),
    _Tag.TENSOR: _to_tensor,
    _Tag.ARRAY: _to_array,
    _Tag.SCALAR: lambda parts: _to_array(parts)[()],
    _Tag.DTYPE: _to_dtype,
    _Tag.DEVICE: lambda parts: torch.device(_parts(parts, str)[0]),
}
