"""What a script knows about its role, which decides whether a joiner can take another role at once.

Roles that hold the same state run the same program on the same shapes. They differ in the names of their groups, in
their random numbers and in their data, and all of these come from the runtime. So a worker that has rehearsed one of
these roles can take any of them, unless its script has asked which one it has.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import torch

from understudy.comm.endpoint import Endpoint
from understudy.comm.fabric import Fabric
from understudy.comm.group import RoleGroup
from understudy.device import torch_private
from understudy.protocol.mesh import Mesh, coordinates, counterpart

_TELLTALE = {"RANK", "GROUP_RANK"}
_UNWATCHED = {"get_coordinate", *torch_private.UNWATCHED}
"""Functions that are called unobserved; a script with one of these names in its code counts as one that has asked."""
_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parents[1])
_PASSED_ON = {"get_rank", "get_local_rank", "get_node_local_rank", "get_group_rank"}
"""Functions of torch that return a rank to their caller. Other uses of a rank inside torch do not count."""


class Identity:
    """What a script has asked about its role, outside of its steps."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._names: set[str] = set()
        """Dimensions of the mesh along which the script has asked for its coordinate."""
        self._ranks: dict[str, int] = {}
        """By group: the rank that the script was told."""
        self.watching = False
        self.closed = True
        """Whether the script has asked for something that differs between all roles."""
        self.inside = False
        """Whether the training function has been entered. Only what was asked inside of it is asked again when it is
        entered again."""
        self.fixed = False
        """Whether the script has asked before the training function, so that this process can have no other role."""

    def begin(self) -> None:
        """The training function is entered: forget what it has asked before."""
        self._names.clear()
        self._ranks.clear()
        self.closed, self.watching = False, True

    def told(self, *names: str) -> None:
        """The script is told these coordinates; without names: its role."""
        if self.watching:
            self._names.update(names)
            self.closed = self.closed or not names
            self.fixed = self.fixed or not self.inside

    def told_rank(self, endpoint: Endpoint) -> None:
        """The rank in a group is asked for. Uses inside torch do not depend on the replica and do not count."""
        frame = sys._getframe(2)
        if self.watching and not _is_torch(frame):
            group = frame.f_locals.get("group")  # torch's get_rank asks the group of all roles for any group
            asked = group.endpoint if isinstance(group, RoleGroup) else endpoint
            self._ranks[asked.name] = asked.rank
            self.fixed = self.fixed or not self.inside

    def others(self, fabric: Fabric, role: int, twins: tuple[int, ...]) -> tuple[int, ...]:
        """The roles that this worker could take instead of the one it has rehearsed."""
        if self.closed or _names_unwatched():
            return ()
        return tuple(other for other in twins if other != role and self.groups(fabric, role, other) is not None)

    def groups(self, fabric: Fabric, role: int, other: int) -> dict[str, tuple[int, ...]] | None:
        """By name: the roles of this worker's groups for another role; None if it cannot take that role."""
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
    """A role's coordinates in the mesh. Notes the dimensions that were asked for."""

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
    """The process's environment. Notes when the rank is read from it."""

    identity: Identity

    def __getitem__(self, name: str) -> str:
        if name in _TELLTALE and not _is_torch(frame := sys._getframe(1)) and not _skims(frame):
            self.identity.told()
        return super().__getitem__(name)


def watch_environment(identity: Identity) -> None:
    """Let an identity know when the script reads its rank from os.environ."""
    Environment.identity = identity
    os.environ.__class__ = Environment


def _is_torch(frame: FrameType | None) -> bool:
    """Whether torch asks for its own use, not on behalf of the script."""
    while frame is not None and _passes_on(frame.f_code):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith((_TORCH, _OWN))


def _skims(frame: FrameType) -> bool:
    """Whether a library iterates over the whole environment."""
    through, asker = frame.f_code.co_name == "__iter__", frame.f_back
    while asker is not None and _passes_on(asker.f_code):
        asker = asker.f_back
    return through and asker is not None and "site-packages" in asker.f_code.co_filename


def _passes_on(code: CodeType) -> bool:
    """Whether a function asks on behalf of its caller: methods of a mapping, torch's functions that return a rank."""
    return code.co_filename.startswith(("<frozen", os.__file__)) or (
        code.co_name in _PASSED_ON and code.co_filename.startswith(_TORCH)
    )


def _names_unwatched() -> bool:
    """Whether a function of the script or its modules names a function that cannot be observed."""
    modules = [module for module in list(sys.modules.values()) if _is_users(getattr(module, "__file__", None) or "")]
    values = [(value, module.__name__) for module in modules for value in list(vars(module).values())]
    return any(_code_uses(code) for value, module in values for code in _codes(value, module))


@cache
def _is_users(file: str) -> bool:
    others = sys.prefix, sys.base_prefix, _OWN
    return file.endswith(".py") and "site-packages" not in file and not file.startswith(others)


def _codes(value: Any, module: str) -> list[CodeType]:
    """The code of a function, or of the methods of a class of this module."""
    members = [value, *vars(value).values()] if isinstance(value, type) and value.__module__ == module else [value]
    # No attribute is asked for on other objects: those with a `__getattr__` of their own may raise anything.
    return [member.__code__ for member in members if isinstance(member, FunctionType | MethodType)]


def _code_uses(code: CodeType) -> bool:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return bool(_UNWATCHED & {*code.co_names}) or any(map(_code_uses, inner))
