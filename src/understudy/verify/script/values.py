"""Values of any kind as a digest and a few words.

Reading changes nothing: it draws no random number, advances no iterator and calls no method of the script.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler

from understudy.device import torch_private
from understudy.device.cpu import HOST
from understudy.state.errors import StateError
from understudy.state.kinds import MODULE, OPTIMIZER, SCALER, SCHEDULER
from understudy.state.memory import local_part

from .observation import Value

_DEPTH = 6
_ITEMS = 20_000
_WIDTH = 40
_PARTS = 100
"""Elements of a container, and attributes of an object, that are looked at."""
_LARGE = 16 << 20
"""Bytes."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NEVER = (types.ModuleType, types.CodeType, types.FrameType, types.BuiltinFunctionType, type)
_NO_STATE = (types.FunctionType, types.MethodType, *_NEVER)
PACKAGE = str(Path(__file__).parents[2])
"""The folder of the runtime."""
_LIBRARY = (str(Path(os.__file__).parent), str(Path(torch.__file__).parents[1]))
_SAMPLES: tuple[Any, ...] = ([], (), range(0), range(1 << 70), "", b"", {}, {}.values(), {}.items(), set())
_BUILTIN_ITERATORS: tuple[type, ...] = (
    *{type(iter(each)) for each in _SAMPLES},
    *(type(reversed([])), enumerate, zip, map, filter),
)


class Unreadable(Exception):
    """A value that cannot be read."""


class ValueReader:
    """Reads values, except objects with an id in `skipped`: tracked objects and their parts."""

    def __init__(self, skipped: set[int]) -> None:
        self.skipped = skipped
        self._left = _ITEMS

    def read(self, value: object) -> Value | None:
        """Read a value; None if it is no state: a function, a type, a tracked object, an object of the runtime."""
        if self._ignored(value):
            return None
        kind = kind_of(value)
        if not kind:
            return None
        hashed = xxhash.xxh3_64()
        self._left = _ITEMS
        try:
            self._feed(hashed, value, _DEPTH)
        except Unreadable:
            return Value(kind, "", f"a {type(value).__name__}") if kind == "iterator" else None
        except Exception:  # an object of the script may refuse to be read
            return None
        return Value(kind, hashed.hexdigest(), short(value), _is_constant(value))

    def _ignored(self, value: object) -> bool:
        if id(value) in self.skipped or isinstance(value, _NEVER) or _ours(type(value)):
            return True
        if isinstance(value, nn.Module):
            tensors = [*value.parameters(), *value.buffers()]
            return not tensors or all(id(tensor) in self.skipped for tensor in tensors)
        if isinstance(value, torch.Tensor):
            base = torch_private.base(value)
            return base is not None and id(base) in self.skipped
        if isinstance(value, types.GeneratorType):
            return value.gi_code.co_filename.startswith(PACKAGE) or any(
                id(each) in self.skipped for each in _locals_of(value).values()
            )
        if kind_of(value) == "iterator":
            return any(id(each) in self.skipped for each in getattr(value, "__dict__", {}).values())
        return False

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def _feed(self, hashed: Any, value: object, depth: int) -> None:
        self._left -= 1
        if depth < 0 or self._left < 0 or id(value) in self.skipped:
            return
        size = len(value) if isinstance(value, list | tuple | deque | dict | set | frozenset) else ""
        hashed.update(f"{type(value).__name__}{size}".encode())
        if isinstance(value, _PLAIN):
            hashed.update(repr(value).encode(errors="replace"))
        elif isinstance(value, torch.Tensor):
            feed_tensor(hashed, _sample(value.detach()))
        elif isinstance(value, nn.Module):
            for name, tensor in itertools.chain(value.named_parameters(), value.named_buffers()):
                hashed.update(name.encode())
                feed_tensor(hashed, tensor)
        elif isinstance(value, Optimizer):
            for group in value.param_groups:
                self._pairs(hashed, {key: each for key, each in group.items() if key != "params"}, depth)
                for parameter in group["params"]:
                    self._feed(hashed, value.state.get(parameter, {}), depth - 1)
        elif (state := generator_state(value)) is not None:
            self._feed(hashed, state, depth)
        elif isinstance(value, list | tuple | deque):
            for each in value:
                self._feed(hashed, each, depth - 1)
        elif isinstance(value, dict):
            self._pairs(hashed, value, depth)
        elif isinstance(value, set | frozenset):
            hashed.update("".join(sorted(self._alone(each, depth - 1) for each in value)).encode())
        elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            hashed.update(_sample(value).tobytes())
        elif kind_of(value) == "iterator":
            self._feed(hashed, position(value), depth - 1)
        elif isinstance(value, Sampler):
            own = {name: each for name, each in vars(value).items() if isinstance(each, (*_PLAIN, torch.Generator))}
            self._pairs(hashed, own, depth)
        elif isinstance(value, _NO_STATE) or _ours(type(value)):
            return
        elif hasattr(value, "__dict__"):
            self._pairs(hashed, vars(value), depth)

    def _pairs(self, hashed: Any, pairs: Mapping[Any, object], depth: int) -> None:
        for key, each in pairs.items():
            if isinstance(key, _PLAIN):
                hashed.update(repr(key).encode(errors="replace"))
                if not isinstance(each, nn.Module | Optimizer):  # they are read separately
                    self._feed(hashed, each, depth - 1)

    def _alone(self, value: object, depth: int) -> str:
        hashed = xxhash.xxh3_64()
        self._feed(hashed, value, depth)
        return str(hashed.hexdigest())


def _sample(value: Any) -> Any:
    """The value itself, or rows from all over it if it is very large, such as a dataset."""
    if value.nbytes <= _LARGE or not value.shape:
        return value
    return value[:: -(-value.nbytes // _LARGE)]


def feed_tensor(hashed: Any, tensor: torch.Tensor) -> None:
    """Hash a tensor: its shape, dtype and all bytes."""
    try:
        local = local_part(tensor.detach(), "")
    except StateError:
        return
    hashed.update(f"{tuple(local.shape)}{local.dtype}".encode())
    flat = HOST.bring(local).flatten()
    if flat.numel():
        hashed.update(flat.view(torch.uint8).numpy().data)


# -- kinds -------------------------------------------------------------------------------------------------------------


def _ours(kind: type) -> bool:
    """Whether a class belongs to the runtime or to torch.distributed: its objects are no state of the script."""
    return kind.__module__.partition(".")[0] == "understudy" or kind.__module__.startswith("torch.distributed.device")


def kind_of(value: object) -> str:
    """The kind of a value in a word; empty if it cannot hold state."""
    known: tuple[tuple[type | tuple[type, ...], str], ...] = (
        *((kind.type, kind.name) for kind in (MODULE, OPTIMIZER, SCHEDULER, SCALER)),
        (torch.Tensor, "tensor"),
        ((torch.Generator, random.Random), "generator"),
        (bool, "flag"),
        (int, "counter"),
        ((float, complex), "number"),
        ((str, bytes), "text"),
        ((list, deque), "list"),
        (tuple, "tuple"),
        (dict, "dict"),
        ((set, frozenset), "set"),
        (types.GeneratorType, "iterator"),
    )
    for types_, word in known:
        if isinstance(value, types_):
            return word
    if type(value).__module__.startswith("numpy") and generator_state(value) is not None:
        return "generator"
    if type(value).__module__ == "numpy":
        return "array" if hasattr(value, "tobytes") else ""
    if isinstance(value, _NO_STATE):
        return ""
    if isinstance(value, Sampler) and not is_own(type(value)):
        return "sampler" if hasattr(type(value), "set_epoch") else ""
    if isinstance(value, _BUILTIN_ITERATORS) or (hasattr(type(value), "__next__") and not is_own(type(value))):
        return "iterator"
    if hasattr(type(value), "state_dict") and hasattr(type(value), "load_state_dict"):
        return "object"
    return ""


STATEFUL = ("module", "optimizer", "scheduler", "scaler", "sampler", "generator")
"""Kinds that exist to hold state, wherever an object of them is found."""


def _is_constant(value: object) -> bool:
    """Whether a value cannot change by what it is."""
    if isinstance(value, SCALER.type):
        return not value.is_enabled()  # type: ignore[attr-defined]
    return isinstance(value, Sampler) and getattr(value, "shuffle", True) is False


def parts(value: object) -> Iterator[tuple[str, object]]:
    """The objects with state that a container or an object of a library holds, by their path from it."""
    if isinstance(value, list | tuple | deque):
        inside = [(f"[{number}]", each) for number, each in enumerate(itertools.islice(value, _PARTS))]
    elif isinstance(value, dict):
        inside = [(f"[{key!r}]", each) for key, each in itertools.islice(value.items(), _PARTS)]
    elif isinstance(value, (*_PLAIN, *_NO_STATE, torch.Tensor, nn.Module)) or not hasattr(value, "__dict__"):
        return
    else:
        inside = [(f".{name}", each) for name, each in itertools.islice(vars(value).items(), _PARTS)]
    for path, each in inside:
        if kind_of(each) in STATEFUL or (not isinstance(value, tuple) and is_instance_of_own(each)):
            yield path, each


def within(value: object, depth: int = 3) -> Iterator[object]:
    """All objects that an object holds, in attributes and containers."""
    held = [each for _, each in members(value)] if hasattr(value, "__dict__") else []
    if isinstance(value, list | tuple | deque):
        held = list(itertools.islice(value, _PARTS))
    elif isinstance(value, dict):
        held = list(itertools.islice(value.values(), _PARTS))
    for each in held:
        if not isinstance(each, (*_PLAIN, *_NO_STATE)):
            yield each
            if depth:
                yield from within(each, depth - 1)


def is_instance_of_own(value: object) -> bool:
    """Whether an object is an instance of a class of the script, so that its attributes are variables of it."""
    return not isinstance(value, (*_PLAIN, *_NO_STATE, torch.Tensor)) and is_own(type(value))


def is_own(kind: type) -> bool:
    """Whether a class belongs to the script, so that its attributes are variables of the script."""
    if kind.__module__ == "__main__":
        return True
    return is_own_file(getattr(sys.modules.get(kind.__module__), "__file__", None)) and not _ours(kind)


def is_own_file(file: str | None) -> bool:
    """Whether a file belongs to the script: it is no part of Python, of a package or of the runtime."""
    return bool(file and file.startswith("/") and "-packages/" not in file) and not str(file).startswith(_LIBRARY)


def generator_state(value: object) -> object | None:
    """The state of a random number generator, None for anything else; draws no number."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if type(value).__module__.startswith("numpy.random"):
        bits = getattr(value, "bit_generator", value)
        state = getattr(bits, "state", None)
        return state if isinstance(state, dict) else getattr(value, "get_state", lambda: None)()
    return None


def _locals_of(generator: types.GeneratorType[Any, Any, Any]) -> dict[str, object]:
    frame = generator.gi_frame
    return {} if frame is None else locals_of(frame)


def locals_of(frame: types.FrameType) -> dict[str, object]:
    """A frame's variables. The frame keeps no reference to them."""
    found = frame.f_locals
    kept = dict(found)
    if type(found) is dict and frame.f_code.co_flags & 1:  # CO_OPTIMIZED: a snapshot, not the variables themselves
        found.clear()
    return kept


def position(value: object) -> object:
    """The position of an iterator. Raises Unreadable if it cannot be known."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return ("over",) if frame is None else (frame.f_lasti, _locals_of(value))
    if isinstance(value, _BUILTIN_ITERATORS):
        reduced: Any = value.__reduce__()
        return tuple(each for each in reduced[1:] if each is not None)
    if type(value).__module__ == "itertools":
        if isinstance(value, itertools.count | itertools.repeat):
            return repr(value)
        raise Unreadable
    if (taken := torch_private.taken(value)) is not None:
        return taken
    raise Unreadable


# -- words -------------------------------------------------------------------------------------------------------------


def short(value: object) -> str:
    """A value in a few words that distinguish it from others."""
    try:
        text = _short(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _short(value: object) -> str:
    if isinstance(value, torch.Generator):
        return f"state {xxhash.xxh3_64_hexdigest(value.get_state().numpy().data)[:6]}…"
    if type(value) is float:
        return f"{value:.10g}"
    if isinstance(value, nn.Module):
        first = next(itertools.chain(value.parameters(), value.buffers()))
        return f"{type(value).__name__}, {_tensor(first)}"
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, list | tuple | deque | dict | set | frozenset):
        if isinstance(value, dict) and 0 < len(value) < 4 and all(isinstance(each, _PLAIN) for each in value.values()):
            return ", ".join(f"{key}: {_short(each)}" for key, each in value.items())
        inside = ""
        if value and isinstance(value, list | tuple | deque) and isinstance(value[-1], _PLAIN):
            inside = f", last {_short(value[-1])}"
        return f"{len(value)} items{inside}"
    if isinstance(value, LRScheduler):
        return f"{type(value).__name__} at {value.last_epoch}"
    if (taken := torch_private.taken(value)) is not None:
        return f"{taken} taken"
    if isinstance(value, _BUILTIN_ITERATORS) and not isinstance(value, zip | map | filter):
        reduced: Any = value.__reduce__()
        return f"at {reduced[-1]}" if isinstance(reduced[-1], int) else f"a {type(value).__name__}"
    if isinstance(value, types.GeneratorType):
        plain = {name: each for name, each in _locals_of(value).items() if isinstance(each, int | float)}
        return f"{value.__name__}, " + (", ".join(f"{name}={each}" for name, each in plain.items()) or "under way")
    if (state := generator_state(value)) is not None:
        return f"state {xxhash.xxh3_64_hexdigest(repr(state).encode())[:6]}…"
    return f"a {type(value).__name__}"


def _tensor(tensor: torch.Tensor) -> str:
    local = local_part(tensor.detach(), "").flatten()
    if not local.numel():
        return "empty"
    numbers = ", ".join(f"{each:.6g}" if isinstance(each, float) else str(each) for each in local[:2].tolist())
    return numbers if local.numel() <= 2 else f"{numbers}, … ({'×'.join(map(str, tensor.shape))})"


def members(value: object) -> Iterator[tuple[str, object]]:
    """The attributes of an object of the script, and the variables that a function of the script has closed over."""
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not assigned yet
                continue
    elif isinstance(value, type):
        for name, each in vars(value).items():
            if not name.startswith("__"):
                yield name, each
    else:
        yield from getattr(value, "__dict__", {}).items()
        for kind in type(value).__mro__:
            for name in getattr(kind, "__slots__", ()):
                if isinstance(name, str) and not name.startswith("__") and hasattr(value, name):
                    yield name, getattr(value, name)
