"""Two runs side by side, bit by bit: where they first differ, and in what. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from .observation import Observation, Scope, Value

Key = tuple[str, str, str]
"""A variable: file, function, path."""


class Divergence(msgspec.Struct, frozen=True):
    """The first boundary at which a role holds something else than in the undisturbed run."""

    step: int
    """So many steps are in the state."""
    roles: dict[int, tuple[str, ...]]
    """Role → what differs there."""

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for names in self.roles.values() for name in names))


class Book:
    """A run's observations, to look them up."""

    def __init__(self, observations: Iterable[Observation]) -> None:
        self.observations = list(observations)
        self._first: dict[tuple[int, int], Observation] = {}
        for observation in self.observations:
            self._first.setdefault((observation.role, observation.step), observation)

    def at(self, role: int, step: int) -> Observation | None:
        return self._first.get((role, step))

    def of(self, role: int) -> list[Observation]:
        return [observation for observation in self.observations if observation.role == role]


def differing(observation: Observation, truth: Observation) -> tuple[str, ...]:
    """What is not the same in the state, in its order."""
    names = dict.fromkeys([*truth.state, *observation.state])
    return tuple(name for name in names if observation.state.get(name) != truth.state.get(name))


def first_divergence(truth: Book, observations: Iterable[Observation]) -> Divergence | None:
    found: dict[int, dict[int, tuple[str, ...]]] = {}
    for observation in observations:
        expected = truth.at(observation.role, observation.step)
        if expected is not None and (names := differing(observation, expected)):
            found.setdefault(observation.step, {}).setdefault(observation.role, names)
    if not found:
        return None
    step = min(found)
    return Divergence(step, dict(sorted(found[step].items())))


def variables(observation: Observation) -> Iterator[tuple[Key, Value, Scope]]:
    """Everything that nobody tracks, by a name that is the same in every run."""
    for path, value in observation.values.items():
        number, _, name = path.partition(":")
        scope = observation.scopes[int(number)]
        yield (scope.file, scope.function, name), value, scope


def by_key(observation: Observation) -> dict[Key, Value]:
    return {key: value for key, value, _ in variables(observation)}


def unsteady(truth: Book, observations: Iterable[Observation]) -> set[Key]:
    """Variables that differ from run to run although nothing has happened: times, process numbers, entropy. Only
    boundaries count at which the state is the same."""
    found = set()
    for observation in observations:
        expected = truth.at(observation.role, observation.step)
        if expected is None or differing(observation, expected):
            continue
        mine, theirs = by_key(observation), by_key(expected)
        found |= {key for key in mine.keys() & theirs.keys() if mine[key].digest != theirs[key].digest}
    return found


def changing(book: Book) -> set[Key]:
    """Variables that change from step to step, or cannot be looked into."""
    seen: dict[tuple[int, Key], set[str]] = {}
    first: dict[int, int] = {}
    late: set[Key] = set()
    for observation in book.observations:
        begun = first.setdefault(observation.role, observation.step)
        for key, value in by_key(observation).items():
            if (observation.role, key) not in seen and observation.step > begun:
                late.add(key)
            seen.setdefault((observation.role, key), set()).add(value.digest)
    return {key for (_, key), digests in seen.items() if len(digests) > 1 or "" in digests} | late
