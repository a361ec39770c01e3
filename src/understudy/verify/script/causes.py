"""Why bits differ: variables and lines of the script, the likeliest first, each with its evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import PurePath

import msgspec

from . import advice
from .carried import Position, Use, carried, defined_at, positions, reassigned_at, unmentioned
from .hints import Hint, HintKind, hints
from .observation import Divergence, Observation, Observations, Scope, Value, differing
from .runs import Run

Key = tuple[str, str, str]
"""A variable: file, function, path."""
_WEIGHT = {
    **dict.fromkeys(("module", "optimizer", "scheduler", "scaler", "sampler", "generator", "iterator"), 0),
    **dict.fromkeys(("tensor", "array", "object"), 1),
    **dict.fromkeys(("counter", "number", "flag"), 2),
    **dict.fromkeys(("list", "dict", "set", "tuple"), 3),
    "text": 4,
}
"""Kind of a variable → the lower, the likelier a cause."""
HOLDERS = ("optimizer", "scheduler", "scaler", "sampler", "generator")
"""Kinds that exist to hold state that changes, so that it counts wherever they are used."""
_PLAIN = ("counter", "number", "flag", "text")
_ACTING = ("module", "optimizer", "scheduler", "scaler", "sampler", "object", "generator", "iterator")
"""Kinds with calls that may affect the result by their effect alone: `schedule.step()`, not `losses.append(…)`."""


class Cause(msgspec.Struct, frozen=True):
    """A possible explanation of a difference."""

    kind: str
    """The kind of the variable, or of the line."""
    place: str
    """file:line"""
    variable: str
    sentence: str
    evidence: str
    advice: str


class Sources:
    """The texts of the script and of the modules beside it, with what they tell about variables."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._loops: dict[Scope, dict[str, Use] | None] = {}

    @cached_property
    def hints(self) -> list[tuple[str, Hint]]:
        return [(file, hint) for file, text in self.texts.items() for hint in hints(text)]

    def use(self, scope: Scope, path: str, kind: str = "") -> Use | None:
        """How the loops of this function use a variable; None if the variable carries nothing from step to step.

        An object of a kind that exists to hold state may be used elsewhere, if the loops do not mention it.
        """
        text = self.texts.get(scope.file, "")
        if scope.function == "<module>":
            return Use(defined_at(text, path), feeds=True)
        if scope not in self._loops:
            self._loops[scope] = carried(text, scope.first, scope.line)
        found = self._loops[scope]
        head = _head(path)
        if found is None:  # no loop around the boundary
            made = defined_at(text, path) if head != path else unmentioned(text, scope.first, scope.line, head)
            return Use(made or scope.line, feeds=True)
        use = found.get(head)
        if use is None and kind in HOLDERS and (made := unmentioned(text, scope.first, scope.line, head)):
            return Use(made, feeds=True)
        if use is None or head == path:
            return use
        return msgspec.structs.replace(use, feeds=True, given=False, made=defined_at(text, path) or use.made)

    def positions(self, scope: Scope) -> list[Position]:
        """The loops of this function that go through something else than steps."""
        return (
            [] if scope.function == "<module>" else positions(self.texts.get(scope.file, ""), scope.first, scope.line)
        )

    def reassigned(self, path: str) -> str:
        """The place that assigns an attribute, or a global variable, after it was made; empty if there is none."""
        found = ((file, reassigned_at(text, path)) for file, text in self.texts.items())
        return next((place(file, line) for file, line in found if line), "")


def _head(path: str) -> str:
    """The variable at the beginning of a path such as `parts[0].ema`."""
    return path.partition(".")[0].partition("[")[0]


def place(file: str, line: int) -> str:
    name = PurePath(file).name
    return f"{name}:{line}" if line else name


def variables(observation: Observation) -> Iterator[tuple[Key, Value, Scope]]:
    """All variables that are not tracked, by a key that is the same in every run."""
    for path, value in observation.values.items():
        number, _, name = path.partition(":")
        scope = observation.scopes[int(number)]
        yield (scope.file, scope.function, name), value, scope


def _by_key(observation: Observation) -> dict[Key, Value]:
    return {key: value for key, value, _ in variables(observation)}


def _unsteady(truth: Observations, observations: Iterable[Observation]) -> set[Key]:
    """Variables that differ from run to run without a disturbance: times, process numbers, entropy.

    Only boundaries at which the state is the same count.
    """
    found = set()
    for each in observations:
        expected = truth.at(each.role, each.step)
        if expected is None or differing(each, expected):
            continue
        mine, theirs = _by_key(each), _by_key(expected)
        found |= {key for key in mine.keys() & theirs.keys() if mine[key].digest != theirs[key].digest}
    return found


def changing(truth: Observations) -> set[Key]:
    """Variables that change from step to step, or cannot be read."""
    seen: dict[tuple[int, Key], set[str]] = {}
    first: dict[int, int] = {}
    late: set[Key] = set()
    for each in truth.all:
        begun = first.setdefault(each.role, each.step)
        for key, value in _by_key(each).items():
            if (each.role, key) not in seen and each.step > begun:
                late.add(key)
            seen.setdefault((each.role, key), set()).add(value.digest)
    return {key for (_, key), digests in seen.items() if len(digests) > 1 or "" in digests} | late


def _beside(
    truth: Observations, observation: Observation, *, even_if_differing: bool = False
) -> Iterator[tuple[Key, Value, Value, Scope]]:
    """Variables with their values in the undisturbed run and in this observation; none once the state differs."""
    expected = truth.at(observation.role, observation.step)
    if expected is not None and (even_if_differing or not differing(observation, expected)):
        before = _by_key(expected)
        for key, value, scope in variables(observation):
            if key in before:
                yield key, before[key], value, scope


# -- variables that a joiner does not have -----------------------------------------------------------------------------


def forgotten(
    truth: Observations, run: Run, number: int | None, sources: Sources, *, lasting: bool = False, idle: bool = False
) -> list[Cause]:
    """Variables that change, are not tracked, and differ from the undisturbed run, the likeliest cause first.

    They are looked for in a joiner before its first step, and in a stayer that repeats a step; after disturbance
    `number`, or after all. `lasting`: only variables that still differ at the end. `idle`: variables that feed no
    result; otherwise only those that do, if there are any.
    """
    moving = changing(truth)
    shaky = _unsteady(truth, run.before_disturbances())
    found: dict[Key, tuple[tuple[bool, int, int, str], Cause]] = {}
    for observation, twice in _telling(run, number, lasting=lasting):
        for key, was, value, scope in _beside(truth, observation):
            if key in found or key in shaky or key not in moving:
                continue
            if value.digest == was.digest and (value.digest or not observation.step):
                continue
            use = sources.use(scope, key[2], value.kind)
            if use is None or (not value.digest and not use.drawn) or (use.given and value.kind in _PLAIN):
                continue
            rank = (not _feeds(use, value), _WEIGHT.get(value.kind, 5), use.made, key[2])
            found[key] = rank, _cause(key, value, was, use, observation, twice=twice)
    ranked = sorted(found.values(), key=lambda each: each[0])
    if lasting:
        return [cause for _, cause in ranked]
    feeding = [cause for rank, cause in ranked if not rank[0]]
    idling = [cause for rank, cause in ranked if rank[0]]
    return idling if idle else feeding or idling


def _feeds(use: Use, value: Value) -> bool:
    return use.feeds or (use.acts and value.kind in _ACTING)


def _telling(run: Run, number: int | None, *, lasting: bool) -> Iterator[tuple[Observation, bool]]:
    """Observations that show what a worker lacks, and whether the worker lacks it because it repeated a step."""
    if lasting:
        end = max((each.step for each in run.observations), default=0)
        first = {(each.uid, each.role) for each in run.before_disturbances()}
        yield from ((each, (each.uid, each.role) in first) for each in run.observations if each.step == end)
        return
    made: dict[tuple[str, int], int] = {}
    repeats: list[Observation] = []
    for each in run.observations:  # of each worker in the order in which it wrote them
        who = (each.uid, each.role)
        new, again = who not in made, each.step <= made.get(who, -1)
        made[who] = max(each.step, made.get(who, -1))
        if each.disturbances == 0 or (number is not None and each.disturbances != number):
            continue
        if new:
            yield each, False
        elif again:
            repeats.append(each)
    yield from ((each, True) for each in repeats)


def _cause(key: Key, value: Value, was: Value, use: Use, observation: Observation, *, twice: bool) -> Cause:
    file, _, name = key
    who = f"in role {observation.role}, which repeated it" if twice else "in the joiner"
    evidence = f"before step {observation.step}: {was.short} undisturbed, {value.short} {who}"
    if not value.digest:
        evidence = f"{value.short}, which cannot be read; the joiner has its own"
    elif value.short == was.short:
        evidence = f"before step {observation.step} it is not the same {who}"
    return Cause(
        kind=value.kind,
        place=place(file, use.made or use.changed),
        variable=name,
        sentence=advice.complaint(value.kind, name, twice=twice),
        evidence=evidence,
        advice=advice.way_out(value.kind, name, fetched=use.fetched),
    )


def seeded_anew(truth: Observations, run: Run, found: Divergence) -> tuple[Cause, ...]:
    """Iterators of data loaders that a joiner has made in the step that differs, and an undisturbed run in another."""
    causes: dict[str, Cause] = {}
    for each in run.observations:
        expected = truth.at(each.role, each.step)
        if each.step == found.step and each.disturbances and expected is not None:
            for where in set(each.seeded) - set(expected.seeded):
                sentence, way = advice.SEEDED
                evidence = f"in step {each.step - 1}: in role {each.role}, and not undisturbed"
                causes.setdefault(where, Cause("seed", where, "DataLoader", sentence, evidence, way))
    return tuple(causes.values())


# -- undisturbed runs that differ --------------------------------------------------------------------------------------


def clues(
    truth: Observations, observations: Iterable[Observation], found: Divergence, sources: Sources
) -> tuple[Cause, ...]:
    """Why two undisturbed runs differ: lines with a result of chance, and other variables that differ.

    A line comes first if its variable was seen to differ.
    """
    seen = _seen(truth, [each for each in observations if each.step <= found.step], sources)
    causes: list[tuple[int, Cause]] = []
    explained = set()
    for file, hint in sources.hints:
        if hint.kind in ("rank", "uneven"):
            continue
        evidence = ""
        for (origin, _, name), text in seen.items():
            if origin == file and hint.variable and name.partition(".")[0] == hint.variable:
                evidence = text
                explained.add((origin, name))
        causes.append((0 if evidence else 1 if hint.kind != "clock" else 2, _hinted(file, hint, evidence)))
    for (file, function, name), text in seen.items():
        if (file, name) not in explained:
            sentence = f'"{name}" in {function} differs from run to run'
            causes.append((3, Cause("variable", place(file, 0), name, sentence, text, "find out what it comes from")))
    return tuple(cause for _, cause in sorted(causes, key=lambda each: (each[0], each[1].place)))


def _seen(truth: Observations, observations: Iterable[Observation], sources: Sources) -> dict[Key, str]:
    """Variables that differ no later than the state, and carry something to the next step; with their values."""
    found: dict[Key, str] = {}
    for each in sorted(observations, key=lambda each: each.step):
        for key, was, value, scope in _beside(truth, each, even_if_differing=not each.step):
            if was.digest != value.digest and sources.use(scope, key[2]) is not None:
                found.setdefault(key, f"before step {each.step}: {was.short} in one run, {value.short} in the other")
    return found


def places_in_data(truth: Observations, sources: Sources) -> tuple[Cause, ...]:
    """Positions in loops around the boundary: no variable holds them, and a joiner begins with the first element."""
    found: dict[tuple[str, int, str], Cause] = {}
    for scope in dict.fromkeys(scope for each in truth.all for scope in each.scopes):
        for each in sources.positions(scope):
            sentence, way = advice.position(each)
            cause = Cause("position", place(scope.file, each.line), each.data, sentence, "", way)
            found.setdefault((scope.file, each.line, each.data), cause)
    return tuple(found.values())


def lines(sources: Sources, kind: HintKind) -> tuple[Cause, ...]:
    """Causes that the source alone shows: a rank that is read at import, a collective that only some roles call."""
    return tuple(_hinted(file, hint) for file, hint in sources.hints if hint.kind == kind)


def _hinted(file: str, hint: Hint, evidence: str = "") -> Cause:
    sentence, way = advice.hinted(hint)
    return Cause(hint.kind, place(file, hint.line), hint.variable, sentence, evidence, way)
