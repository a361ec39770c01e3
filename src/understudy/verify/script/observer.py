"""An extension for `understudy check`: writes what a role holds at every step boundary, and holds training on order.

Observing changes no result: see values.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import msgspec
import xxhash
from torch.utils.data import DataLoader

from understudy.state.codec import decode, encode
from understudy.state.inventory import Inventory, take_inventory
from understudy.state.kinds import OBJECT, tracked_objects
from understudy.state.twins import expected_twins, twins
from understudy.worker.agent_connection import AgentConnection
from understudy.worker.runtime import WorkerRuntime

from .observation import AWAITS_KILL, PACE, Observation, Pace, Scope, Value
from .values import PACKAGE, ValueReader, feed_tensor, is_own, is_own_file, locals_of, members, parts, within

_POLL_S = 0.01
_DEPTH = 3
"""Levels of attributes: of a variable, of its attributes, of theirs."""
_MOST_VALUES = 2000
_UNLIMITED = Pace(1 << 62)


def extend_worker(worker: WorkerRuntime, connection: AgentConnection, argument: str) -> None:
    """Called when a worker starts; `argument` is the folder for observations."""
    observer = ScriptObserver(worker, Path(argument))
    worker.observer = observer
    watch_loaders(observer.seeded)


class ScriptObserver:
    """The observer of one worker, in its training thread. See `worker.runtime.StepObserver`."""

    def __init__(self, worker: WorkerRuntime, folder: Path) -> None:
        self._worker, self._folder = worker, folder
        self.seeded: list[str] = []

    def _pace(self) -> Pace:
        try:
            return msgspec.json.decode((self._folder / PACE).read_bytes(), type=Pace)
        except FileNotFoundError:
            return _UNLIMITED

    def may_begin(self, step: int) -> bool:
        """Whether the pace of the check allows this step."""
        return step < self._pace().steps

    def before_vote(self, step: int) -> None:
        """Wait to be killed, if this worker's machine is to die in this step; if the generation fails for another
        reason or the order is withdrawn, the worker goes on."""
        worker, told = self._worker, False
        while worker.fabric.fault is None and (pace := self._pace()).dying == worker.spec.machine:
            if step != pace.steps - 1:
                return
            if not told:
                (self._folder / f"{AWAITS_KILL}{worker.spec.uid}").touch()
            told = True
            worker.world.sleep(_POLL_S)

    def at_boundary(self, step: int) -> None:
        """Write what this role holds before `step`."""
        worker = self._worker
        inventory = take_inventory(worker.tracked)
        values, scopes, files = _surroundings(sys._getframe(1), self._tracked(inventory))
        observation = Observation(
            role=worker.role,
            step=step,
            uid=worker.spec.uid,
            machine=worker.spec.machine,
            state=_state(inventory),
            values=values,
            scopes=scopes,
            twins=worker.redundancy.twins or tuple(sorted({*twins(worker.tracked, worker.role), *worker.same})),
            expected=tuple(sorted({*expected_twins(worker.tracked, worker.role), *worker.same})),
            files=files,
            seeded=tuple(self.seeded),
            disturbances=self._pace().disturbances,
            primary=worker.is_primary,
        )
        with (self._folder / f"{worker.spec.uid}.jsonl").open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(observation) + b"\n")
        self.seeded.clear()

    def _tracked(self, inventory: Inventory) -> set[int]:
        """Ids of all tracked objects and of their parts."""
        found = {id(tensor) for tensor in inventory.tensors} | {id(tensor) for _, tensor in inventory.parameters}
        for _, thing, kind in tracked_objects(self._worker.tracked):
            found |= {id(thing), *map(id, kind.belongings(thing))}
            if kind is OBJECT:  # what it holds, it gives and takes by its state_dict
                found |= set(map(id, within(thing)))
        return found


def watch_loaders(places: list[str]) -> None:
    """Add a place to the list whenever the script makes an iterator of a DataLoader that has no generator of its own.
    Such an iterator draws its seed from torch's global generator."""
    whole: Any = DataLoader.__iter__

    def watched(loader: Any) -> Any:
        if loader.generator is None:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and not is_own_file(frame.f_code.co_filename):
                frame = frame.f_back
            if frame is not None:
                places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return whole(loader)

    DataLoader.__iter__ = watched  # type: ignore[method-assign]


def _state(inventory: Inventory) -> dict[str, str]:
    """A digest of every tracked tensor, and of each part of every other tracked object."""
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


# -- variables that are not tracked -----------------------------------------------------------------------------------


def _surroundings(
    frame: FrameType | None, skipped: set[int]
) -> tuple[dict[str, Value], tuple[Scope, ...], tuple[str, ...]]:
    """The variables of all running functions of the script, and of its modules. An object that several functions hold
    is a variable of the outermost, which has made it."""
    reader = ValueReader(skipped)
    values: dict[str, Value] = {}
    scopes: list[Scope] = []
    seen: set[int] = set()
    spaces: dict[str, dict[str, object]] = {}
    frames: list[FrameType] = []
    while frame is not None:
        code = frame.f_code
        file = str(frame.f_globals.get("__file__", code.co_filename))
        if is_own_file(code.co_filename) and not code.co_filename.startswith(PACKAGE):
            spaces[file] = frame.f_globals
            if code.co_name != "<module>":
                scopes.append(Scope(file, code.co_name, code.co_firstlineno, frame.f_lineno))
                frames.append(frame)
        frame = frame.f_back
    for number in reversed(range(len(frames))):
        _gather(values, f"{number}:", locals_of(frames[number]), reader, seen)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        if is_own_file(file) and not file.startswith(PACKAGE):
            spaces.setdefault(file, vars(module))
    for file, space in spaces.items():
        scopes.append(Scope(file, "<module>"))
        variables = {name: value for name, value in space.items() if not name.startswith("__")}
        _gather(values, f"{len(scopes) - 1}:", variables, reader, seen)
    return values, tuple(scopes), tuple(spaces)


def _gather(
    values: dict[str, Value],
    prefix: str,
    variables: dict[str, object],
    reader: ValueReader,
    seen: set[int],
    depth: int = _DEPTH,
) -> None:
    """Add variables, the attributes of the script's own objects, and what containers and objects of libraries hold;
    each object once, by its first path."""
    for name, value in variables.items():
        path = prefix + name
        if len(values) >= _MOST_VALUES or path in values or name.startswith("__"):
            continue
        if not isinstance(value, int | float | str | bytes | None):
            if id(value) in seen:
                continue
            seen.add(id(value))
        found = reader.read(value)
        if found is not None:
            values[path] = found
        if not depth or id(value) in reader.skipped:
            continue
        if found is None and _opens(value):
            _gather(values, f"{path}.", dict(members(value)), reader, seen, depth - 1)
        else:
            _gather(values, path, dict(parts(value)), reader, seen, depth - 1)


def _opens(value: object) -> bool:
    """Whether an object belongs to the script, so that its attributes are variables of the script."""
    if isinstance(value, FunctionType):
        return value.__closure__ is not None and is_own_file(value.__code__.co_filename)
    return is_own(value if isinstance(value, type) else type(value))
