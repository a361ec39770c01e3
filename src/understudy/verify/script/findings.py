"""Findings: what the runs prove, what they only suggest, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from understudy.protocol.mesh import Mesh, alike, coordinates, describe

from . import advice
from .causes import Cause, Sources, clues, forgotten, lines
from .observation import Divergence, Observations, first_divergence
from .runs import WORDS, Disturbance, Run, described


class ScriptFinding(msgspec.Struct, frozen=True):
    """A problem of the script, with a way out."""

    kind: str
    """`diverged`, `not-deterministic`, `forgotten`, `rank`, `unknown-twins`, `ended-early`, `stuck`, or how the script
    failed: `raises`, `exits`, `collectives`, `steps`, `never-tracks`, `no-train`."""
    proven: bool
    """Whether bits differ, or the job failed; otherwise the problem is only suspected and has done no harm."""
    sentence: str
    advice: str = ""
    place: str = ""
    variable: str = ""
    evidence: str = ""
    step: int | None = None
    """The first step with another result."""
    roles: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    disturbance: str = ""
    causes: tuple[Cause, ...] = ()
    """The likeliest cause first."""


class Evidence(msgspec.Struct, frozen=True):
    """The runs of a check and the sources of the script."""

    mesh: Mesh
    steps: int
    calm: Run
    again: Run | None
    """The second undisturbed run, made if a disturbed one differs."""
    disturbed: tuple[Run, ...]
    sources: Mapping[str, str]
    """File → text, of the script and the modules beside it."""


def findings(evidence: Evidence) -> list[ScriptFinding]:
    """All findings, proven ones first."""
    sources = Sources(evidence.sources)
    failed = _failed(evidence.calm, "undisturbed", sources)
    if failed is None and evidence.calm.steps < evidence.steps:
        failed = ScriptFinding(
            "ended-early",
            True,
            f"the script ended after {evidence.calm.steps} of {evidence.steps} steps",
            "go through all steps that job.steps(…) gives; or check fewer: --steps N",
        )
    if failed is not None:
        return [failed, *_ranks_at_import(sources)]
    truth = Observations(evidence.calm.observations)
    chance = _chance(evidence, truth, sources)
    if chance is not None:
        return [chance, *_ranks_at_import(sources)]
    found: list[ScriptFinding] = []
    again = evidence.again
    if again is not None and (failed := _failed(again, "undisturbed, for the second time", sources)):
        found.append(failed)
    proven: set[tuple[str, str]] = set()
    for run in evidence.disturbed:
        for finding in _in_run(evidence.mesh, run, truth, sources):
            found.append(finding)
            proven |= {(cause.place, cause.variable) for cause in finding.causes}
    notes: dict[tuple[str, str], ScriptFinding] = {}
    for run in evidence.disturbed:
        harmless = first_divergence(truth, run.observations) is None
        for cause in forgotten(truth, run, None, sources, lasting=harmless, idle=not harmless):
            if (cause.place, cause.variable) not in proven:
                notes.setdefault((cause.place, cause.variable), _note(cause))
    return [*found, *notes.values(), *_ranks_at_import(sources), *_unknown_twins(evidence)]


def clean(found: Sequence[ScriptFinding]) -> bool:
    """Whether no finding is proven."""
    return not any(finding.proven for finding in found)


def unclear(truth: Run, run: Run) -> list[Disturbance]:
    """The disturbances that a run says nothing about.

    These are the disturbances after the first one that made the run differ; or the last one of several, if the run did
    not come to its end.
    """
    observations = Observations(truth.observations)
    for number in range(1, len(run.disturbances) + 1):
        if first_divergence(observations, run.after(number)) is not None:
            return list(run.disturbances[number:])
    return [] if run.whole or len(run.disturbances) < 2 else list(run.disturbances[-1:])


# -- runs that did not come to their end -------------------------------------------------------------------------------


def _failed(run: Run, how: str, sources: Sources) -> ScriptFinding | None:
    if run.whole:
        return None
    sentence = f"{how}: {run.reason}"
    if run.status == "stuck":
        way = "see what its roles wait for: run it with understudy run, and look at understudy status and events"
        return ScriptFinding("stuck", True, sentence, way)
    cause = run.cause or "raises"
    uneven = lines(sources, "uneven") if cause == "collectives" else ()
    return ScriptFinding(cause, True, sentence, advice.WAYS_OUT[cause], causes=uneven)


# -- runs that differ --------------------------------------------------------------------------------------------------


def _chance(evidence: Evidence, truth: Observations, sources: Sources) -> ScriptFinding | None:
    """A finding if two undisturbed runs differ, or a disturbed run differs before its first disturbance."""
    undisturbed = [run.before_disturbances() for run in evidence.disturbed]
    if evidence.again is not None:
        undisturbed.insert(0, evidence.again.observations)
    for observations in undisturbed:
        found = first_divergence(truth, observations)
        if found is None:
            continue
        causes = clues(truth, observations, found, sources)
        way = advice.UNSEEDED if found.step == 0 and not causes else "" if causes else advice.KERNEL
        return ScriptFinding(
            "not-deterministic",
            True,
            f"two undisturbed runs differ {_when(found)}",
            way,
            step=found.step - 1,
            roles=_roles(evidence.mesh, found),
            tensors=found.tensors,
            causes=causes,
        )
    return None


def _in_run(mesh: Mesh, run: Run, truth: Observations, sources: Sources) -> list[ScriptFinding]:
    """What a disturbed run proves."""
    failed = _failed(run, described(run.disturbances[-1]) if run.disturbances else "disturbed", sources)
    ended = [] if failed is None else [failed]
    for number, disturbance in enumerate(run.disturbances, 1):
        found = first_divergence(truth, run.after(number))
        if found is None:
            continue
        causes = (*lines(sources, "zipped"), *forgotten(truth, run, number, sources))
        diverged = ScriptFinding(
            "diverged",
            True,
            f"after {WORDS[disturbance.kind]} of a machine the bits differ, {_when(found)}",
            "" if causes else advice.NO_CAUSE,
            step=found.step - 1,
            roles=_roles(mesh, found),
            tensors=found.tensors,
            disturbance=described(disturbance),
            causes=causes,
        )
        return [diverged, *ended]
    return ended


def _when(found: Divergence) -> str:
    return "before the first step" if found.step == 0 else f"first in step {found.step - 1}"


def _roles(mesh: Mesh, found: Divergence) -> tuple[str, ...]:
    return tuple(describe(mesh, role) for role in found.roles)


# -- suspicions --------------------------------------------------------------------------------------------------------


def _note(cause: Cause) -> ScriptFinding:
    return ScriptFinding(
        kind="forgotten",
        proven=False,
        sentence=cause.sentence,
        advice=f"{cause.advice}; if it is only shown, it may stay as it is",
        place=cause.place,
        variable=cause.variable,
        evidence=cause.evidence,
    )


def _unknown_twins(evidence: Evidence) -> list[ScriptFinding]:
    """Roles that hold the same bits at every boundary without the runtime's knowledge."""
    mesh, observations = evidence.mesh, evidence.calm.observations
    twins = {each.role: set(each.twins) for each in observations}
    states: dict[int, list[tuple[int, tuple[tuple[str, str], ...]]]] = {}
    for each in observations:
        states.setdefault(each.role, []).append((each.step, tuple(sorted(each.state.items()))))
    found = []
    for role in sorted(states):
        same = tuple(other for other in sorted(states) if states[other] == states[role])
        where = coordinates(mesh, role)
        names = [name for name in where if any(coordinates(mesh, other)[name] != where[name] for other in same)]
        if role == same[0] and names and same == alike(mesh, role, names) and not set(same) <= twins[role]:
            found.append(
                ScriptFinding(
                    "unknown-twins",
                    False,
                    f"roles {', '.join(map(str, same))} hold the same bits at every boundary, and the runtime is not "
                    "told so: after a failure one could give another its state",
                    "if that is intended, say so before job.steps(…): "
                    f"job.same_over({', '.join(map(repr, names))})".replace("'", '"'),
                )
            )
    return found


def _ranks_at_import(sources: Sources) -> list[ScriptFinding]:
    return [
        ScriptFinding("rank", False, cause.sentence, cause.advice, cause.place, cause.variable)
        for cause in lines(sources, "rank")
    ]
