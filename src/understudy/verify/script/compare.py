"""Two runs side by side, bit by bit: where they first differ, and in what. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from .observation import Observation, Scope, Value

Key = tuple[str, str, str]
"""A variable: file, function, path."""


class Divergence(msgspec.Struct, frozen=True):
    """The first boundary at which a role holds another state than in the undisturbed run."""

    step: int
    """The state contains this number of steps."""
    roles: dict[int, tuple[str, ...]]
    """Role → names of what differs."""

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for names in self.roles.values() for name in names))


class Observations:
    """The observations of an undisturbed run, by role and step."""

    def __init__(self, observations: Iterable[Observation]) -> None:
        self.all = list(observations)
        self._first: dict[tuple[int, int], Observation] = {}
        for each in self.all:
            self._first.setdefault((each.role, each.step), each)

    def at(self, role: int, step: int) -> Observation | None:
        return self._first.get((role, step))


def differing(observation: Observation, truth: Observation) -> tuple[str, ...]:
    """Names of what differs in the state, in their order."""
    names = dict.fromkeys([*truth.state, *observation.state])
    return tuple(name for name in names if observation.state.get(name) != truth.state.get(name))


def first_divergence(truth: Observations, observations: Iterable[Observation]) -> Divergence | None:
    found: dict[int, dict[int, tuple[str, ...]]] = {}
    for each in observations:
        expected = truth.at(each.role, each.step)
        if expected is not None and (names := differing(each, expected)):
            found.setdefault(each.step, {}).setdefault(each.role, names)
    if not found:
        return None
    step = min(found)
    return Divergence(step, dict(sorted(found[step].items())))


def variables(observation: Observation) -> Iterator[tuple[Key, Value, Scope]]:
    """All variables that are not tracked, by a key that is the same in every run."""
    for path, value in observation.values.items():
        number, _, name = path.partition(":")
        scope = observation.scopes[int(number)]
        yield (scope.file, scope.function, name), value, scope


def by_key(observation: Observation) -> dict[Key, Value]:
    return {key: value for key, value, _ in variables(observation)}


def unsteady(truth: Observations, observations: Iterable[Observation]) -> set[Key]:
    """Variables that differ from run to run without a disturbance: times, process numbers, entropy.

    Only boundaries at which the state is the same count.
    """
    found = set()
    for each in observations:
        expected = truth.at(each.role, each.step)
        if expected is None or differing(each, expected):
            continue
        mine, theirs = by_key(each), by_key(expected)
        found |= {key for key in mine.keys() & theirs.keys() if mine[key].digest != theirs[key].digest}
    return found


def changing(truth: Observations) -> set[Key]:
    """Variables that change from step to step, or cannot be read."""
    seen: dict[tuple[int, Key], set[str]] = {}
    first: dict[int, int] = {}
    late: set[Key] = set()
    for each in truth.all:
        begun = first.setdefault(each.role, each.step)
        for key, value in by_key(each).items():
            if (each.role, key) not in seen and each.step > begun:
                late.add(key)
            seen.setdefault((each.role, key), set()).add(value.digest)
    return {key for (_, key), digests in seen.items() if len(digests) > 1 or "" in digests} | late
