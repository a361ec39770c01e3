"""What an undisturbed run alone suggests: state that may change later, and state that roles do not share. Pure."""

from __future__ import annotations

from understudy.protocol.sentences import named

from . import advice
from .carried import Use
from .causes import Cause, Sources, changing, place, variables
from .observation import Observation, Observations, Scope, Value

_PLAIN = ("counter", "number", "flag", "text", "tensor", "array", "list", "dict", "set", "tuple")


def unchanged(truth: Observations, sources: Sources, steps: int) -> list[Cause]:
    """Variables that have not changed in the run, are not tracked, and may change later.

    These are all optimizers, schedulers, scalers and samplers; modules that the loop does more with than call them;
    generators and iterators that it draws from; and plain values that the script assigns under a condition.
    """
    moving = changing(truth)
    found: dict[tuple[str, str], Cause] = {}
    for observation in truth.all:
        for key, value, scope in variables(observation):
            where = (scope.file, key[2])
            if key in moving or value.constant or where in found:
                continue
            use = sources.use(scope, key[2], value.kind)
            line = "" if use is None else _may_change(key[2], value, scope, use, sources)
            if use is not None and line:
                found[where] = Cause(
                    kind=value.kind,
                    place=place(scope.file, use.made or use.changed),
                    variable=key[2],
                    sentence=advice.unchanged(value.kind, key[2]),
                    evidence=f"{value.short}, unchanged in {steps} steps; {line}",
                    advice=advice.way_out(value.kind, key[2], fetched=use.fetched),
                )
    return list(found.values())


def _may_change(name: str, value: Value, scope: Scope, use: Use, sources: Sources) -> str:
    """Why a variable may change later; empty if nothing suggests it."""
    here = place(scope.file, use.changed) if use.changed else ""
    match value.kind:
        case "optimizer" | "scheduler" | "scaler" | "sampler" | "object":
            return f"{here} uses it" if here else "objects like it exist to change"
        case "module" | "generator" if use.changed and not (use.applied or use.seeded):
            return f"{here} may change it"
        case "iterator" if use.drawn:
            return f"{here} draws from it"
    if value.kind not in _PLAIN:
        return ""
    if "." in name or scope.function == "<module>":
        assigned = sources.reassigned(name)
        return f"{assigned} assigns it" if assigned else ""
    return f"{place(scope.file, use.assigned)} assigns it" if use.assigned and use.feeds else ""


# -- roles -------------------------------------------------------------------------------------------------------------


def uneven(truth: Observations) -> list[Cause]:
    """Tracked things that differ between roles with the same model, so that neither can give the state of the other."""
    twins = {each.role: each.twins for each in truth.all}
    by_step: dict[int, dict[int, Observation]] = {}
    for each in truth.all:
        by_step.setdefault(each.step, {}).setdefault(each.role, each)
    found: dict[str, Cause] = {}
    for step, roles in sorted(by_step.items()):
        for role, mine in sorted(roles.items()):
            strangers = [other for other in mine.expected if other > role and other not in twins[role]]
            for twin in (roles[other] for other in strangers if other in roles):
                for name in (name for name in mine.state if mine.state[name] != twin.state.get(name)):
                    thing = name.partition(".")[0]
                    sentence, way = advice.uneven_state(thing, named("role", (role, twin.role)))
                    evidence = f"{name} differs from step {max(0, step - 1)} on"
                    found.setdefault(thing, Cause("tracked", "", thing, sentence, evidence, way))
    return list(found.values())
