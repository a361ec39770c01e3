"""A job under chaos, then the same job undisturbed, and a comparison of the two."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from understudy.controller.client import Client
from understudy.launch.local import Ended, LocalJob
from understudy.protocol.options import with_options
from understudy.protocol.settings import JobSpec
from understudy.verify.leftovers import enclosure
from understudy.verify.running_job import RunningJob

from .campaign import Campaign, FaultRecord, run_campaign
from .invariants import applied_once, machines_lost, read_records, same_digests, same_values
from .mix import PlannedFault

ENDLESS = 1_000_000
"""Steps of a job that is stopped when all faults have happened."""
_PATIENCE_S = 20.0
"""Time in which a controller that was killed answers again."""
_GRACE_S = 5.0


class TrialResult(msgspec.Struct, frozen=True):
    """What a trial has shown."""

    faults: int
    steps: int
    digests: dict[str, str]
    complaints: list[str]
    """Empty if the job came through unharmed."""
    run_dir: str


class TrialSettings(msgspec.Struct, frozen=True):
    """How a job is disturbed."""

    faults: int
    reckless: bool = False
    standbys: int = 1
    patience: float = 60.0


class TrialProgress(msgspec.Struct, frozen=True):
    """Functions that are called while a trial goes on."""

    say: Callable[[str], None] = lambda text: None
    fault: Callable[[FaultRecord], None] = lambda record: None
    line: Callable[[str], None] = lambda line: None
    """A line of the job's output."""


async def run_trial(
    spec: JobSpec,
    plan: Iterator[PlannedFault],
    settings: TrialSettings,
    progress: TrialProgress,
    *,
    fingerprint: Callable[[dict[str, str]], str],
    expect: str = "",
) -> TrialResult:
    """Run a job under chaos to its end, then undisturbed for as many steps, and compare.

    A job without a number of steps ends when all faults have happened. If `expect` has the fingerprint of the final
    state, there is no undisturbed run.
    """
    folder, steps_asked = Path(spec.run_dir).resolve(), spec.settings.training.steps
    with enclosure() as place:
        chaotic = _in_folder(spec, folder / "disturbed", chaos=True, steps=steps_asked or ENDLESS)
        progress.say(f"under chaos, in {chaotic.run_dir}")
        events: list[dict[str, Any]] = []
        running, campaign, ended = await _disturbed(
            chaotic, plan, settings, progress, endless=not steps_asked, on_event=events.append
        )
        steps = int(ended.view.get("step", 0)) if ended is not None else 0
        digests: dict[str, str] = {} if ended is None else ended.view["digests"]
        records = read_records(Path(chaotic.run_dir))
        complaints = await asyncio.to_thread(place.leftovers, running.seen)
        if ended is not None and ended.status == "failed":
            done = f"{campaign.faults} of {settings.faults} faults"
            complaints.insert(0, f"the job has failed after {done}: {ended.reason}")
        elif campaign.problem:
            complaints.insert(0, campaign.problem)
        if not complaints:
            complaints += applied_once(records, events, spec.roles, steps)
            if expect:
                if fingerprint(digests) != expect:
                    complaints.append(f"the final state is {fingerprint(digests)}, not {expect} as expected")
            else:
                progress.say(f"undisturbed, {steps} steps")
                calm = _in_folder(spec, folder / "undisturbed", chaos=False, steps=steps, standbys=0)
                async with LocalJob(calm, on_line=progress.line) as job:
                    truth = await job.wait()
                if truth.status != "finished":
                    complaints.append(f"the undisturbed run is {truth.status}: {truth.reason}")
                else:
                    complaints += same_digests(digests, truth.view["digests"], lost=machines_lost(events))
                    complaints += same_values(records, read_records(Path(calm.run_dir)))
    return TrialResult(campaign.faults, steps, digests, complaints, str(folder))


def _in_folder(spec: JobSpec, run_dir: Path, **changes: Any) -> JobSpec:
    """The same job with a folder and checkpoints of its own."""
    if folder := spec.settings.checkpoint.folder:
        own = run_dir / "checkpoints"
        if Path(folder).is_dir():
            shutil.copytree(folder, own)
        changes["checkpoint"] = str(own)
    return with_options(spec, run_dir=str(run_dir), **changes)


async def _disturbed(
    spec: JobSpec,
    plan: Iterator[PlannedFault],
    settings: TrialSettings,
    progress: TrialProgress,
    *,
    endless: bool,
    on_event: Callable[[dict[str, Any]], None],
) -> tuple[RunningJob, Campaign, Ended | None]:
    """The job and its faults, afterwards; None if the job did not end by itself."""
    ended: Ended | None = None
    async with LocalJob(spec, on_line=progress.line, on_event=on_event) as job:
        checkpoint = spec.settings.checkpoint
        kept = checkpoint.every if checkpoint.folder else 0  # with a checkpoint, any copy of a state may be lost
        running = RunningJob(
            Client(job.url, job.secret.hex(), patience=_PATIENCE_S),
            os.getpid(),
            inside=True,
            reckless=settings.reckless or kept > 0,
            standbys=settings.standbys,
            patience=settings.patience,
            first_step=1 + 2 * kept,
        )
        waiting = asyncio.ensure_future(job.wait())
        striking = asyncio.ensure_future(
            asyncio.to_thread(run_campaign, running, plan, settings.faults, progress.fault)
        )
        try:
            await asyncio.wait([waiting, striking], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():  # the campaign is about to see it, too
                await asyncio.wait([striking], timeout=_GRACE_S)
                running.stop()
            campaign = await striking
            if campaign.problem and not waiting.done():
                with suppress(TimeoutError):  # it may be about to end by itself
                    await asyncio.wait_for(asyncio.shield(waiting), _GRACE_S)
            elif endless and not waiting.done():
                await job.stop()
            if waiting.done() or not campaign.problem:
                ended = await asyncio.wait_for(waiting, None if not endless else settings.patience)
        except TimeoutError:
            campaign.problem = campaign.problem or f"the job did not stop within {settings.patience:g} s"
        finally:
            running.stop()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.wait([striking], timeout=_GRACE_S)  # paused processes are continued while they exist
    return running, campaign, ended
