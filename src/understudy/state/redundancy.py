"""Which roles can give one another their state: a pure comparison of the units that all roles have told.

Replicas hold the same parameters and the same state of optimizers. They may differ in loose units, such as a sampler's
position or the statistics of batches: as long as those are small, each role tells them to all others with every vote,
and so a twin can give a joiner its own state with the loose units of the lost role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from understudy.protocol.messages import Difference

OWN_BYTES = 1 << 20
"""Bytes of loose units that a role tells to the others, at most."""
ALL_BYTES = 1 << 26
"""Bytes of loose units that all roles together tell one another, at most."""


class RoleUnits(msgspec.Struct, frozen=True):
    """The units of one role, as it tells them to the others."""

    layout: int
    """Equal on roles whose units have the same names."""
    expected: tuple[int, ...]
    """Roles that should hold the same parameters, by how the objects were made or by what the script says."""
    digests: tuple[int, ...]
    sizes: tuple[int, ...]
    loose: tuple[int, ...]
    """Numbers of the loose units."""


class Comparison(msgspec.Struct, frozen=True):
    """What the comparison of all roles' units has found."""

    twins: dict[int, tuple[int, ...]]
    """Role → roles that can give its state, itself included."""
    own: dict[int, tuple[int, ...]]
    """Role → numbers of the loose units that it tells to its twins."""


def compare(roles: Mapping[int, RoleUnits]) -> Comparison:
    """Compare the units of all roles. The same on every worker."""
    limit = min(OWN_BYTES, ALL_BYTES // max(1, len(roles)))
    found = Comparison({}, {})
    layouts: dict[int, list[int]] = {}
    for role, told in sorted(roles.items()):
        layouts.setdefault(told.layout, []).append(role)
    for alike in layouts.values():
        loose = set(roles[alike[0]].loose)
        strict = [number for number in range(len(roles[alike[0]].digests)) if number not in loose]
        for kin in _split(roles, alike, strict):
            shared = _smallest(roles, kin, _differing(roles, kin, loose), limit)
            for twins in _split(roles, kin, sorted(loose.difference(shared))):
                own = tuple(_differing(roles, twins, shared))
                found.twins.update((role, tuple(twins)) for role in twins)
                found.own.update((role, own) for role in twins)
    return found


def _split(told: Mapping[int, RoleUnits], roles: Sequence[int], units: Sequence[int]) -> list[list[int]]:
    """Roles by the contents of these units."""
    found: dict[tuple[int, ...], list[int]] = {}
    for role in roles:
        found.setdefault(tuple(told[role].digests[number] for number in units), []).append(role)
    return list(found.values())


def _differing(told: Mapping[int, RoleUnits], roles: Sequence[int], units: Iterable[int]) -> list[int]:
    return [number for number in sorted(units) if len({told[role].digests[number] for role in roles}) > 1]


def _smallest(told: Mapping[int, RoleUnits], roles: Sequence[int], units: Sequence[int], limit: int) -> list[int]:
    """The smallest of these units that fit into the limit together."""
    largest = {number: max(told[role].sizes[number] for role in roles) for number in units}
    found, total = [], 0
    for number in sorted(units, key=lambda number: (largest[number], number)):
        total += largest[number]
        if total > limit:
            break
        found.append(number)
    return found


def differences(me: int, roles: Mapping[int, RoleUnits], items: Sequence[str]) -> tuple[Difference, ...]:
    """The tracked objects in which this role differs from roles that should hold the same state. `items`: the object of
    each of this role's units."""
    mine, comparison = roles[me], compare(roles)
    group = [role for role in sorted(roles) if role in mine.expected and roles[role].layout == mine.layout]
    found = []
    for item in dict.fromkeys(items):
        units = [number for number, each in enumerate(items) if each == item]
        kinds = _split(roles, group, units)
        if len(kinds) > 1:
            differing = _differing(roles, group, units)
            exchanged = all(set(differing) <= set(comparison.own[role]) for role in group)
            size = sum(mine.sizes[number] for number in differing)
            found.append(Difference(item, tuple(map(tuple, kinds)), size, exchanged))
    return tuple(found)
