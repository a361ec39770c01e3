"""The check of a script: an undisturbed run, disturbed runs, and what they have shown together.

`check_script` decides which runs are made, `_run` makes one, and `_Disturber` disturbs it exactly at the wanted step:
training is held at a boundary while a replacement is prepared.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from understudy.controller.client import Client
from understudy.launch.local import Ended, LocalJob
from understudy.protocol.messages import ScriptFailure
from understudy.protocol.options import with_options
from understudy.protocol.settings import JobSpec
from understudy.verify.running_job import JobOver, NotRecovered, RunningJob
from understudy.verify.victims import NotPossible

from .findings import Evidence, ScriptFinding, findings, unclear
from .observation import AWAITS_KILL, EXTENSION, PACE, Observations, Pace, first_divergence, read_observations
from .runs import Disturbance, Run, classes_of, described, held_at, machines_of, plan, rounds, settled

_GRACE_S = 5.0
_STANDBYS = 3
"""Standbys at the start of a disturbed run; further ones are asked for when they are needed."""
_POLL_S = 0.05
_NUDGE_S = 1.0
"""Time after which one more step is allowed if a replacement has not ended."""
_WAITS_FOR_STEPS = ("armed", "switch", "hand-over", "first step")
"""Phases of a planned replacement that last until training goes on."""


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


async def check_script(spec: JobSpec, folder: Path, progress: CheckProgress, *, within: float) -> CheckResult:
    """Run a script undisturbed; then disturbed, with as many disturbances in one run as there is room for.

    If a disturbed run differs, the script runs undisturbed once more, to see whether it differs by itself, and every
    disturbance that a run left unclear gets a run of its own. `within`: time limit of a run, in seconds.
    """
    steps = spec.settings.training.steps
    assert steps is not None

    async def run(name: str, *disturbances: Disturbance) -> Run:
        return await _run(spec, name, folder, progress, disturbances=disturbances, within=within)

    calm = await run("undisturbed")
    again: Run | None = None
    disturbed: list[Run] = []
    classes = classes_of(calm.observations)
    if calm.whole and calm.steps >= steps:
        truth = Observations(calm.observations)
        wanted = plan(classes, machines_of(calm.observations))
        for number, some in enumerate(rounds(wanted, steps), 1):
            latest = await run(f"disturbed {number}", *some)
            disturbed.append(latest)
            if first_divergence(truth, latest.before_disturbances()) is not None:  # it differs by itself
                break
        else:
            if any(_bad(truth, each) for each in disturbed):
                again = await run("undisturbed again")
            if again is not None and not _bad(truth, again):
                alone = [each for run in disturbed for each in unclear(calm, run)]
                for number, each in enumerate(alone, len(disturbed) + 1):
                    disturbed.append(await run(f"disturbed {number}", each))
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


async def _run(
    spec: JobSpec,
    name: str,
    folder: Path,
    progress: CheckProgress,
    *,
    disturbances: tuple[Disturbance, ...],
    within: float,
) -> Run:
    """Run the script from its beginning to its end, in a folder of its own; a run that takes too long is ended."""
    place = folder / name
    observed = place / "observed"
    observed.mkdir(parents=True)
    own: dict[str, Any] = {
        "run_dir": str(place),
        "extensions": {EXTENSION: str(observed)},
        "checkpoint": "",
        "checkpoint_every": 0,
        "standbys": min(len(disturbances), _STANDBYS),
        "repair": 0.0,
        "no_standby": "wait" if disturbances else "stop",
    }
    if any(disturbance.orphans for disturbance in disturbances):
        own["copy_every"] = 1
    spec = with_options(spec, **own)
    began = time.monotonic()
    progress.begun(name)
    failures: list[tuple[ScriptFailure, str]] = []

    def view(job: dict[str, Any], machines: list[dict[str, Any]]) -> None:
        progress.step(max(0, int(job["step"])))

    def event(event: dict[str, Any]) -> None:
        if cause := event.get("data", {}).get("script"):
            failures.append((cause, event["text"]))

    disturber: _Disturber | None = None
    applied = 0
    status, reason, cause = "stuck", f"it has not ended within {within:g} s", None
    async with LocalJob(spec, on_line=lambda line: None, on_event=event, on_view=view) as job:
        waiting = asyncio.ensure_future(job.wait())
        tasks: list[asyncio.Future[Any]] = [waiting]
        running = RunningJob(Client(job.url, job.secret.hex()), os.getpid(), inside=False, patience=within)
        if disturbances:
            steps = spec.settings.training.steps
            assert steps is not None
            disturber = _Disturber(running, observed, steps, progress.say)
            disturber.allow(held_at(0))
            tasks.append(asyncio.ensure_future(asyncio.to_thread(disturber.disturb, disturbances)))
        try:
            await asyncio.wait([waiting], timeout=within)
            if waiting.done():
                ended: Ended = waiting.result()
                status, reason, applied = ended.status, ended.reason, int(ended.view["step"])
        finally:
            running.stop()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.wait(tasks, timeout=_GRACE_S)
    if status == "failed" and failures:  # the script's own failure; the job's reason may name a consequence of it
        cause, reason = failures[0]
    if disturber is not None and disturber.problem and status != "failed":
        status, reason = "stuck", disturber.problem
    begun = () if disturber is None else tuple(disturber.begun)
    run = Run(
        name=name,
        observations=settled(read_observations(observed), len(begun)),
        status=status,
        reason=reason,
        cause=cause,
        disturbances=begun,
        seconds=time.monotonic() - began,
        applied=max(0, applied),
    )
    progress.ended(run)
    return run


# -- disturbances ------------------------------------------------------------------------------------------------------


class _Disturber:
    """Holds and disturbs one job, in a thread of its own."""

    def __init__(self, job: RunningJob, folder: Path, steps: int, tell: Callable[[str], None]) -> None:
        self._job, self._folder, self._steps, self._tell = job, folder, steps, tell
        self.begun: list[Disturbance] = []
        self.problem = ""
        """Why a disturbance did not come to its end."""

    def allow(self, steps: int, *, dying: str = "") -> None:
        """Let workers begin this number of steps; workers of the machine `dying` wait to be killed in the last one."""
        draft = self._folder / f"{PACE}.draft"
        draft.write_bytes(msgspec.json.encode(Pace(steps, len(self.begun), dying)))
        draft.replace(self._folder / PACE)

    def disturb(self, wanted: tuple[Disturbance, ...]) -> None:
        """Disturb the job, once for each disturbance; afterwards training goes on freely."""
        try:
            for number, disturbance in enumerate(wanted):
                step = held_at(number)
                self._job.ready(1)
                self._tell(f"step {step}: {described(disturbance)}")
                self.begun.append(disturbance)
                if disturbance.kind == "replace":
                    self._replace(disturbance, step)
                else:
                    self._kill(disturbance, step)
                if number + 1 < len(wanted):
                    self.allow(held_at(number + 1))
        except (JobOver, NotRecovered, NotPossible) as error:
            self.problem = str(error)
        finally:
            self.allow(self._steps + 1)

    def _machine(self, role: int) -> str:
        return next(worker.machine for worker in self._job.snapshot().with_roles() if worker.role == role)

    def _replace(self, disturbance: Disturbance, step: int) -> None:
        job = self._job
        id = job.replace(self._machine(disturbance.role))

        def ready() -> bool:
            change = job.view()["change"]
            return bool(change is not None and change["phase"] in _WAITS_FOR_STEPS) or bool(job.asked(id)["done"])

        job.until(ready, "the joiner to be ready", every=_POLL_S)
        allowed = step + 2  # the leaver's last step, and the joiner's first
        self.allow(allowed)
        since = time.monotonic()

        def done() -> bool:
            nonlocal allowed, since
            if time.monotonic() - since > _NUDGE_S and allowed < self._steps:
                allowed, since = allowed + 1, time.monotonic()
                self.allow(allowed)
            return bool(job.view() and job.asked(id)["done"])

        job.until(done, "the replacement to end", every=_POLL_S)
        answer = job.asked(id)
        if not answer["ok"]:
            raise NotRecovered(str(answer["text"]))

    def _kill(self, disturbance: Disturbance, step: int) -> None:
        job = self._job
        snapshot = job.snapshot()
        machine = self._machine(disturbance.role)
        workers = [worker for worker in snapshot.on(machine) if worker.role is not None]
        agent = job.agent(snapshot, machine)
        self.allow(step + 1, dying=machine)
        waiting = [self._folder / f"{AWAITS_KILL}{worker.uid}" for worker in workers]
        job.until(lambda: all(file.exists() for file in waiting), f"{machine} to come to step {step}", every=_POLL_S)
        job.kill(agent, *(worker.pid for worker in snapshot.on(machine)))
        gone = {worker.uid for worker in workers}

        def taken() -> bool:
            filled = {worker.role for worker in job.snapshot().with_roles() if worker.uid not in gone}
            return set(disturbance.roles) <= filled and job.trains()

        self.allow(step + 2)
        job.until(taken, f"a standby to take the roles of {machine}", every=_POLL_S)
