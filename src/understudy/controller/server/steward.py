"""The steward of a running job: looks about once a second, and asks for what `steward/decide.py` says.

What it does goes through the ledger like an operator's requests, with the reason before it. What limits it, the
requests and replacements of the last hour, is read from the tales: a controller that comes back keeps to the same
limits. The rest of its memory starts empty then: a machine has to be slow for as long again, standbys have to be too
many for as long again. That delays, it never adds anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from understudy.controller.core import events
from understudy.controller.core.cast import Machine
from understudy.controller.core.director import Director
from understudy.controller.core.events import Asked, Event, Noted, Tale
from understudy.protocol.settings import HOUR, StewardSettings
from understudy.steward.decide import (
    Action,
    DrainDemand,
    FreeStandby,
    Observed,
    ReleaseStandby,
    ReplaceSlow,
    RequestStandbys,
    StewardMemory,
    Suspect,
    decide,
)

LOOK_S = 1.0


class Finding(Protocol):
    """What is known of a machine that is slow."""

    @property
    def ratio(self) -> float: ...

    @property
    def reason(self) -> str: ...


class Steward:
    def __init__(
        self,
        settings: StewardSettings,
        director: Director,
        tales: Sequence[Tale],
        suspects: Callable[[], Mapping[str, Finding]] = dict,
        name: Callable[[], str] = lambda: uuid.uuid4().hex[:12],
    ) -> None:
        """`tales` grows as the job goes on; `name` gives ids to requests."""
        self.settings, self._director, self._tales, self._suspects, self._name = (
            settings,
            director,
            tales,
            suspects,
            name,
        )
        self._read = 0
        self._requests: list[float] = []
        self._lost: list[float] = []
        self._replaced: list[tuple[float, str]] = []
        self._playing: dict[str, float] | None = None
        """Machine → since when it plays, as far as that was seen."""
        self._listen()
        self.memory = StewardMemory(replaced=tuple(self._replaced))

    def look(self, now: float) -> list[Event]:
        """What follows from what is so now; nothing more than once a second."""
        if abs(now - self.memory.looked) < LOOK_S:
            return []
        self._listen()
        decision = decide(self._observed(now), self.settings, self.memory)
        self.memory = decision.memory
        found: list[Event] = [Noted("steward", text, {"act": "none"}) for text in decision.why_not]
        for action in decision.actions:
            found += self._carried_out(action)
        return found

    def _carried_out(self, action: Action) -> list[Event]:
        request: events.Request
        match action:
            case ReplaceSlow(machine, why):
                note: dict[str, str | float] = {"act": "replace", "machine": machine}
                if self.settings.mode != "act":
                    return [Noted("steward", f"would replace {machine}: {why}", note)]
                return [
                    Noted("steward", f"replaces {machine}: {why}", note),
                    Asked(self._name(), events.Replace((machine,))),
                ]
            case RequestStandbys(count, why):
                text, request = f"asks for {count} standby{'s' if count > 1 else ''}: {why}", events.AddStandby(count)
            case ReleaseStandby(machine, why):
                text, request = f"lets {machine} go: {why}", events.RemoveStandby(machine, f"it is one too many: {why}")
        return [Noted("steward", text, {"act": "pool"}), Asked(self._name(), request)]

    def _listen(self) -> None:
        """Take in what was told since the last time."""
        for tale in self._tales[self._read :]:
            if tale.kind == "wanted":
                self._requests += [tale.at] * int(str(tale.data.get("count", 1)))
            elif tale.kind == "lost":
                self._lost.append(tale.at)
            elif tale.kind == "steward" and tale.data.get("act") == "replace":
                self._replaced.append((tale.at, str(tale.data["machine"])))
        self._read = len(self._tales)

    def _observed(self, now: float) -> Observed:
        director = self._director
        keep = max(HOUR, self.settings.arrival)
        self._requests = [at for at in self._requests if now - at < keep]
        self._lost = [at for at in self._lost if now - at < HOUR]
        change = director.change
        taken = set() if change is None else set(change.places.values())
        taken |= {name for wish in director.queue for name in wish.request.standbys}
        machines = director.machines
        playing = self._seen_playing(now)
        return Observed(
            now,
            director.status == "training" and not director.stopping and not director.closing_at,
            change is not None or director.settling is not None,
            tuple(
                FreeStandby(name, self._is_warm(machine), max((actor.started for actor in machine.actors), default=0.0))
                for name, machine in machines.items()
                if machine.state == "standby" and machine.notice is None and name not in taken
            ),
            director.wanted,
            len(director.to_fill()),
            tuple(
                Suspect(name, finding.ratio, finding.reason, playing[name])
                for name, finding in self._suspects().items()
                if name in playing
            ),
            tuple(DrainDemand(len(wish.request.machines), wish.request.by) for wish in director.queue),
            tuple(self._lost),
            tuple(self._requests),
        )

    def _seen_playing(self, now: float) -> dict[str, float]:
        """Those that play; who did so when the steward first looked may have done so for long, and who is there when
        the job begins has not come later than the others."""
        roster = self._director.roster
        first = self._playing is None or roster is None or roster.generation == 1
        before = self._playing or {}
        names = [name for name, machine in self._director.machines.items() if machine.state == "cast"]
        self._playing = {name: 0.0 if first else before.get(name, now) for name in names}
        return self._playing

    def _is_warm(self, machine: Machine) -> bool:
        rehearsed = all(actor.rehearsed is not None for actor in machine.actors)
        return machine.whole and (rehearsed or not self._director.plan.warm)
