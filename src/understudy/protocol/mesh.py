"""The job's mesh: its dimensions, and the coordinates of roles in it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache

Mesh = tuple[tuple[str, int], ...]


class MeshError(ValueError):
    """A mesh that no job can have; the message says what to change."""


def parse_mesh(text: str) -> Mesh:
    """Parse `pp=2,dp=2,tp=2`: dimensions from the outermost to the innermost."""
    dimensions: list[tuple[str, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*", part)
        if match is None:
            raise MeshError(f"mesh {text!r}: {part.strip()!r} is not of the form name=size, as in pp=2,dp=4")
        name, size = match[1], int(match[2])
        if size < 1:
            raise MeshError(f"mesh {text!r}: {name} must be at least 1")
        if name in dict(dimensions):
            raise MeshError(f"mesh {text!r}: {name} is there twice")
        dimensions.append((name, size))
    return tuple(dimensions)


def roles_of(mesh: Mesh) -> int:
    return math.prod(size for _, size in mesh)


def coordinates(mesh: Mesh, role: int) -> dict[str, int]:
    """The coordinates of a role; the last dimension varies fastest."""
    found: dict[str, int] = {}
    for name, size in reversed(mesh):
        role, found[name] = divmod(role, size)
    return {name: found[name] for name, _ in mesh}


def alike(mesh: Mesh, role: int, names: Iterable[str]) -> tuple[int, ...]:
    """The roles that differ from this one in these dimensions only, this one included."""
    names = set(names)
    mine = coordinates(mesh, role)
    return tuple(
        other
        for other in range(roles_of(mesh))
        if all(place == mine[name] for name, place in coordinates(mesh, other).items() if name not in names)
    )


def replicated(mesh: Mesh) -> tuple[str, ...]:
    """The dimensions along which replicas of the model differ: those with names that begin with dp."""
    return tuple(name for name, _ in mesh if name.startswith("dp"))


def replica_of(mesh: Mesh, role: int) -> tuple[int, int]:
    """(number of replicas, the replica of a role): positions along the replicated dimensions."""
    sizes, places, count, mine = dict(mesh), coordinates(mesh, role), 1, 0
    for name in replicated(mesh):
        count, mine = count * sizes[name], mine * sizes[name] + places[name]
    return count, mine


@cache
def roles_with_loss(mesh: Mesh) -> tuple[int, ...]:
    """The roles that compute the loss: those of the last pipeline stage (dimension pp), or all without a pipeline."""
    sizes = dict(mesh)
    last = sizes.get("pp", 1) - 1
    return tuple(role for role in range(roles_of(mesh)) if coordinates(mesh, role).get("pp", 0) == last)


def primary_of(mesh: Mesh, seats: Sequence[object | None]) -> int | None:
    """The primary role: the first that has the loss and is not vacant. None: all of them are vacant."""
    return next((role for role in roles_with_loss(mesh) if seats[role] is not None), None)


def first_replicas(mesh: Mesh, nproc: int) -> dict[int, tuple[int, ...]]:
    """Number of machines → their cells, for each number of machines that makes up whole replicas, from the first on."""
    found: dict[int, tuple[int, ...]] = {}
    wholly: dict[int, int] = {}
    for role in range(roles_of(mesh)):
        cell = role // nproc
        wholly[cell] = max(wholly.get(cell, 0), replica_of(mesh, role)[1])
    for replicas in range(1, replica_of(mesh, 0)[0] + 1):
        cells = tuple(cell for cell, last in wholly.items() if last < replicas)
        if len(cells) * nproc * replica_of(mesh, 0)[0] == roles_of(mesh) * replicas:
            found[len(cells)] = cells
    return found


def along(mesh: Mesh, group: tuple[int, ...], role: int) -> list[str] | None:
    """The dimensions along which a group of this role runs. None if the group is not made of all roles along some
    dimensions, in their order."""
    places = [coordinates(mesh, member) for member in group]
    names = [name for name, _ in mesh if len({place[name] for place in places}) > 1]
    return names if group == alike(mesh, role, names) else None


def counterpart(mesh: Mesh, group: tuple[int, ...], role: int, other: int) -> tuple[int, ...] | None:
    """The group of `other` that corresponds to a group of `role`: along the same dimensions; None if there are none."""
    names = along(mesh, group, role)
    return None if names is None else alike(mesh, other, names)


def describe(mesh: Mesh, role: int) -> str:
    """A role as a person reads it: `role 5 (pp=1 dp=0 tp=1)`."""
    places = " ".join(f"{name}={place}" for name, place in coordinates(mesh, role).items())
    return f"role {role} ({places})"


def check_mesh(mesh: Mesh, machines: int, nproc: int) -> None:
    """Raise MeshError unless the machines have as many workers as the mesh has roles."""
    if roles_of(mesh) != machines * nproc:
        shape = " x ".join(f"{name}={size}" for name, size in mesh)
        raise MeshError(
            f"mesh {shape} has {roles_of(mesh)} roles, but {machines} machines with {nproc} workers each have "
            f"{machines * nproc}; change --mesh, --machines or --nproc"
        )


def dimensions(mesh: Mesh) -> tuple[Sequence[str], Sequence[int]]:
    return [name for name, _ in mesh], [size for _, size in mesh]
