"""From what runs have shown to findings: what is proven, what is only suspected, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from understudy.protocol.mesh import Mesh, alike, coordinates, describe

from . import advice
from .causes import Cause, Sources, clues, forgotten, lines
from .compare import Book, Divergence, first_divergence
from .observation import Observation
from .runs import WORDS, Disturbance, Run, said

_NAMED = 3


class Finding(msgspec.Struct, frozen=True):
    """One thing that a person can act on."""

    kind: str
    """`diverged`, `not-deterministic`, `forgotten`, `rank`, `unknown-twins`, `ended-early`, `stuck`, or how the script
    failed: `raises`, `exits`, `collectives`, `steps`, `never-tracks`, `no-train`."""
    proven: bool
    """Whether bits differ, or the job failed; otherwise it is only suspected, and does no harm so far."""
    sentence: str
    advice: str = ""
    place: str = ""
    variable: str = ""
    evidence: str = ""
    step: int | None = None
    """The first step whose result differs."""
    roles: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    disturbance: str = ""
    causes: tuple[Cause, ...] = ()
    """The likeliest first."""


class Show(msgspec.Struct, frozen=True):
    """All that there is to judge."""

    mesh: Mesh
    steps: int
    calm: Run
    again: Run | None
    """The second undisturbed run, made where a disturbed one differs."""
    disturbed: tuple[Run, ...]
    sources: Mapping[str, str]
    """File → text, of the script and the modules beside it."""


def findings(show: Show) -> list[Finding]:
    """Proven ones first."""
    sources = Sources(show.sources)
    failed = _failed(show.calm, "undisturbed", sources)
    if failed is None and show.calm.steps < show.steps:
        failed = Finding(
            "ended-early",
            True,
            f"the script ended after {show.calm.steps} of {show.steps} steps",
            "go through all steps that job.steps(…) gives; or rehearse fewer: --steps N",
        )
    if failed is not None:
        return [failed, *_notes_of_source(show)]
    truth = Book(show.calm.observations)
    chance = _chance(show, truth, sources)
    if chance is not None:
        return [chance, *_notes_of_source(show)]
    found: list[Finding] = []
    if show.again is not None and (failed := _failed(show.again, "undisturbed, for the second time", sources)):
        found.append(failed)
    proven: set[tuple[str, str]] = set()
    for run in show.disturbed:
        for finding in _in_run(show, run, truth, sources):
            found.append(finding)
            proven |= {(cause.place, cause.variable) for cause in finding.causes}
    notes: dict[tuple[str, str], Finding] = {}
    for run in show.disturbed:
        harmless = first_divergence(truth, run.observations) is None
        for cause in forgotten(truth, run, None, sources, lasting=harmless, idle=not harmless):
            if (cause.place, cause.variable) not in proven:
                notes.setdefault((cause.place, cause.variable), _note(cause))
    return [*found, *notes.values(), *_notes_of_source(show), *_unknown_twins(show)]


def clean(found: Sequence[Finding]) -> bool:
    """Whether nothing is proven."""
    return not any(finding.proven for finding in found)


def unclear(truth: Run, run: Run) -> list[Disturbance]:
    """The disturbances of a run that it says nothing about: those after the one that made it differ, and, where it came
    to no good end, all from the last one on that was not alone in it."""
    book = Book(truth.observations)
    acts = range(1, len(run.disturbances) + 1)
    bad = [
        act
        for act in acts
        if first_divergence(book, [g for g in run.observations if g.disturbances == act]) is not None
    ]
    if bad:
        return list(run.disturbances[bad[0] :])
    return [] if run.whole or len(run.disturbances) < 2 else list(run.disturbances[-1:])


# -- runs that did not come to their end -------------------------------------------------------------------------------


def _failed(run: Run, how: str, sources: Sources) -> Finding | None:
    if run.whole:
        return None
    if run.status == "stuck":
        return Finding(
            "stuck",
            True,
            f"{how}: {run.reason}",
            "see what its roles wait for: run it with understudy run, and look at understudy status and events",
        )
    kind, way = advice.failure(run.reason)
    causes = lines(sources, "uneven") if kind == "collectives" else ()
    return Finding(kind, True, f"{how}: {run.reason}", way, causes=causes)


# -- runs that differ --------------------------------------------------------------------------------------------------


def _chance(show: Show, truth: Book, sources: Sources) -> Finding | None:
    """Whether two undisturbed runs differ, or a disturbed one before anything has happened to it."""
    calm_parts: list[list[Observation]] = [
        [g for g in run.observations if g.disturbances == 0] for run in show.disturbed
    ]
    if show.again is not None:
        calm_parts.insert(0, show.again.observations)
    for observations in calm_parts:
        found = first_divergence(truth, observations)
        if found is None:
            continue
        causes = clues(truth, observations, found, sources)
        way = advice.UNSEEDED if found.step == 0 and not causes else "" if causes else advice.KERNEL
        return Finding(
            "not-deterministic",
            True,
            f"two undisturbed runs differ {_when(found)}",
            way,
            step=found.step - 1,
            roles=_roles(show.mesh, found),
            tensors=found.tensors,
            causes=causes,
        )
    return None


def _in_run(show: Show, run: Run, truth: Book, sources: Sources) -> list[Finding]:
    """What one disturbed run proves."""
    failed = _failed(run, said(run.disturbances[-1]) if run.disturbances else "disturbed", sources)
    ended = [] if failed is None else [failed]
    for act, disturbance in enumerate(run.disturbances, 1):
        found = first_divergence(
            truth, [observation for observation in run.observations if observation.disturbances == act]
        )
        if found is None:
            continue
        causes = (*lines(sources, "zipped"), *forgotten(truth, run, act, sources))
        return [
            Finding(
                "diverged",
                True,
                f"after {WORDS[disturbance.kind]} of a machine the bits differ, {_when(found)}",
                "" if causes else advice.NO_CAUSE,
                step=found.step - 1,
                roles=_roles(show.mesh, found),
                tensors=found.tensors,
                disturbance=said(disturbance),
                causes=causes,
            ),
            *ended,
        ]
    return ended


def _when(found: Divergence) -> str:
    return "before the first step" if found.step == 0 else f"first in step {found.step - 1}"


def _roles(mesh: Mesh, found: Divergence) -> tuple[str, ...]:
    return tuple(describe(mesh, role) for role in found.roles)


def named(tensors: Sequence[str]) -> str:
    """The first few, for people."""
    more = len(tensors) - _NAMED
    return ", ".join(tensors[:_NAMED]) + (f" and {more} more" if more > 0 else "")


# -- suspicions --------------------------------------------------------------------------------------------------------


def _note(cause: Cause) -> Finding:
    way = f"{cause.advice}; where it is only shown, it may stay as it is"
    return Finding("forgotten", False, cause.sentence, way, cause.place, cause.variable, cause.evidence)


def _unknown_twins(show: Show) -> list[Finding]:
    """Roles that hold the same bits at every boundary, although the runtime does not know that they must."""
    twins = {observation.role: set(observation.twins) for observation in show.calm.observations}
    states: dict[int, list[tuple[int, tuple[tuple[str, str], ...]]]] = {}
    for observation in show.calm.observations:
        states.setdefault(observation.role, []).append((observation.step, tuple(sorted(observation.state.items()))))
    found = []
    for role in sorted(states):
        same = tuple(other for other in sorted(states) if states[other] == states[role])
        where = coordinates(show.mesh, role)
        names = [name for name in where if any(coordinates(show.mesh, other)[name] != where[name] for other in same)]
        if role == same[0] and names and same == alike(show.mesh, role, names) and not set(same) <= twins[role]:
            found.append(
                Finding(
                    "unknown-twins",
                    False,
                    f"roles {', '.join(map(str, same))} hold the same bits at every boundary, and the runtime is not "
                    "told so: after a failure one could give another its state",
                    "where that is meant to be so, say it before job.steps(…): "
                    f"job.same_over({', '.join(map(repr, names))})".replace("'", '"'),
                )
            )
    return found


def _notes_of_source(show: Show) -> list[Finding]:
    return [
        Finding("rank", False, cause.sentence, cause.advice, cause.place, cause.variable)
        for cause in lines(Sources(show.sources), "rank")
    ]
