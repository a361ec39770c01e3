"""Why bits differ: variables and lines of the script, the likeliest first, each with what speaks for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import PurePath

import msgspec

from . import advice
from .carried import Use, carried, defined_at
from .compare import Book, Divergence, Key, by_key, changing, differing, unsteady, variables
from .hints import Hint, HintKind, hints
from .observation import Observation, Scope, Value
from .runs import Run

_WEIGHT = {
    **{
        "module": 0,
        "optimizer": 0,
        "scheduler": 0,
        "generator": 0,
        "iterator": 0,
        "tensor": 1,
        "array": 1,
        "object": 1,
    },
    **{"counter": 2, "number": 2, "flag": 2, "list": 3, "dict": 3, "set": 3, "tuple": 3, "text": 4},
}
_ACTING = ("module", "optimizer", "scheduler", "object", "generator", "iterator")
"""What is called for its effect alone may have one on the result: `schedule.step()`, not `losses.append(…)`."""


class Cause(msgspec.Struct, frozen=True):
    """Something that explains a difference, or would."""

    kind: str
    """What the variable is, or what the line does."""
    place: str
    """file:line"""
    variable: str
    sentence: str
    evidence: str
    advice: str


class Sources:
    """The texts of the script and of the modules beside it, and what can be read off them."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._loops: dict[Scope, dict[str, Use] | None] = {}

    @cached_property
    def hints(self) -> list[tuple[str, Hint]]:
        return [(file, hint) for file, text in self.texts.items() for hint in hints(text)]

    def use(self, scope: Scope, path: str) -> Use | None:
        """How the loop of this function uses a variable; None where it carries nothing from step to step."""
        if scope.function == "<module>":
            return Use(defined_at(self.texts.get(scope.file, ""), path), feeds=True)
        if scope not in self._loops:
            self._loops[scope] = carried(self.texts.get(scope.file, ""), scope.first, scope.line)
        found = self._loops[scope]
        if found is None:
            return Use(scope.line, feeds=True)
        head, dot, _ = path.partition(".")
        use = found.get(head)
        if use is None or not dot:
            return use
        return msgspec.structs.replace(use, feeds=True, made=defined_at(self.texts[scope.file], path) or use.made)


def place(file: str, line: int) -> str:
    name = PurePath(file).name
    return f"{name}:{line}" if line else name


# -- what a newcomer does not have -------------------------------------------------------------------------------------


def forgotten(
    truth: Book, run: Run, act: int | None, sources: Sources, *, lasting: bool = False, idle: bool = False
) -> list[Cause]:
    """Variables that change, are not tracked, and were not what they are in an undisturbed run: in a newcomer before
    its first step, or in somebody who repeats a step. Of one act, or of all. `lasting`: only those that still differ
    at the end. `idle`: those that feed no result, otherwise only those that do, if there are any."""
    moving = changing(truth)
    calm = [observation for observation in run.observations if observation.disturbances == 0]
    shaky = unsteady(truth, calm)
    found: dict[Key, tuple[tuple[bool, int, int, str], Cause]] = {}
    for observation, twice in _telling(run, act, lasting=lasting):
        expected = truth.at(observation.role, observation.step)
        if expected is None or differing(observation, expected):
            continue
        before = by_key(expected)
        for key, value, scope in variables(observation):
            was = before.get(key)
            if (
                key in found
                or key in shaky
                or key not in moving
                or was is None
                or not _differs(value, was, observation)
            ):
                continue
            use = sources.use(scope, key[2])
            if use is None or (not value.digest and not use.drawn):
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


def _differs(value: Value, was: Value, observation: Observation) -> bool:
    return value.digest != was.digest or (not value.digest and observation.step > 0)


def _telling(run: Run, act: int | None, *, lasting: bool) -> Iterator[tuple[Observation, bool]]:
    """The observations that tell what somebody lacks, and whether it is because a step was repeated."""
    if lasting:
        end = max((observation.step for observation in run.observations), default=0)
        first = {
            (observation.uid, observation.role) for observation in run.observations if observation.disturbances == 0
        }
        yield from (
            (observation, (observation.uid, observation.role) in first)
            for observation in run.observations
            if observation.step == end
        )
        return
    made: dict[tuple[str, int], int] = {}
    repeats: list[Observation] = []
    for observation in run.observations:  # of each worker in the order in which it wrote them
        who = (observation.uid, observation.role)
        new, again = who not in made, observation.step <= made.get(who, -1)
        made[who] = max(observation.step, made.get(who, -1))
        if observation.disturbances == 0 or (act is not None and observation.disturbances != act):
            continue
        if new:
            yield observation, False
        elif again:
            repeats.append(observation)
    yield from ((observation, True) for observation in repeats)


def _cause(key: Key, value: Value, was: Value, use: Use, observation: Observation, *, twice: bool) -> Cause:
    file, _, name = key
    who = f"in role {observation.role}, which repeated it" if twice else "in the newcomer"
    evidence = f"before step {observation.step}: {was.short} undisturbed, {value.short} {who}"
    if not value.digest:
        evidence = f"{value.short}, which cannot be looked into; the newcomer has one of its own"
    elif value.short == was.short:
        evidence = f"before step {observation.step} it is not the same {who}"
    return Cause(
        value.kind,
        place(file, use.made or use.changed),
        name,
        advice.complaint(value.kind, name, twice=twice),
        evidence,
        advice.way_out(value.kind, name),
    )


# -- what differs by itself --------------------------------------------------------------------------------------------


def clues(truth: Book, observations: Iterable[Observation], found: Divergence, sources: Sources) -> tuple[Cause, ...]:
    """Why two undisturbed runs differ: lines that read what differs from run to run, those first whose variable was
    seen to differ; then other variables that were."""
    seen = _seen(truth, [observation for observation in observations if observation.step <= found.step], sources)
    causes: list[tuple[int, Cause]] = []
    explained = set()
    for file, hint in sources.hints:
        if hint.kind in ("rank", "uneven", "zipped"):
            continue
        sentence, way = advice.hinted(hint)
        evidence = ""
        for (where, _, name), text in seen.items():
            if where == file and hint.variable and name.partition(".")[0] == hint.variable:
                evidence = text
                explained.add((where, name))
        cause = Cause(hint.kind, place(file, hint.line), hint.variable, sentence, evidence, way)
        causes.append((0 if evidence else 1 if hint.kind != "clock" else 2, cause))
    for (file, function, name), text in seen.items():
        if (file, name) not in explained:
            sentence = f'"{name}" in {function} differs from run to run'
            causes.append((3, Cause("variable", place(file, 0), name, sentence, text, "find out what it comes from")))
    return tuple(cause for _, cause in sorted(causes, key=lambda each: (each[0], each[1].place)))


def _seen(truth: Book, observations: Iterable[Observation], sources: Sources) -> dict[Key, str]:
    """Variables that differ before the state does, or with it, and carry something: with what they were."""
    found: dict[Key, str] = {}
    for observation in sorted(observations, key=lambda observation: observation.step):
        expected = truth.at(observation.role, observation.step)
        if expected is None or (observation.step and differing(observation, expected)):
            continue
        before = by_key(expected)
        for key, value, scope in variables(observation):
            was = before.get(key)
            if was is not None and was.digest != value.digest and sources.use(scope, key[2]) is not None:
                found.setdefault(
                    key, f"before step {observation.step}: {was.short} in one run, {value.short} in the other"
                )
    return found


def lines(sources: Sources, kind: HintKind) -> tuple[Cause, ...]:
    """What the source alone says: a rank that is read at import, a collective that only some roles call."""
    found = []
    for file, hint in sources.hints:
        if hint.kind == kind:
            sentence, way = advice.hinted(hint)
            found.append(Cause(kind, place(file, hint.line), hint.variable, sentence, "", way))
    return tuple(found)
