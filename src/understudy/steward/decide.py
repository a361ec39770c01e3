"""What to do about slow machines and about the number of standbys: one pure function, with reasons and limits.

The controller and the simulator (`understudy simulate --steward`) ask the same function. Everything that limits it is
in what it is given: a controller that comes back knows from its ledger what was done in the last hour.
"""

from __future__ import annotations

from typing import Literal

import msgspec

HOUR = 3600.0

Mode = Literal["off", "tell", "act"]


class StewardSettings(msgspec.Struct, frozen=True):
    """How far the steward may go."""

    mode: Mode = "tell"
    """About slow machines: do not look, say what it would do, or do it. The pool is kept whatever this says."""
    pool: int | None = None
    """How many standbys to keep; None: their number is nobody's business."""
    cool_down: float = 30.0
    """Seconds between two requests for machines, and for which there are too many standbys before one is released."""
    budget: int = 0
    """Machines asked for in an hour at most, those that others have asked for counted as well; 0: any number."""
    patience: int = 10
    """Looks, one after the other, in which a machine is slow before anything follows from it."""
    rest: float = 600.0
    """Seconds for which a machine that came, or was to be replaced, is left alone."""
    replacements: int = 4
    """Of slow machines in an hour, at most."""
    returning: float = 0.0
    """Seconds in which a machine that was lost comes back by itself; 0: it does not."""
    arrival: float = HOUR
    """Seconds after which a machine that was asked for is not expected any more."""


class Suspect(msgspec.Struct, frozen=True):
    """A machine that plays and is slow."""

    machine: str
    ratio: float
    """How many times as long as the others it takes."""
    reason: str
    since: float = 0.0
    """When it began to play; 0: with the job."""


class FreeStandby(msgspec.Struct, frozen=True):
    """One that nobody has a claim on by name."""

    machine: str
    warm: bool
    """Whether it could play at once."""
    since: float
    """When it came."""


class DrainDemand(msgspec.Struct, frozen=True):
    """A planned replacement that waits."""

    machines: int
    by: float | None = None


class Observed(msgspec.Struct, frozen=True):
    """What is so at one moment."""

    at: float
    training: bool
    """Whether the job makes steps, and is not about to end."""
    busy: bool = False
    """Whether a change of the roster is under way."""
    standbys: tuple[FreeStandby, ...] = ()
    expected: int = 0
    """Machines that were asked for and have not come."""
    vacant: int = 0
    """Machines' places that are to be filled again."""
    suspects: tuple[Suspect, ...] = ()
    drains: tuple[DrainDemand, ...] = ()
    lost: tuple[float, ...] = ()
    """When machines were lost, lately."""
    requests: tuple[float, ...] = ()
    """When machines were asked for in the last hour, or since they could still come: each one, whoever asked."""


class ReplaceSlow(msgspec.Struct, frozen=True):
    machine: str
    why: str


class RequestStandbys(msgspec.Struct, frozen=True):
    count: int
    why: str


class ReleaseStandby(msgspec.Struct, frozen=True):
    machine: str
    why: str


Action = ReplaceSlow | RequestStandbys | ReleaseStandby


class StewardMemory(msgspec.Struct, frozen=True):
    """What the next look must know of those before it."""

    looked: float = float("-inf")
    slow: dict[str, int] = {}
    """Machine → looks, one after the other, in which it was slow."""
    replaced: tuple[tuple[float, str], ...] = ()
    """When which machine was to be replaced, lately."""
    plenty: float | None = None
    """Since when there have been too many standbys."""
    told: dict[str, float] = {}
    """Why nothing was done → when that was said; it is not said again for an hour."""


class StewardDecision(msgspec.Struct, frozen=True):
    actions: tuple[Action, ...]
    memory: StewardMemory
    why_not: tuple[str, ...] = ()
    """What has kept it from acting, where that was not said lately."""


def decide(observed: Observed, settings: StewardSettings, memory: StewardMemory) -> StewardDecision:
    """What to do now. The same look twice does nothing more; while the job does not train, nothing is done."""
    if observed.at == memory.looked:
        return StewardDecision((), memory)
    if not observed.training:
        return StewardDecision((), msgspec.structs.replace(memory, looked=observed.at, slow={}, plenty=None))
    at = observed.at
    slow = _persisting(observed, settings, memory)
    keep = max(HOUR, settings.rest)
    replaced = tuple((min(when, at), machine) for when, machine in memory.replaced if at - when < keep)
    actions: list[Action] = []
    objections: dict[str, str] = {}

    replace = _replace(observed, settings, slow, replaced, objections)
    if replace is not None:
        actions.append(replace)
        replaced = (*replaced, (at, replace.machine))
    request = _request(observed, settings, objections)
    if request is not None:
        actions.append(request)
    plenty, release = _release(observed, settings, memory.plenty)
    if release is not None:
        actions.append(release)

    told = {key: min(when, at) for key, when in memory.told.items() if at - when < HOUR}
    new = {key: text for key, text in objections.items() if key not in told}
    told |= dict.fromkeys(new, at)
    return StewardDecision(tuple(actions), StewardMemory(at, slow, replaced, plenty, told), tuple(new.values()))


# -- slow machines -----------------------------------------------------------------------------------------------------


def _persisting(observed: Observed, settings: StewardSettings, memory: StewardMemory) -> dict[str, int]:
    if settings.mode == "off":
        return {}
    return {each.machine: memory.slow.get(each.machine, 0) + 1 for each in observed.suspects}


def _replace(
    observed: Observed,
    settings: StewardSettings,
    slow: dict[str, int],
    replaced: tuple[tuple[float, str], ...],
    objections: dict[str, str],
) -> ReplaceSlow | None:
    """The slowest of those that have been slow for long enough, if anything may be done about it."""
    at = observed.at
    for each in sorted(observed.suspects, key=lambda each: (-each.ratio, each.machine)):
        name = each.machine
        if slow.get(name, 0) < settings.patience or observed.busy:
            continue
        if any(machine == name and at - when < settings.rest for when, machine in replaced):
            continue  # that was said when it was decided
        obstacle = _obstacle(observed, settings, each, sum(at - when < HOUR for when, _ in replaced))
        if not obstacle:
            return ReplaceSlow(name, f"{each.reason}, in {slow[name]} looks")
        objections[f"{name}: {obstacle}"] = f"{name} is not replaced: {obstacle} ({each.reason})"
    return None


def _obstacle(observed: Observed, settings: StewardSettings, suspect: Suspect, lately: int) -> str:
    """Why a machine that is slow must not be replaced now; empty where it may."""
    if suspect.since and observed.at - suspect.since < settings.rest:
        return f"it came less than {_span(settings.rest)} ago"
    if lately >= settings.replacements:
        return f"not more than {_count(settings.replacements, 'slow machine')} an hour"
    ready = sum(standby.warm for standby in observed.standbys)
    claimed = observed.vacant + sum(drain.machines for drain in observed.drains)
    if not ready:
        return "no standby is ready"
    if ready <= claimed:
        needed = "a replica that is missing" if observed.vacant else "a machine that has to leave"
        return f"the standbys that are ready are needed for {needed}"
    return ""


# -- the pool ----------------------------------------------------------------------------------------------------------


def _needed(observed: Observed, pool: int) -> int:
    """Standbys that there should be: the pool, and those that vacant places and planned replacements wait for."""
    return pool + observed.vacant + sum(drain.machines for drain in observed.drains)


def _request(observed: Observed, settings: StewardSettings, objections: dict[str, str]) -> RequestStandbys | None:
    if settings.pool is None:
        return None
    at, free = observed.at, len(observed.standbys)
    coming = min(observed.expected, sum(at - when < settings.arrival for when in observed.requests))
    back = sum(0 <= at - when < settings.returning for when in observed.lost)
    needed = _needed(observed, settings.pool)
    lacking = needed - free - coming - back
    if lacking <= 0:
        return None
    if any(at - when < settings.cool_down for when in observed.requests):
        return None
    count = lacking
    if settings.budget:
        count = min(lacking, settings.budget - sum(at - when < HOUR for when in observed.requests))
    if count <= 0:
        limit = f"the budget is {_count(settings.budget, 'machine')} an hour"
        objections["budget"] = f"no standby is asked for, although {free} of {needed} are free: {limit}"
        return None
    expected = f", {coming + back} expected" if coming + back else ""
    return RequestStandbys(count, f"{free} of {needed} free{expected}")


def _release(
    observed: Observed, settings: StewardSettings, plenty: float | None
) -> tuple[float | None, ReleaseStandby | None]:
    """Since when there are too many, and whom to let go: who is least warm, then who came last."""
    if settings.pool is None:
        return None, None
    needed = _needed(observed, settings.pool)
    if observed.busy or len(observed.standbys) <= needed:
        return None, None
    since = observed.at if plenty is None else min(plenty, observed.at)
    if observed.at - since <= settings.cool_down:
        return since, None
    last = max(observed.standbys, key=lambda standby: (not standby.warm, standby.since, standby.machine))
    why = f"{_count(len(observed.standbys), 'standby')} for {_span(observed.at - since)}, {needed} needed"
    return observed.at, ReleaseStandby(last.machine, why)


def _count(number: int, what: str) -> str:
    return f"{number} {what if number == 1 else what + 's'}"


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
