"""The kinds of objects that a job can track, and what each kind can do: the one place that tells them apart.

A new kind is an entry of `KINDS`. Inventories, checkpoints, hand-overs, the undo of a step and the check of a script
ask this registry, so that an object is handled in the same way everywhere.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from understudy.device import torch_private

from . import modules as module_kind
from . import optimizers as optimizer_kind
from .errors import StateError
from .memory import Slot

Tracked = Mapping[str, object]
"""The objects that move with a role, by the names under which the job tracks them, in that order."""
Members = Mapping[str, Any]
"""All tracked objects of one kind, by name."""


@runtime_checkable
class Stateful(Protocol):
    """An object that gives its state as plain values and takes it back."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


def _keep_state(thing: Stateful, before: object) -> object:
    return copy.deepcopy(thing.state_dict())


def _restore_state(thing: Stateful, kept: Any) -> None:
    thing.load_state_dict(copy.deepcopy(kept))


def _restore_scaler(scaler: GradScaler, kept: Any) -> None:
    """The state_dict of a GradScaler lacks the optimizers that were unscaled in the step. A disabled one has none."""
    _restore_state(scaler, kept)
    if scaler.is_enabled():
        torch_private.forget_unscaled(scaler)


@dataclass(frozen=True)
class TrackedKind:
    """What the runtime can do with tracked objects of one kind.

    The state of an object is its *tensors*, which move as memory, and its *rest*: plain values that are encoded. The
    defaults are those of an object without tensors: its rest is its `state_dict()`."""

    name: str
    type: type
    """Objects of this type are of this kind, unless an earlier kind has them."""
    inner: Callable[[str, Any], Iterable[tuple[str, Any]]] = lambda name, thing: ()
    """Objects of the same kind inside one, by name, each with tensors and a rest of its own."""
    tensors: Callable[[Members], Iterator[tuple[str, torch.Tensor]]] = lambda things: iter(())
    """All tensors of all objects of the kind, by names that are equal on all workers of a role."""
    changing: Callable[[Members], set[str]] = lambda things: set()
    """The names of the tensors that a step may change before its optimizers."""
    claim: Callable[[Members, Mapping[str, Slot]], set[str]] = lambda things, slots: set()
    """The names of the giver's slots that are tensors of these objects. Changes nothing; StateError if one misfits."""
    make_room: Callable[[Members, Mapping[str, Slot]], None] = lambda things, slots: None
    """Make the tensors of these objects match the giver's slots."""
    rest: Callable[[str, Any], object] = lambda name, thing: thing.state_dict()
    """The state of one object that is not in its tensors."""
    check_rest: Callable[[str, Any, Any], None] = lambda name, thing, value: None
    """Raise StateError if an object cannot take this rest. Changes nothing."""
    restore_rest: Callable[[str, Any, Any], None] = lambda name, thing, value: thing.load_state_dict(value)
    """Set the state of one object that is not in its tensors."""
    parameters: Callable[[Any], Iterable[torch.Tensor]] = lambda thing: ()
    """The parameters of one object, which may have gradients."""
    keep: Callable[[Any, Any], Any] = _keep_state
    """What a step may change in one object before its vote, gradients aside, as it is at a step boundary. Gets what was
    kept at the boundary before (None: nothing), the memory of which can be used again."""
    undo: Callable[[Any, Any], None] = _restore_state
    """Make an object as it was when this was kept."""
    belongings: Callable[[Any], Iterable[object]] = lambda thing: ()
    """Objects that are part of one, and tracked with it."""
    follows_tensors: Callable[[Any], bool] = lambda thing: False
    """Whether equal tensors of modules make objects of this kind equal, too."""
    checks_gradients: Callable[[Any], bool] = lambda thing: False
    """Whether the object itself deals with gradients that are not finite."""


def _generator_kind(
    name: str, type: type, get_state: Callable[[Any], object], set_state: Callable[[Any, Any], object]
) -> TrackedKind:
    """A kind of random number generators, whose whole state is a value that these functions get and set."""

    def rest(name: str, thing: Any) -> object:
        try:
            return get_state(thing)
        except NotImplementedError as error:
            raise StateError(f"{name}: {error}; use a generator that has a seed, or do not track it") from None

    def undo(thing: Any, kept: object) -> None:
        set_state(thing, kept)

    return TrackedKind(
        name=name,
        type=type,
        rest=rest,
        restore_rest=lambda name, thing, value: undo(thing, value),
        keep=lambda thing, before: copy.deepcopy(get_state(thing)),
        undo=undo,
    )


MODULE = TrackedKind(
    name="module",
    type=nn.Module,
    tensors=module_kind.tensors,
    changing=module_kind.buffer_names,
    claim=module_kind.claim,
    make_room=module_kind.make_room,
    rest=module_kind.rest,
    check_rest=module_kind.check_rest,
    restore_rest=module_kind.restore_rest,
    parameters=nn.Module.parameters,
    keep=module_kind.keep_buffers,
    undo=module_kind.restore_buffers,
    belongings=module_kind.belongings,
    follows_tensors=lambda module: not any(True for _ in module_kind.extra_states(module)),
)
OPTIMIZER = TrackedKind(
    name="optimizer",
    type=Optimizer,
    inner=optimizer_kind.inner,
    tensors=optimizer_kind.tensors,
    claim=optimizer_kind.claim,
    make_room=optimizer_kind.make_room,
    rest=optimizer_kind.rest,
    check_rest=optimizer_kind.check_rest,
    restore_rest=optimizer_kind.restore_rest,
    parameters=optimizer_kind.parameters,
    keep=optimizer_kind.keep_options,
    undo=optimizer_kind.restore_options,
    belongings=optimizer_kind.belongings,
    follows_tensors=lambda optimizer: not optimizer_kind.is_partitioned(optimizer),
)
SCHEDULER = TrackedKind(name="scheduler", type=LRScheduler, follows_tensors=lambda thing: True)
SCALER = TrackedKind(
    name="scaler",
    type=GradScaler,
    undo=_restore_scaler,
    follows_tensors=lambda thing: True,
    checks_gradients=GradScaler.is_enabled,
)
TORCH_GENERATOR = _generator_kind(
    "torch generator", torch.Generator, torch.Generator.get_state, torch.Generator.set_state
)
NUMPY_GENERATOR = _generator_kind(
    "numpy generator",
    np.random.Generator,
    lambda thing: thing.bit_generator.state,
    lambda thing, state: setattr(thing.bit_generator, "state", state),
)
NUMPY_RANDOM_STATE = _generator_kind(
    "numpy random state",
    np.random.RandomState,
    lambda thing: thing.get_state(legacy=False),
    np.random.RandomState.set_state,
)
PYTHON_GENERATOR = _generator_kind(
    "python generator", random.Random, lambda thing: thing.getstate(), random.Random.setstate
)
OBJECT = TrackedKind(name="object", type=Stateful)
KINDS = (
    *(MODULE, OPTIMIZER, SCHEDULER, SCALER),
    *(TORCH_GENERATOR, NUMPY_GENERATOR, NUMPY_RANDOM_STATE, PYTHON_GENERATOR),
    OBJECT,
)
"""All kinds. An object is of the first that has its type; tensors are listed in this order."""


def find_kind(thing: object) -> TrackedKind | None:
    """The kind of an object; None if objects like it cannot be tracked."""
    return next((kind for kind in KINDS if isinstance(thing, kind.type)), None)


class TrackedObject(NamedTuple):
    """An object with state that moves with a role: one that the job tracks, or one inside of it."""

    name: str
    thing: Any
    kind: TrackedKind


def tracked_objects(tracked: Tracked) -> list[TrackedObject]:
    """Everything tracked, and then the objects inside. Raises StateError if an object is of no kind."""
    found = []
    for name, thing in tracked.items():
        kind = find_kind(thing)
        if kind is None:
            raise StateError(
                f"{name}: a {type(thing).__name__} has no state_dict() and load_state_dict(), so it cannot move with a "
                "role; give it both, or do not track it"
            )
        found.append(TrackedObject(name, thing, kind))
    inside = [TrackedObject(*each, kind) for name, thing, kind in found for each in kind.inner(name, thing)]
    return found + inside


def members(tracked: Tracked, kind: TrackedKind) -> dict[str, Any]:
    return {name: thing for name, thing, found in tracked_objects(tracked) if found is kind}


def by_kind(tracked: Tracked) -> list[tuple[TrackedKind, dict[str, Any]]]:
    """Every kind with the tracked objects of it, by name."""
    found = tracked_objects(tracked)
    return [(kind, {each.name: each.thing for each in found if each.kind is kind}) for kind in KINDS]


def modules(tracked: Tracked) -> ItemsView[str, nn.Module]:
    return members(tracked, MODULE).items()


def optimizers(tracked: Tracked) -> ItemsView[str, Optimizer]:
    """The tracked optimizers, by name. A ZeroRedundancyOptimizer is two: itself, and the one inside that holds this
    role's part of the state."""
    return members(tracked, OPTIMIZER).items()


def module_tensors(tracked: Tracked) -> Iterator[tuple[str, torch.Tensor]]:
    """All parameters and buffers of the tracked modules, by name, each once."""
    return MODULE.tensors(members(tracked, MODULE))
