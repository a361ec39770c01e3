"""Findings: what the runs prove, what they only suggest, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from understudy.controller.core.state import FailureCause
from understudy.protocol.mesh import Mesh, describe
from understudy.protocol.sentences import named

from . import advice
from .causes import Cause, Sources, clues, forgotten, lines, places_in_data, seeded_anew
from .observation import Divergence, Observations, first_divergence
from .runs import WORDS, Disturbance, Run, classes_of, described
from .suspicions import unchanged, uneven

_OWN_RESULT = ("module", "optimizer", "scheduler", "scaler")
"""Kinds of variables that are a result of training, whatever the script does with them."""
CheckVerdict = Literal["clean", "found", "unclear"]


class ScriptFinding(msgspec.Struct, frozen=True):
    """A problem of the script, with a way out."""

    kind: str
    """`diverged`, `ends-different`, `not-deterministic`, `forgotten`, `untracked`, `position`, `uneven-state`, `rank`,
    `fatal`, `ended-early`, `stuck`, `interrupted`, `died`, or how the script failed: `raises`, `exits`, `collectives`,
    `steps`, `never-tracks`, `no-train`."""
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
    for run in evidence.disturbed:
        found += _in_run(evidence, run, truth, sources)
    named_before = {(cause.place, cause.variable) for finding in found for cause in finding.causes}
    for finding in _suspected(evidence, truth, sources):
        key = (finding.place, finding.variable)
        if not finding.variable or key not in named_before:
            named_before.add(key)
            found.append(finding)
    return sorted(found, key=lambda finding: not finding.proven)


def _suspected(evidence: Evidence, truth: Observations, sources: Sources) -> Iterator[ScriptFinding]:
    """What has done no harm to what is tracked: variables that a joiner lacks, or may lack later."""
    for run in evidence.disturbed:
        harmless = first_divergence(truth, run.observations) is None
        for cause in forgotten(truth, run, None, sources, lasting=harmless, idle=not harmless):
            if harmless and cause.kind in _OWN_RESULT:
                yield _finding("ends-different", cause, proven=True)
            else:
                yield _finding("forgotten", cause, "; if it is only shown, it may stay as it is")
    for cause in places_in_data(truth, sources):
        yield _finding("position", cause)
    for cause in uneven(truth):
        yield _finding("uneven-state", cause)
    for cause in unchanged(truth, sources, evidence.steps):
        yield _finding("untracked", cause)
    yield from _ranks_at_import(sources)


def _finding(kind: str, cause: Cause, more: str = "", *, proven: bool = False) -> ScriptFinding:
    return ScriptFinding(
        kind=kind,
        proven=proven,
        sentence=cause.sentence,
        advice=cause.advice + more,
        place=cause.place,
        variable=cause.variable,
        evidence=cause.evidence,
    )


def _ranks_at_import(sources: Sources) -> list[ScriptFinding]:
    return [_finding("rank", cause) for cause in lines(sources, "rank")]


def verdict(found: Sequence[ScriptFinding]) -> CheckVerdict:
    """`found` if a problem is proven, `unclear` if something has interrupted the check, otherwise `clean`."""
    if any(finding.proven for finding in found):
        return "found"
    return "unclear" if any(finding.kind == "interrupted" for finding in found) else "clean"


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


def _interrupted(run: Run) -> ScriptFinding:
    return ScriptFinding("interrupted", False, f"{run.name}: {run.interference}", advice.INTERRUPTED)


def _failed(run: Run, how: str, sources: Sources) -> ScriptFinding | None:
    if run.interference:
        return _interrupted(run)
    if run.whole:
        return None
    sentence = f"{how}: {run.reason}"
    if run.status == "stuck":
        return ScriptFinding("stuck", True, sentence, advice.STUCK)
    if run.cause is None and run.failure not in ("", FailureCause.SCRIPT, FailureCause.DISAGREEMENT):
        return ScriptFinding("died", True, sentence, advice.DIED)
    cause = run.cause or "raises"
    uneven = lines(sources, "uneven") if cause == "collectives" else ()
    return ScriptFinding(cause, True, sentence, advice.WAYS_OUT[cause], causes=uneven)


def _fatal(evidence: Evidence, run: Run) -> ScriptFinding:
    """The finding that a `kill -9` ends the job with the options that it has."""
    last, calm = run.disturbances[-1], evidence.calm
    alone = [roles[0] for roles in classes_of(calm.observations) if len(roles) == 1]
    copied = [run for run in evidence.disturbed if run.whole and any(each.orphans for each in run.disturbances)]
    truth = Observations(calm.observations)
    fine = bool(copied) and all(first_divergence(truth, each.observations) is None for each in copied)
    return ScriptFinding(
        "fatal",
        True,
        f"kill -9 of the machine with {named('role', last.roles)} ends the job: {run.reason}",
        advice.FATAL + (advice.COPIES_HELP if fine else ""),
        step=last.step,
        roles=tuple(describe(evidence.mesh, role) for role in alone or last.roles),
        disturbance=described(last),
        causes=tuple(uneven(truth)),
    )


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


def _in_run(evidence: Evidence, run: Run, truth: Observations, sources: Sources) -> list[ScriptFinding]:
    """What a disturbed run proves."""
    if run.interference:
        return [_interrupted(run)]
    failed = _failed(run, described(run.disturbances[-1]) if run.disturbances else "disturbed", sources)
    if run.state_lost and run.disturbances and run.disturbances[-1].kind == "kill":
        failed = _fatal(evidence, run)
    ended = [] if failed is None else [failed]
    for number, disturbance in enumerate(run.disturbances, 1):
        found = first_divergence(truth, run.after(number))
        if found is None:
            continue
        unshared = tuple(cause for cause in uneven(truth) if _concerns(cause, found))
        causes = (*places_in_data(truth, sources), *unshared, *forgotten(truth, run, number, sources))
        causes = causes or seeded_anew(truth, run, found)
        diverged = ScriptFinding(
            "diverged",
            True,
            f"after {WORDS[disturbance.kind]} of a machine the bits differ, {_when(found)}",
            "" if causes else advice.NO_CAUSE,
            step=found.step - 1,
            roles=_roles(evidence.mesh, found),
            tensors=found.tensors,
            disturbance=described(disturbance),
            causes=causes,
        )
        return [diverged, *(_consequence(each) for each in ended)]
    if failed is not None and failed.kind in advice.WAYS_OUT:
        causes = failed.causes or (
            *places_in_data(truth, sources),
            *forgotten(truth, run, len(run.disturbances), sources),
        )
        return [msgspec.structs.replace(failed, advice=advice.ONLY_DISTURBED, causes=causes)]
    return ended


def _consequence(failed: ScriptFinding) -> ScriptFinding:
    """The failure of a run that has differed before."""
    return msgspec.structs.replace(failed, advice=advice.FOLLOWS, causes=()) if failed.kind != "fatal" else failed


def _concerns(cause: Cause, found: Divergence) -> bool:
    """Whether a tracked thing is among those that differ."""
    return any(name.partition(".")[0] == cause.variable for name in found.tensors)


def _when(found: Divergence) -> str:
    return "before the first step" if found.step == 0 else f"first in step {found.step - 1}"


def _roles(mesh: Mesh, found: Divergence) -> tuple[str, ...]:
    return tuple(describe(mesh, role) for role in found.roles)
