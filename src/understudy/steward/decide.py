"""The steward's decision: what to do about slow machines and about the number of standbys. Pure, with reasons.

The controller and the simulator (`understudy simulate --steward`) call the same function. All of its limits depend on
its arguments: a restarted controller knows from its ledger what was done in the last hour.
"""

from __future__ import annotations

import msgspec

from understudy.protocol.durations import readable
from understudy.protocol.sentences import counted
from understudy.protocol.settings import HOUR, StewardSettings


class Suspect(msgspec.Struct, frozen=True):
    """A training machine that is slow."""

    machine: str
    ratio: float
    """Its step time, in step times of its class."""
    reason: str
    since: float = 0.0
    """When the machine began to train; 0: with the job."""


class FreeStandby(msgspec.Struct, frozen=True):
    """A standby that no request reserves by name."""

    machine: str
    warm: bool
    """Whether it has rehearsed and could train at once."""
    since: float
    """When it arrived."""


class Observed(msgspec.Struct, frozen=True):
    """The state of the job at one moment."""

    at: float
    training: bool
    """Whether the job makes steps, and is not about to end."""
    busy: bool = False
    """Whether a change of the roster is under way."""
    standbys: tuple[FreeStandby, ...] = ()
    expected: int = 0
    """Machines that were requested and have not arrived."""
    vacant: int = 0
    """Machines' places that are vacant and to be refilled."""
    suspects: tuple[Suspect, ...] = ()
    drains: int = 0
    """Machines that wait for their planned replacement, each of which needs a standby."""
    lost: tuple[float, ...] = ()
    """When machines were lost recently."""
    requests: tuple[float, ...] = ()
    """When each machine was requested: in the last hour, or as long as it could still arrive. All requests count."""

    @property
    def claimed(self) -> int:
        """Number of standbys that vacant places and waiting planned replacements need."""
        return self.vacant + self.drains


class ReplaceSlow(msgspec.Struct, frozen=True):
    """Replace a slow machine."""

    machine: str
    why: str


class RequestStandbys(msgspec.Struct, frozen=True):
    """Request machines for the pool of standbys."""

    count: int
    why: str


class ReleaseStandby(msgspec.Struct, frozen=True):
    """Release a standby that is not needed."""

    machine: str
    why: str


Action = ReplaceSlow | RequestStandbys | ReleaseStandby


class StewardMemory(msgspec.Struct, frozen=True):
    """What one check passes on to the next."""

    checked: float = float("-inf")
    """Time of the last check."""
    slow: dict[str, int] = {}
    """Machine → consecutive checks in which it was slow."""
    replaced: tuple[tuple[float, str], ...] = ()
    """Recent requests to replace a machine: time and machine."""
    plenty: float | None = None
    """Since when there have been too many standbys."""
    told: dict[str, float] = {}
    """Objection → when it was reported. An objection is reported once an hour."""


class StewardDecision(msgspec.Struct, frozen=True):
    """What to do now, and what to remember."""

    actions: tuple[Action, ...]
    memory: StewardMemory
    why_not: tuple[str, ...] = ()
    """New objections: reasons why a machine is not replaced or requested."""


def decide(observed: Observed, settings: StewardSettings, memory: StewardMemory) -> StewardDecision:
    """Decides what to do now. A repeated observation changes nothing; if the job does not train, nothing is done."""
    if observed.at == memory.checked:
        return StewardDecision((), memory)
    if not observed.training:
        return StewardDecision((), msgspec.structs.replace(memory, checked=observed.at, slow={}, plenty=None))
    at = observed.at
    suspects = observed.suspects if settings.mode != "off" else ()
    slow = {each.machine: memory.slow.get(each.machine, 0) + 1 for each in suspects}
    keep = max(HOUR, settings.rest)
    replaced = tuple((min(when, at), machine) for when, machine in memory.replaced if at - when < keep)
    objections: dict[str, str] = {}
    replace = _replace(observed, settings, slow, replaced, objections)
    if replace is not None:
        replaced = (*replaced, (at, replace.machine))
    request = _request(observed, settings, objections)
    plenty, release = _release(observed, settings, memory.plenty)
    actions = tuple(action for action in (replace, request, release) if action is not None)
    told = {key: min(when, at) for key, when in memory.told.items() if at - when < HOUR}
    new = {key: text for key, text in objections.items() if key not in told}
    told |= dict.fromkeys(new, at)
    return StewardDecision(actions, StewardMemory(at, slow, replaced, plenty, told), tuple(new.values()))


def _replace(
    observed: Observed,
    settings: StewardSettings,
    slow: dict[str, int],
    replaced: tuple[tuple[float, str], ...],
    objections: dict[str, str],
) -> ReplaceSlow | None:
    """Replaces the slowest of the machines that have been slow for long enough, unless a limit forbids it."""
    at = observed.at
    for each in sorted(observed.suspects, key=lambda each: (-each.ratio, each.machine)):
        name = each.machine
        if slow.get(name, 0) < settings.looks or observed.busy:
            continue
        if any(machine == name and at - when < settings.rest for when, machine in replaced):
            continue  # the decision was reported when it was made
        obstacle = _obstacle(observed, settings, each, sum(at - when < HOUR for when, _ in replaced))
        if not obstacle:
            return ReplaceSlow(name, f"{each.reason}, in {slow[name]} checks")
        objections[f"{name}: {obstacle}"] = f"{name} is not replaced: {obstacle} ({each.reason})"
    return None


def _obstacle(observed: Observed, settings: StewardSettings, suspect: Suspect, lately: int) -> str:
    """Why a slow machine must not be replaced now; empty: it may be."""
    if suspect.since and observed.at - suspect.since < settings.rest:
        return f"it joined less than {readable(settings.rest)} ago"
    if lately >= settings.replacements:
        return f"the limit is {counted(settings.replacements, 'slow machine')} an hour"
    ready = sum(standby.warm for standby in observed.standbys)
    if not ready:
        return "no standby is ready"
    if ready <= observed.claimed:
        needed = "a vacant replica" if observed.vacant else "a planned replacement"
        return f"the ready standbys are needed for {needed}"
    return ""


def _request(observed: Observed, settings: StewardSettings, objections: dict[str, str]) -> RequestStandbys | None:
    if settings.pool is None:
        return None
    at, free = observed.at, len(observed.standbys)
    coming = min(observed.expected, sum(at - when < settings.arrival for when in observed.requests))
    back = sum(0 <= at - when < settings.returning for when in observed.lost)
    needed = settings.pool + observed.claimed
    count = needed - free - coming - back
    if count <= 0 or any(at - when < settings.cool_down for when in observed.requests):
        return None
    if settings.budget:
        count = min(count, settings.budget - sum(at - when < HOUR for when in observed.requests))
    if count <= 0:
        limit = f"the budget is {counted(settings.budget, 'machine')} an hour"
        objections["budget"] = f"no standby is requested, although {free} of {needed} are free: {limit}"
        return None
    expected = f", {coming + back} expected" if coming + back else ""
    return RequestStandbys(count, f"{free} of {needed} free{expected}")


def _release(
    observed: Observed, settings: StewardSettings, plenty: float | None
) -> tuple[float | None, ReleaseStandby | None]:
    """Since when there are too many standbys, and the one to release: first those not warm, then the latest."""
    if settings.pool is None:
        return None, None
    needed = settings.pool + observed.claimed
    if observed.busy or len(observed.standbys) <= needed:
        return None, None
    since = observed.at if plenty is None else min(plenty, observed.at)
    if observed.at - since <= settings.cool_down:
        return since, None
    last = max(observed.standbys, key=lambda standby: (not standby.warm, standby.since, standby.machine))
    why = f"{counted(len(observed.standbys), 'standby')} for {readable(observed.at - since)}, {needed} needed"
    return observed.at, ReleaseStandby(last.machine, why)
