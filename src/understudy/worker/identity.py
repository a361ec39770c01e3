"""Which replica a newcomer is: as long as its script has not asked, it could as well be another one.

Roles that hold the same state run the same program on the same shapes. They differ in what their groups are called, in
their random numbers and in their data, and all of that comes from the runtime. So a worker that has rehearsed one of
them can take any of them at once, unless its script has put aside which one it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from understudy.comm.endpoint import Endpoint
from understudy.comm.fabric import Fabric
from understudy.comm.group import RoleGroup
from understudy.protocol.mesh import Mesh, coordinates, counterpart

_TELLTALE = {"RANK", "GROUP_RANK"}
_UNWATCHED = {"get_coordinate", "_coordinate_on_dim"}
"""Ways to ask that cannot be seen when they are used; a script whose code names them counts as one that has asked."""
_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parents[1])
_PASSED_ON = {"get_rank", "get_local_rank", "get_node_local_rank", "get_group_rank"}
"""What torch does with a rank, except that it gives it to whoever has called one of these, is its own affair."""


class Identity:
    """What a script has asked about its place, outside of its steps."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._names: set[str] = set()
        """Dimensions of the mesh whose coordinate it has asked for."""
        self._ranks: dict[str, int] = {}
        """By group: the rank it has been told."""
        self.watching = False
        self.closed = True
        """Whether it has asked for something that no two roles have in common, or could have."""
        self.inside = False
        """Whether the training function has been entered. It may be entered again; what was asked before it, while the
        script and what it imports were read, is not asked again."""
        self.fixed = False
        """Whether something was, so that this process can play no other role."""

    def begin(self) -> None:
        """The training function is entered, from the beginning."""
        self._names.clear()
        self._ranks.clear()
        self.closed, self.watching = False, True

    def told(self, *names: str) -> None:
        """It has been told these coordinates; without names: its role."""
        if self.watching:
            self._names.update(names)
            self.closed = self.closed or not names
            self.fixed = self.fixed or not self.inside

    def told_rank(self, endpoint: Endpoint) -> None:
        """Somebody asks for the rank in a group. What torch does with it does not depend on which replica it is."""
        frame = sys._getframe(2)
        if self.watching and not _is_torch(frame):
            group = frame.f_locals.get("group")  # torch's get_rank finds any group's by way of the one of all roles
            asked = group.endpoint if isinstance(group, RoleGroup) else endpoint
            self._ranks[asked.name] = asked.rank
            self.fixed = self.fixed or not self.inside

    def others(self, fabric: Fabric, role: int, twins: tuple[int, ...]) -> tuple[int, ...]:
        """The roles that this worker could take instead of the one it has rehearsed."""
        if self.closed or _names_unwatched():
            return ()
        return tuple(other for other in twins if other != role and self.groups(fabric, role, other) is not None)

    def groups(self, fabric: Fabric, role: int, other: int) -> dict[str, tuple[int, ...]] | None:
        """What its groups are called for another role; None where it cannot take it."""
        mine, theirs = coordinates(self._mesh, role), coordinates(self._mesh, other)
        if any(mine[name] != theirs[name] for name in self._names):
            return None
        found: dict[str, tuple[int, ...]] = {}
        for endpoint in fabric.endpoints():
            group = counterpart(self._mesh, endpoint.key.roles, role, other)
            if group is None or self._ranks.get(endpoint.name, group.index(other)) != group.index(other):
                return None
            found[endpoint.name] = group
        return found


class Places(Mapping[str, int]):
    """A role's coordinates in the mesh, which notes the dimensions that were asked for."""

    def __init__(self, mesh: Mesh, role: int, identity: Identity) -> None:
        self._places, self._identity = coordinates(mesh, role), identity

    def __getitem__(self, name: str) -> int:
        self._identity.told(name)
        return self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        self._identity.told(*self._places)
        return repr(self._places)


class Environment(os._Environ[str]):
    """The process's environment, which notes that somebody has read the rank in it."""

    identity: Identity

    def __getitem__(self, name: str) -> str:
        if name in _TELLTALE and not _is_torch(frame := sys._getframe(1)) and not _skims(frame):
            self.identity.told()
        return super().__getitem__(name)


def watch_environment(identity: Identity) -> None:
    Environment.identity = identity
    os.environ.__class__ = Environment


def _is_torch(frame: FrameType | None) -> bool:
    """Whether torch asks for itself, not on behalf of the script."""
    while frame is not None and _passes_on(frame.f_code):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith((_TORCH, _OWN))


def _skims(frame: FrameType) -> bool:
    """Whether a library looks through the whole environment, for something else."""
    through, asker = frame.f_code.co_name == "__iter__", frame.f_back
    while asker is not None and _passes_on(asker.f_code):
        asker = asker.f_back
    return through and asker is not None and "site-packages" in asker.f_code.co_filename


def _passes_on(code: CodeType) -> bool:
    """Whether whoever is called here only asks on somebody's behalf: a mapping's methods, torch's ways to a rank."""
    return code.co_filename.startswith(("<frozen", os.__file__)) or (
        code.co_name in _PASSED_ON and code.co_filename.startswith(_TORCH)
    )


def _names_unwatched() -> bool:
    return any(_uses(module) for module in list(sys.modules.values()) if _is_users(module))


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None) or ""
    return (
        file.endswith(".py")
        and "site-packages" not in file
        and not file.startswith((sys.prefix, sys.base_prefix, _OWN))
    )


def _uses(module: ModuleType) -> bool:
    """Whether some function of a module names one of them."""
    return any(_code_uses(code) for value in list(vars(module).values()) for code in _codes(value, module.__name__))


def _codes(value: Any, module: str) -> list[CodeType]:
    members = [value, *vars(value).values()] if isinstance(value, type) and value.__module__ == module else [value]
    return [code for member in members if isinstance(code := getattr(member, "__code__", None), CodeType)]


def _code_uses(code: CodeType) -> bool:
    return bool(_UNWATCHED & {*code.co_names}) or any(
        _code_uses(inner) for inner in code.co_consts if isinstance(inner, CodeType)
    )
