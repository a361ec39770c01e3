"""The check of a script: an undisturbed run, disturbed runs, and what they have shown together.

`check_script` decides which runs are made, `_Runner` makes one, and a `Disturber` disturbs it exactly at the wanted
step.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from understudy.controller.client import Client
from understudy.launch.local import Ended, LocalJob
from understudy.protocol.messages import ScriptFailure
from understudy.protocol.options import flags_beside, with_options
from understudy.protocol.settings import JobSpec
from understudy.verify.running_job import RunningJob

from .disturber import Disturber, Standstill
from .findings import Evidence, ScriptFinding, findings, unclear
from .observation import EXTENSION, SHORT_EPOCHS, SHORTENED, Observations, first_divergence, read_observations
from .runs import (
    Disturbance,
    Run,
    classes_of,
    held_at,
    left_over,
    machines_of,
    plan,
    primary_of,
    rounds,
    settled,
)

_GRACE_S = 5.0
_STANDBYS = 3
"""Standbys at the start of a disturbed run; further ones are asked for when they are needed."""
_ATTEMPTS = 3
"""Number of times that a run is made if machines die in it that the check has not killed."""
_OBSERVED = "observed"
_DEATHS = ("agent", "heartbeat", "limit")
"""Sources of signals about machines and workers that are dead, or taken for dead, without a cause in the script. A
worker that exits is not among them: a joiner that can have no other role starts anew in this way."""
_SILENCE_S = 60.0
"""A machine or worker of a check that is silent for less is only slow: the processes share one computer."""


class CheckResult(msgspec.Struct, frozen=True):
    """What a check has shown."""

    classes: list[tuple[int, ...]]
    runs: list[Run]
    found: list[ScriptFinding]


class CheckProgress(msgspec.Struct, frozen=True):
    """Functions that are called while a check goes on."""

    say: Callable[[str], None] = lambda text: None
    step: Callable[[int], None] = lambda step: None
    begun: Callable[[str], None] = lambda name: None
    """A run begins."""
    ended: Callable[[Run], None] = lambda run: None


async def check_script(
    spec: JobSpec, folder: Path, progress: CheckProgress, *, within: float, epoch: int = 0
) -> CheckResult:
    """Run a script undisturbed; then disturbed, with as many disturbances in one run as there is room for.

    If a disturbed run differs, the script runs undisturbed once more, to see whether it differs by itself, and every
    disturbance that a run left unclear gets a run of its own. A machine without which a role's state is lost is killed
    in a run with the options of the job alone; if that ends the job, such machines are killed again in runs that keep
    copies. `within`: a run in which nothing happens for this time, in seconds, is stuck. `epoch`: batches in an epoch
    of each data loader; 0: as many as the script has.
    """
    steps = spec.settings.training.steps
    assert steps is not None
    runner = _Runner(spec, folder, progress, within=within, epoch=epoch)
    calm = await runner.run("undisturbed")
    if runner.shortens(calm) and (not calm.whole or calm.steps < steps):  # perhaps because its epochs are short
        progress.say(f"epochs of {epoch} batches may be the reason: again with whole epochs")
        runner.epoch = 0
        calm = await runner.run("undisturbed, whole epochs")
    again: Run | None = None
    disturbed: list[Run] = []
    classes = classes_of(calm.observations)
    if calm.whole and calm.steps >= steps and not calm.interference:
        truth = Observations(calm.observations)
        wanted = plan(classes, machines_of(calm.observations), primary_of(calm.observations))
        differs = await _disturb(runner, wanted, truth, disturbed)
        if not differs and any(_bad(truth, each) for each in disturbed if not each.state_lost):
            again = await runner.run("undisturbed again")
        if again is not None and not _bad(truth, again):
            alone = {(each.kind, each.classes): each for run in disturbed for each in unclear(calm, run)}
            for each in alone.values():
                disturbed.append(await runner.run(f"disturbed {len(disturbed) + 1}", each))
    evidence = Evidence(
        mesh=spec.dimensions,
        steps=steps,
        calm=calm,
        again=again,
        disturbed=tuple(disturbed),
        sources=_sources(spec, calm),
    )
    runs = [calm, *disturbed, *([again] if again is not None else [])]
    return CheckResult(classes, runs, findings(evidence))


async def _disturb(runner: _Runner, wanted: Sequence[Disturbance], truth: Observations, done: list[Run]) -> bool:
    """Make the disturbed runs. Returns whether one differs before its first disturbance; then no other is made."""
    orphans = [] if _keeps(runner.spec) else [each for each in wanted if each.orphans]
    safe = [each for each in wanted if each not in orphans]
    pending = deque((some, False) for some in rounds(safe, runner.steps))
    pending.extend(((each,), False) for each in orphans[:1])
    while pending:
        some, copies = pending.popleft()
        run = await runner.run(f"disturbed {len(done) + 1}", *some, copies=copies)
        done.append(run)
        if first_divergence(truth, run.before_disturbances()) is not None:
            return True
        if left := left_over(some, run):
            pending.appendleft((tuple(left), copies))
        elif some == tuple(orphans[:1]):
            rest = orphans if run.state_lost else orphans[1:]
            pending.extend((each, run.state_lost) for each in rounds(rest, runner.steps))
            orphans = []
    return False


def _keeps(spec: JobSpec) -> bool:
    """Whether the job keeps its state in more places than in the workers that have the roles."""
    kept = spec.settings.checkpoint
    return bool(kept.copy_every or (kept.folder and kept.every))


def _bad(truth: Observations, run: Run) -> bool:
    return not run.whole or first_divergence(truth, run.observations) is not None


def _sources(spec: JobSpec, calm: Run) -> dict[str, str]:
    files = {str(Path(spec.script).resolve()): None} | {file: None for each in calm.observations for file in each.files}
    found = {}
    for file in files:
        with suppress(OSError, UnicodeDecodeError):
            found[file] = Path(file).read_text()
    return found


# -- one run -----------------------------------------------------------------------------------------------------------


class _Runner:
    """Makes the runs of a check, each from the beginning of the script to its end and in a folder of its own."""

    def __init__(self, spec: JobSpec, folder: Path, progress: CheckProgress, *, within: float, epoch: int) -> None:
        self.spec, self._folder, self._progress, self._within, self.epoch = spec, folder, progress, within, epoch

    @property
    def steps(self) -> int:
        steps = self.spec.settings.training.steps
        assert steps is not None
        return steps

    def shortens(self, run: Run) -> bool:
        """Whether epochs were shortened in a run."""
        return (self._folder / run.name / _OBSERVED / SHORTENED).exists()

    async def run(self, name: str, *disturbances: Disturbance, copies: bool = False) -> Run:
        """Make a run. If a machine dies that the check has not killed, the run is made again, a few times."""
        for attempt in range(1, _ATTEMPTS + 1):
            run = await self._run(name if attempt == 1 else f"{name}, attempt {attempt}", disturbances, copies=copies)
            self._progress.ended(run)
            if not run.interference:
                break
            self._progress.say(f"not caused by the check: {run.interference}")
        return run

    def _options(self, place: Path, disturbances: Sequence[Disturbance], *, copies: bool) -> dict[str, Any]:
        """Options of a run that differ from those of the job."""
        spec = self.spec
        own: dict[str, Any] = {
            "standbys": min(len(disturbances), _STANDBYS),
            "repair": 0.0,
            "heartbeat": max(_SILENCE_S, spec.settings.recovery.heartbeat),
            "answer_limit": max(_SILENCE_S, spec.settings.recovery.answer_limit),
        }
        if copies:
            own["copy_every"] = 1
        if spec.settings.checkpoint.folder:
            own["checkpoint"] = str(place / "checkpoint")
        return own

    async def _run(self, name: str, disturbances: tuple[Disturbance, ...], *, copies: bool) -> Run:
        place = self._folder / name
        observed = place / _OBSERVED
        observed.mkdir(parents=True)
        own = self._options(place, disturbances, copies=copies)
        said = flags_beside(self.spec, own)
        extensions = {EXTENSION: str(observed)}
        if self.epoch:
            extensions[SHORT_EPOCHS] = f"{self.epoch} {observed}"
        spec = with_options(self.spec, **own, run_dir=str(place), extensions=extensions)
        began = time.monotonic()
        self._progress.begun(name)
        watch = RunWatch(Standstill(self._within), self._progress)
        disturber: Disturber | None = None
        ended: Ended | None = None
        async with LocalJob(spec, on_line=lambda line: None, on_event=watch.event, on_view=watch.view) as job:
            waiting = asyncio.ensure_future(job.wait())
            tasks: list[asyncio.Future[Any]] = [waiting]
            client = Client(job.url, job.secret.hex(), patience=self._within)
            running = RunningJob(client, os.getpid(), inside=False, patience=math.inf)
            if disturbances:
                disturber = Disturber(running, observed, self.steps, self._progress.say)
                watch.killed = disturber.killed
                disturber.allow(held_at(0))
                tasks.append(asyncio.ensure_future(asyncio.to_thread(disturber.disturb, disturbances)))
            try:
                ended = await watch.over(waiting)
            finally:
                running.stop()
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                await asyncio.wait(tasks, timeout=_GRACE_S)
        if (observed / SHORTENED).exists():
            said = (*said, f"DataLoader: epochs of {self.epoch} batches")
        status, reason, cause = "stuck", f"nothing has happened for {self._within:g} s{running.awaited}", None
        if ended is not None:
            status, reason = ended.status, ended.reason
        if status == "failed" and watch.failures:  # the job's reason may name a consequence of the script's failure
            cause, reason = watch.failures[0]
        if disturber is not None and disturber.problem and status == "finished":
            status, reason = "stuck", disturber.problem
        begun = () if disturber is None else tuple(disturber.begun)
        return Run(
            name=name,
            observations=settled(read_observations(observed), begun),
            status=status,
            reason=reason,
            cause=cause,
            failure=watch.failure,
            interference=watch.interference,
            options=said,
            disturbances=begun,
            seconds=time.monotonic() - began,
            applied=0 if ended is None else max(0, int(ended.view["step"])),
        )


class RunWatch:
    """Follows the events and views of one run."""

    def __init__(self, standstill: Standstill, progress: CheckProgress) -> None:
        self._standstill, self._progress = standstill, progress
        self._events = 0
        self._interfered = asyncio.Event()
        self.killed: set[str] = set()
        """Workers that the check has killed."""
        self.failures: list[tuple[ScriptFailure, str]] = []
        self.failure = ""
        self.interference = ""

    def event(self, event: dict[str, Any]) -> None:
        self._events += 1
        data, kind = event.get("data", {}), event["kind"]
        if cause := data.get("script"):
            self.failures.append((cause, event["text"]))
        elif kind == "signal" and not (self.interference or self.failures) and self._unexpected(data):
            self.interference = event["text"]
            self._interfered.set()
        if kind == "failed":
            self.failure = data["cause"]

    def _unexpected(self, signal: dict[str, Any]) -> bool:
        """Whether a signal tells of the death of workers that something depends on and that were not killed."""
        workers = set(signal.get("workers", ()))
        if signal["source"] not in _DEATHS or signal["act"] == "nothing":
            return False
        return bool(workers) and not workers & self.killed

    def view(self, job: dict[str, Any], machines: list[dict[str, Any]]) -> None:
        states = [(machine["name"], machine["state"], machine["pids"]) for machine in machines]
        change = job["change"]
        self._standstill.see((job["step"], job["status"], change and change["phase"], states, self._events))
        self._progress.step(max(0, int(job["step"])))

    async def over(self, job: asyncio.Future[Ended]) -> Ended | None:
        """Wait for the end of a job. None if nothing happens any more, or a machine has died without the check."""
        interfered = asyncio.ensure_future(self._interfered.wait())
        try:
            awaited: list[asyncio.Future[Any]] = [job, interfered]
            while not job.done() and not interfered.done() and (rest := self._standstill.remaining) > 0:
                await asyncio.wait(awaited, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
        finally:
            interfered.cancel()
        return job.result() if job.done() else None
