"""Durations that a run measured: its ledger, replayed by a director, and its metrics."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from understudy.cli.command import UsageError
from understudy.controller.core.change import Change
from understudy.controller.core.director import Director
from understudy.controller.core.effects import Announcement, Effect
from understudy.controller.core.events import Event, Registered, Reported
from understudy.controller.core.replicas import count
from understudy.controller.core.state import PLAN, JobPlan
from understudy.controller.server.ledger import Ledger, LedgerError
from understudy.planning.inputs.calibrate import Calibrated, MeasuredLoss, MeasuredRun, calibrate
from understudy.protocol.frames import Relayed
from understudy.protocol.messages import Rehearsed

LEDGER = "ledger.sqlite"


def calibrated(run: Path) -> Calibrated:
    """The durations of a run; those that it did not measure are assumed. `UsageError` if it cannot be read."""
    return calibrate(measured(run))


def measured(run: Path) -> MeasuredRun:
    """Replay a run's ledger and measure it."""
    if not run.is_dir():
        raise UsageError(f"{run}: there is no such folder; name the folder of a run, as understudy run prints it")
    if not (run / LEDGER).is_file():
        raise UsageError(f"{run}: there is no {LEDGER} in it; name the folder of a run, as understudy run prints it")
    try:
        given = (run / PLAN).read_bytes()
        plan = msgspec.json.decode(given, type=JobPlan)
        if plan.machines < 1 or plan.nproc < 1:
            raise UsageError(f"{run}: its {PLAN} is damaged; name another run")
    except (OSError, msgspec.MsgspecError):
        raise UsageError(f"{run}: its {PLAN} is missing or damaged; name another run") from None
    if lacking := ", ".join(_lacking(msgspec.json.decode(given), msgspec.to_builtins(JobPlan(1, 1)))):
        print(f"{run}: its {PLAN}, from an earlier version, lacks {lacking}; the defaults are used", file=sys.stderr)
    replay = LedgerReplay(plan)
    try:
        with closing(Ledger(run / LEDGER, reading=True)) as ledger:
            for at, event in ledger.read():
                replay.feed(at, event)
    except LedgerError as error:
        raise UsageError(f"{run}: {error}") from None
    except Exception as error:  # any error of a director over events that cannot have happened
        why = f"{type(error).__name__} at event {replay.events}"
        raise UsageError(f"{run}: its ledger and its {PLAN} do not belong together ({why}); name another run") from None
    if not replay.events:
        raise UsageError(f"{run}: its ledger is empty; name a run that has trained")
    if not replay.director.job.begun:
        raise UsageError(f"{run}: it has not completed a step; name a run that has trained")
    return replay.result(steps_of(run))


def _lacking(given: dict[str, Any], known: dict[str, Any], within: str = "") -> Iterator[str]:
    """Dotted names of the known settings that are not given; a missing group of settings is one name."""
    for name, value in known.items():
        if name not in given:
            yield within + name
        elif isinstance(value, dict):
            yield from _lacking(given[name], value, f"{within}{name}.")


def steps_of(run: Path) -> list[tuple[int, float]]:
    """(step, seconds) of every complete line of the metrics with a duration."""
    found = []
    for path in sorted(run.glob("metrics-*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                entry = json.loads(line)
                step, seconds = int(entry["step"]), float(entry["seconds"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            if 0 < seconds < float("inf"):
                found.append((step, seconds))
    return found


class LedgerReplay:
    """Feeds a ledger to a director and measures how long changes took."""

    def __init__(self, plan: JobPlan) -> None:
        self.director = Director(plan)
        self.events = 0
        self._first = 0.0
        self._halted_at, self._answered_at, self._live = 0.0, 0.0, 0
        self._waited = 0.0
        """Seconds of the present recovery for which training waited for a machine, after all workers had answered."""
        self._died: dict[str, float] = {}
        self._came: dict[str, float] = {}
        self._vacated: dict[int, float] = {}
        self._empty: set[int] = set()
        self._found: dict[str, list[Any]] = defaultdict(list)
        """Field of `MeasuredRun` → its values."""

    def feed(self, at: float, event: Event) -> None:
        director = self.director
        self._first = self._first or at
        self.events += 1
        begun, status = director.job.begun, director.job.status
        changes = [change for change in (director.job.settling, director.job.change) if change is not None]
        lost = {id(change): change.lost for change in changes}
        effects = director.feed(event, at)
        if director.job.begun and not begun:
            self._found["started"].append(at - self._first)
        if isinstance(event, Registered) and begun:
            self._came[event.machine] = at
        match event:
            case Reported(report=Relayed(message=Rehearsed())):
                self._is_ready(event.machine, at)
        self._note(effects, at, status, changes)
        self._note_refilled(at)
        if director.job.change is not None and all(director.job.change is not change for change in changes):
            changes.append(director.job.change)
        for change in changes:
            if change.lost is not None and lost.get(id(change)) is None:
                self._settled(change, change.lost)

    def _is_ready(self, machine: str, at: float) -> None:
        if (died := self._died.pop(machine, None)) is not None:
            self._found["away"].append(at - died)
        elif (came := self._came.pop(machine, None)) is not None:
            self._found["prepared"].append(at - came)

    def _note(self, effects: Iterable[Effect], at: float, status: str, changes: Iterable[Change]) -> None:
        for event in (each for each in effects if isinstance(each, Announcement)):
            match event.kind:
                case "died" | "lost":
                    self._died[str(event.data["machine"])] = at
                case "halt" if status != "halting":
                    self._halted_at, self._answered_at = at, 0.0
                    _, self._live = count(self.director.job, self.director.job.vacant())
                    interrupted = [change for change in changes if change.kind == "recover" and change.lost is None]
                    self._waited += sum(_waiting(change, at) for change in interrupted)
        if self.director.job.status == "halting" and not self.director.job.unreported and not self._answered_at:
            self._answered_at = at
        for event in (each for each in effects if isinstance(each, Announcement)):
            if event.kind == "decided" and self._halted_at:
                answered = self._answered_at or at
                self._found["detected"].append(answered - self._halted_at)
                self._waited += at - answered
                self._answered_at = 0.0
            elif event.kind == "masked":
                for role in self.director.job.change.vacant if self.director.job.change is not None else ():
                    self._vacated.setdefault(role, self._halted_at)

    def _note_refilled(self, at: float) -> None:
        """Note the time of roles that are not vacant any more."""
        vacant = self.director.job.vacant() if self._vacated else ()
        self._empty.update(role for role in vacant if role in self._vacated)
        for role in sorted(self._empty.difference(vacant)):
            self._found["refilled"].append(at - self._vacated.pop(role))
            self._empty.discard(role)

    def _settled(self, change: Change, lost: float) -> None:
        number, live = count(self.director.job, change.vacant)
        if change.kind == "replace":
            self._found["replaced"].append(lost)
        elif change.kind == "recover" and change.vacant != change.spared:
            if 0 < live < self._live:
                self._found["masked"].append(MeasuredLoss(lost, number / live - number / self._live))
        elif change.kind == "recover" and change.joiners and not change.back:
            self._found["recovered"].append(max(0.0, lost - self._waited - _waiting(change)))
            self._waited = 0.0
        elif change.kind == "refill":
            _, before = count(self.director.job, (*change.vacant, *change.joiners))
            if before:
                self._found["joined"].append(MeasuredLoss(lost, max(0.0, number / before - number / live)))

    def result(self, steps: list[tuple[int, float]]) -> MeasuredRun:
        times = sorted(seconds for _, seconds in steps)
        usual = times[len(times) // 4] if times else 0.0
        return MeasuredRun(usual, len(times), saved=list(self._saves(steps, usual)), **self._found)

    def _saves(self, steps: list[tuple[int, float]], usual: float) -> Iterator[float]:
        """For each step that began with a checkpoint: the time of the slowest role beyond a usual step."""
        slowest: dict[int, float] = {}
        for step, seconds in steps:
            slowest[step] = max(slowest.get(step, 0.0), seconds)
        for step in sorted(slowest.keys() & {step for steps in self.director.job.saves.values() for step in steps}):
            yield max(0.0, slowest[step] - usual)


def _waiting(change: Change, now: float = 0.0) -> float:
    """Seconds for which a change waited for a joiner's rehearsal; until `now`, if it is not over."""
    begin = change.clock.get("rehearse")
    return 0.0 if begin is None else max(0.0, change.clock.get("open", now) - begin)
