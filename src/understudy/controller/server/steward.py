"""The steward of a running job: looks at the job about once a second, and asks for what `steward/decide.py` says.

Its requests go through the ledger like those of operators, each with its reason before it. Its limits count the
requests and replacements of the last hour in the announcements, so a controller that restarts keeps to the same limits.
The rest of the steward's memory is empty after a restart: a machine has to be slow, and standbys have to be too many,
for the whole time again before the steward acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from understudy.controller.core import events
from understudy.controller.core.effects import Announcement
from understudy.controller.core.events import Asked, Event, Noted
from understudy.controller.core.machines import Machine, MachineState
from understudy.controller.core.replicas import to_fill
from understudy.controller.core.state import JobState, JobStatus
from understudy.protocol.settings import HOUR, StewardSettings
from understudy.steward.decide import (
    Action,
    FreeStandby,
    Observed,
    ReleaseStandby,
    ReplaceSlow,
    RequestStandbys,
    StewardMemory,
    Suspect,
    decide,
)
from understudy.steward.stragglers import Straggler

LOOK_S = 1.0


class Steward:
    def __init__(
        self,
        settings: StewardSettings,
        job: JobState,
        announcements: Sequence[Announcement],
        suspects: Callable[[], Mapping[str, Straggler]],
        name: Callable[[], str],
    ) -> None:
        """`announcements` grows while the job runs; `name` gives ids to requests."""
        self.settings, self._job, self._announcements = settings, job, announcements
        self._suspects, self._name = suspects, name
        self._read = 0
        self._requests: list[float] = []
        self._lost: list[float] = []
        self._replaced: list[tuple[float, str]] = []
        self._active: dict[str, float] | None = None
        """Machine → since when it is active, as far as that was seen."""
        self._listen()
        self.memory = StewardMemory(replaced=tuple(self._replaced))

    def look(self, now: float) -> list[Event]:
        """Requests and notes that follow from the present state; nothing more than once a second."""
        if abs(now - self.memory.checked) < LOOK_S:
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
        """Take in the announcements since the last time."""
        for each in self._announcements[self._read :]:
            if each.kind == "wanted":
                self._requests += [each.at] * int(str(each.data.get("count", 1)))
            elif each.kind == "lost":
                self._lost.append(each.at)
            elif each.kind == "steward" and each.data.get("act") == "replace":
                self._replaced.append((each.at, str(each.data["machine"])))
        self._read = len(self._announcements)

    def _observed(self, now: float) -> Observed:
        job = self._job
        keep = max(HOUR, self.settings.arrival)
        self._requests = [at for at in self._requests if now - at < keep]
        self._lost = [at for at in self._lost if now - at < HOUR]
        taken = job.joining_machines() | {name for item in job.queue for name in item.request.standbys}
        active = self._seen_active(now)
        return Observed(
            now,
            training=job.status == JobStatus.TRAINING and not job.stopping and not job.closing_at,
            busy=job.change is not None or job.settling is not None,
            standbys=tuple(map(self._standby, job.free_standbys(taken))),
            expected=job.wanted,
            vacant=len(to_fill(job)),
            suspects=tuple(
                Suspect(name, finding.ratio, finding.reason, active[name])
                for name, finding in self._suspects().items()
                if name in active
            ),
            drains=sum(len(item.request.machines) for item in job.queue),
            lost=tuple(self._lost),
            requests=tuple(self._requests),
        )

    def _seen_active(self, now: float) -> dict[str, float]:
        """Active machines, each since when; 0 for machines that were active when the steward first looked or that were
        there when the job began."""
        roster = self._job.roster
        first = self._active is None or roster is None or roster.generation == 1
        before = self._active or {}
        names = [name for name, machine in self._job.machines.items() if machine.state == MachineState.ACTIVE]
        self._active = {name: 0.0 if first else before.get(name, now) for name in names}
        return self._active

    def _standby(self, machine: Machine) -> FreeStandby:
        rehearsed = all(worker.rehearsed is not None for worker in machine.workers)
        warm = machine.whole and (rehearsed or not self._job.plan.settings.standbys.warm)
        return FreeStandby(machine.name, warm, max((worker.started for worker in machine.workers), default=0.0))
