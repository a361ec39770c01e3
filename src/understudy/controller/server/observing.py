"""The speed of workers and links, from the samples in heartbeats. Samples are not in the ledger: a controller that
restarts observes anew."""

from __future__ import annotations

from collections.abc import Iterable

from understudy.controller.core.events import Noted
from understudy.controller.core.state import JobState
from understudy.protocol.mesh import Mesh, coordinates, roles_of
from understudy.protocol.samples import Sample
from understudy.protocol.settings import StragglerSettings
from understudy.steward.links import LinkDetector
from understudy.steward.stragglers import Straggler, StragglerDetector, StragglerNews

LOOK_S = 1.0
"""Seconds between two looks."""
_ALIKE = ("dp", "fsdp", "tp", "cp", "sp")
"""Prefixes of the dimensions along which all roles do the same work."""
_BEHIND = 3
"""Windows after which a step is judged without the samples that are missing."""


class Observing:
    """Collects the samples of a step until all roles have sent theirs, then judges the step."""

    def __init__(self, settings: StragglerSettings, mesh: Mesh) -> None:
        self.settings = settings
        self._classes = classes_of(mesh)
        self._workers, self._links = StragglerDetector(settings), LinkDetector(settings)
        self._steps: dict[int, dict[int, Sample]] = {}
        """Step → role → its sample, for steps that are not judged yet."""
        self._judged = -1
        self._generation = 0
        self._looked = 0.0

    @property
    def findings(self) -> list[Straggler]:
        """All slow workers and links, the slowest first."""
        return sorted([*self._workers.told, *self._links.told], key=lambda each: -each.ratio)

    @property
    def suspects(self) -> dict[str, Straggler]:
        """Machine → its slowest worker or link."""
        found: dict[str, Straggler] = {}
        for finding in self.findings:
            found.setdefault(finding.machine, finding)
        return found

    def hear(self, samples: Iterable[Sample]) -> None:
        if self.settings.threshold <= 0:
            return
        for sample in samples:
            if sample.step > self._judged:
                self._steps.setdefault(sample.step, {})[sample.role] = sample

    def look(self, job: JobState, now: float) -> list[Noted]:
        """News of slow workers and links; empty more often than once a second."""
        roster = job.roster
        if now < self._looked + LOOK_S or roster is None:
            return []
        self._looked = now
        workers = {role: uid for role, uid in enumerate(roster.seats) if uid is not None}
        if roster.generation != self._generation:  # forget workers that have left, and expect steps that are repeated
            self._generation, self._judged = roster.generation, -1
            self._steps.clear()
            self._workers.keep(workers)
            self._links.keep(workers)
        machines = {role: job.workers[uid].machine for role, uid in workers.items()}
        news: list[StragglerNews] = []
        for step in self._complete(len(workers)):
            told = self._steps.pop(step)
            self._judged = step
            samples = [sample for role, sample in told.items() if workers.get(role) == sample.uid]
            news += self._workers.step(samples, self._classes, machines)
            news += self._links.step(samples, machines)
        return [_noted(each) for each in news]

    def _complete(self, workers: int) -> list[int]:
        """Steps of which all samples are here, or the missing ones are overdue."""
        limit = max(self._steps, default=0) - _BEHIND * self.settings.window
        return sorted(step for step, told in self._steps.items() if len(told) >= workers or step < limit)


def classes_of(mesh: Mesh) -> dict[int, tuple[int, ...]]:
    """Role → the roles that do the same work, itself included: they differ only along the dimensions of `_ALIKE`."""
    found: dict[tuple[int, ...], list[int]] = {}
    for role in range(roles_of(mesh)):
        places = coordinates(mesh, role)
        found.setdefault(tuple(at for name, at in places.items() if not name.startswith(_ALIKE)), []).append(role)
    return {role: tuple(members) for members in found.values() for role in members}


def _noted(news: StragglerNews) -> Noted:
    finding = news.finding
    data: dict[str, str | float] = {"machine": finding.machine, "role": finding.role, "ratio": finding.ratio}
    data |= {"part": finding.part, "steps": finding.steps}
    if news.over:
        return Noted("caught-up", f"{finding.machine} role {finding.role} is not slow any more", data)
    return Noted("straggler", finding.reason, data)
