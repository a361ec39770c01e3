"""Two runs side by side, bit by bit: where they first differ, and in what. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from understudy.worker.glimpse import Glimpse, Scope, Value

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
    """A run's glimpses, to look them up."""

    def __init__(self, glimpses: Iterable[Glimpse]) -> None:
        self.glimpses = list(glimpses)
        self._first: dict[tuple[int, int], Glimpse] = {}
        for glimpse in self.glimpses:
            self._first.setdefault((glimpse.role, glimpse.step), glimpse)

    def at(self, role: int, step: int) -> Glimpse | None:
        return self._first.get((role, step))

    def of(self, role: int) -> list[Glimpse]:
        return [glimpse for glimpse in self.glimpses if glimpse.role == role]


def differing(glimpse: Glimpse, truth: Glimpse) -> tuple[str, ...]:
    """What is not the same in the state, in its order."""
    names = dict.fromkeys([*truth.state, *glimpse.state])
    return tuple(name for name in names if glimpse.state.get(name) != truth.state.get(name))


def first_divergence(truth: Book, glimpses: Iterable[Glimpse]) -> Divergence | None:
    found: dict[int, dict[int, tuple[str, ...]]] = {}
    for glimpse in glimpses:
        expected = truth.at(glimpse.role, glimpse.step)
        if expected is not None and (names := differing(glimpse, expected)):
            found.setdefault(glimpse.step, {}).setdefault(glimpse.role, names)
    if not found:
        return None
    step = min(found)
    return Divergence(step, dict(sorted(found[step].items())))


def variables(glimpse: Glimpse) -> Iterator[tuple[Key, Value, Scope]]:
    """Everything that nobody tracks, by a name that is the same in every run."""
    for path, value in glimpse.values.items():
        number, _, name = path.partition(":")
        scope = glimpse.scopes[int(number)]
        yield (scope.file, scope.function, name), value, scope


def by_key(glimpse: Glimpse) -> dict[Key, Value]:
    return {key: value for key, value, _ in variables(glimpse)}


def unsteady(truth: Book, glimpses: Iterable[Glimpse]) -> set[Key]:
    """Variables that differ from run to run although nothing has happened: times, process numbers, entropy. Only
    boundaries count at which the state is the same."""
    found = set()
    for glimpse in glimpses:
        expected = truth.at(glimpse.role, glimpse.step)
        if expected is None or differing(glimpse, expected):
            continue
        mine, theirs = by_key(glimpse), by_key(expected)
        found |= {key for key in mine.keys() & theirs.keys() if mine[key].digest != theirs[key].digest}
    return found


def changing(book: Book) -> set[Key]:
    """Variables that change from step to step, or cannot be looked into."""
    seen: dict[tuple[int, Key], set[str]] = {}
    first: dict[int, int] = {}
    late: set[Key] = set()
    for glimpse in book.glimpses:
        begun = first.setdefault(glimpse.role, glimpse.step)
        for key, value in by_key(glimpse).items():
            if (glimpse.role, key) not in seen and glimpse.step > begun:
                late.add(key)
            seen.setdefault((glimpse.role, key), set()).add(value.digest)
    return {key for (_, key), digests in seen.items() if len(digests) > 1 or "" in digests} | late
