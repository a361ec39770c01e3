"""For `understudy rehearse`: what a role holds at every step boundary, and training that waits where it is told to.

Nothing of it is there in other jobs. Looking on changes no result: see looks.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import msgspec
import xxhash

from understudy.state.codec import decode, encode
from understudy.state.inventory import Inventory, take_inventory
from understudy.state.kinds import tracked_objects
from understudy.state.twins import twins

from .glimpse import FALLEN, PACE, Glimpse, Pace, Scope, Value
from .looks import Looker, feed_tensor, is_own, is_own_file, locals_of, members
from .runtime import WorkerRuntime

_LOOK_S = 0.01
_PATIENCE_S = 3600.0
_DEEP = 3
"""Attributes of attributes of attributes."""
_MANY = 2000
_FREELY = Pace(1 << 62)
_HERE = str(Path(__file__).parents[1])


class Probe:
    """Of one worker, in its training thread."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self._runtime, self._world = runtime, runtime.world
        self._folder = Path(runtime.spec.probe)
        self._twins: tuple[int, ...] = ()

    def _pace(self) -> Pace:
        try:
            return msgspec.json.decode((self._folder / PACE).read_bytes(), type=Pace)
        except FileNotFoundError:
            return _FREELY

    def wait(self) -> None:
        """Before a boundary: until the next step may begin. A newcomer, which has no step yet, does not wait."""
        deadline = self._world.monotonic() + _PATIENCE_S
        while self._twins and self._runtime.protocol.step >= self._pace().steps and self._world.monotonic() < deadline:
            self._world.sleep(_LOOK_S)

    def fall(self, step: int) -> None:
        """Before a vote: a machine that is to die in this step comes no further."""
        pace = self._pace()
        if pace.falling == self._runtime.spec.machine and step == pace.steps - 1:
            (self._folder / f"{FALLEN}{self._runtime.spec.uid}").touch()
            self._world.sleep(_PATIENCE_S)

    def look(self, step: int) -> None:
        """Write down what this role holds, between two steps."""
        runtime = self._runtime
        inventory = take_inventory(runtime.tracked)
        role = runtime.role
        if not self._twins:
            self._twins = tuple(sorted({*twins(runtime.tracked), *runtime.same, role}))
        values, scopes, files = _surroundings(sys._getframe(1), self._skipped(inventory))
        glimpse = Glimpse(
            role,
            step,
            runtime.spec.uid,
            runtime.spec.machine,
            _state(inventory),
            values,
            scopes,
            self._twins,
            files,
            self._pace().act,
        )
        line = msgspec.json.encode(glimpse) + b"\n"
        file = os.open(self._folder / f"{runtime.spec.uid}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line)
        os.close(file)

    def _skipped(self, inventory: Inventory) -> set[int]:
        """By id: what is tracked, and what belongs to that."""
        found = {id(tensor) for tensor in inventory.tensors} | {id(tensor) for _, tensor in inventory.parameters}
        for _, thing, kind in tracked_objects(self._runtime.tracked):
            found |= {id(thing), *map(id, kind.belongings(thing))}
        return found


def _state(inventory: Inventory) -> dict[str, str]:
    """A digest of every tensor, and of each part of whatever else is tracked."""
    found = {}
    for slot, tensor in zip(inventory.slots, inventory.tensors, strict=True):
        hashed = xxhash.xxh3_64()
        feed_tensor(hashed, tensor)
        found[slot.name] = hashed.hexdigest()
    parts: Any = decode(inventory.rest(sort_keys=True))
    for name, data in parts.items():
        part = decode(data)
        pieces = part.items() if isinstance(part, dict) and all(isinstance(key, str) for key in part) else [("", part)]
        for key, piece in pieces:
            path = f"{name}.{key}" if key else name
            found.setdefault(path, xxhash.xxh3_64_hexdigest(encode(piece, path, sort_keys=True)))
    return found


# -- what the script holds beside what it tracks -----------------------------------------------------------------------


def _surroundings(
    frame: FrameType | None, skipped: set[int]
) -> tuple[dict[str, Value], tuple[Scope, ...], tuple[str, ...]]:
    """The variables of all functions of the script that are under way, and of its modules."""
    looker = Looker(skipped)
    values: dict[str, Value] = {}
    scopes: list[Scope] = []
    seen: set[int] = set()
    spaces: dict[str, dict[str, object]] = {}
    while frame is not None:
        code = frame.f_code
        file = str(frame.f_globals.get("__file__", code.co_filename))
        if is_own_file(code.co_filename) and not code.co_filename.startswith(_HERE):
            spaces[file] = frame.f_globals
            if code.co_name != "<module>":
                scopes.append(Scope(file, code.co_name, code.co_firstlineno, frame.f_lineno))
                _gather(values, f"{len(scopes) - 1}:", locals_of(frame), looker, seen)
        frame = frame.f_back
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        if is_own_file(file) and not file.startswith(_HERE):
            spaces.setdefault(file, vars(module))
    for file, space in spaces.items():
        scopes.append(Scope(file, "<module>"))
        variables = {name: value for name, value in space.items() if not name.startswith("__")}
        _gather(values, f"{len(scopes) - 1}:", variables, looker, seen)
    return values, tuple(scopes), tuple(spaces)


def _gather(
    values: dict[str, Value],
    prefix: str,
    variables: dict[str, object],
    looker: Looker,
    seen: set[int],
    deep: int = _DEEP,
) -> None:
    """Each object once, by the first way that leads to it."""
    for name, value in variables.items():
        path = prefix + name
        if len(values) >= _MANY or path in values or name.startswith("__"):
            continue
        if not isinstance(value, int | float | str | bytes | None):
            if id(value) in seen:
                continue
            seen.add(id(value))
        found = looker.look(value)
        if found is not None:
            values[path] = found
        elif deep and id(value) not in looker.skipped and _opens(value):
            _gather(values, f"{path}.", dict(members(value)), looker, seen, deep - 1)


def _opens(value: object) -> bool:
    """Whether it is the script's own, so that what is inside are variables."""
    if isinstance(value, FunctionType):
        return value.__closure__ is not None and is_own_file(value.__code__.co_filename)
    return is_own(value if isinstance(value, type) else type(value))
