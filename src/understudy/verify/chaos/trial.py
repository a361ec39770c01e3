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

from .campaign import Campaign, Deed, strike
from .check import machines_lost, once_by, read_records, same_digests, same_values
from .mix import Draw
from .remains import Room, room
from .scene import Scene

ENDLESS = 1_000_000
"""Steps of a job that is stopped when all faults have happened."""


_PATIENCE_S = 20.0
"""Controllers die here."""
_GRACE_S = 5.0


class Verdict(msgspec.Struct, frozen=True):
    """What a trial has shown."""

    faults: int
    steps: int
    digests: dict[str, str]
    complaints: list[str]
    """Empty where the job came through unharmed."""
    run_dir: str


class Wishes(msgspec.Struct, frozen=True):
    """How a job is to be disturbed."""

    faults: int
    reckless: bool = False
    standbys: int = 1
    patience: float = 60.0


class Watcher(msgspec.Struct, frozen=True):
    """Whom to tell what happens."""

    say: Callable[[str], None] = lambda text: None
    deed: Callable[[Deed], None] = lambda deed: None
    line: Callable[[str], None] = lambda line: None


async def trial(
    spec: JobSpec,
    plan: Iterator[Draw],
    wishes: Wishes,
    watcher: Watcher,
    fingerprint: Callable[[dict[str, str]], str],
    expect: str = "",
) -> Verdict:
    """Run a job under chaos to its end, or until all faults have happened where it has no number of steps; then, unless
    it is known what it must come to (`expect`), run it undisturbed for as many steps."""
    folder, wanted = Path(spec.run_dir).resolve(), spec.settings.training.steps
    with room() as place:
        disturbed = _apart(spec, folder / "disturbed", chaos=True, steps=wanted or ENDLESS)
        watcher.say(f"under chaos, in {disturbed.run_dir}")
        ended, campaign, tales, complaints = await _disturbed(disturbed, plan, wishes, watcher, place, not wanted)
        steps = int(ended.view.get("step", 0)) if ended is not None else 0
        digests: dict[str, str] = {} if ended is None else ended.view["digests"]
        records = read_records(Path(disturbed.run_dir))
        if not complaints:
            complaints += once_by(records, tales, spec.roles, steps)
            if expect:
                if fingerprint(digests) != expect:
                    complaints.append(f"the final state is {fingerprint(digests)}, not {expect} as expected")
            else:
                watcher.say(f"undisturbed, {steps} steps")
                calm = _apart(spec, folder / "undisturbed", chaos=False, steps=steps, standbys=0)
                truth = await _undisturbed(calm, watcher)
                if truth.status != "finished":
                    complaints.append(f"the undisturbed run is {truth.status}: {truth.reason}")
                else:
                    complaints += same_digests(digests, truth.view["digests"], lost=machines_lost(tales))
                    complaints += same_values(records, read_records(Path(calm.run_dir)))
    return Verdict(campaign.faults, steps, digests, complaints, str(folder))


def _apart(spec: JobSpec, run_dir: Path, **changes: Any) -> JobSpec:
    """The same job with a folder and checkpoints of its own."""
    if folder := spec.settings.checkpoint.folder:
        own = run_dir / "checkpoints"
        if Path(folder).is_dir():
            shutil.copytree(folder, own)
        changes["checkpoint"] = str(own)
    return with_options(spec, run_dir=str(run_dir), **changes)


async def _undisturbed(spec: JobSpec, watcher: Watcher) -> Ended:
    async with LocalJob(spec, on_line=watcher.line) as job:
        return await job.wait()


async def _disturbed(
    spec: JobSpec, plan: Iterator[Draw], wishes: Wishes, watcher: Watcher, place: Room, endless: bool
) -> tuple[Ended | None, Campaign, list[dict[str, Any]], list[str]]:
    tales: list[dict[str, Any]] = []
    ended: Ended | None = None
    async with LocalJob(spec, on_line=watcher.line, on_tale=tales.append) as job:
        checkpoint = spec.settings.checkpoint
        kept = checkpoint.every if checkpoint.folder else 0  # with something to go back to, nobody has to be spared
        scene = Scene(
            Client(job.url, job.secret.hex(), patience=_PATIENCE_S),
            os.getpid(),
            inside=True,
            reckless=wishes.reckless or kept > 0,
            standbys=wishes.standbys,
            patience=wishes.patience,
            first=1 + 2 * kept,
        )
        waiting = asyncio.ensure_future(job.wait())
        striking = asyncio.ensure_future(asyncio.to_thread(strike, scene, plan, wishes.faults, watcher.deed))
        try:
            await asyncio.wait([waiting, striking], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():  # the campaign is about to see it, too
                await asyncio.wait([striking], timeout=_GRACE_S)
                scene.stop()
            campaign = await striking
            if campaign.problem and not waiting.done():
                with suppress(TimeoutError):  # it may be about to end by itself
                    await asyncio.wait_for(asyncio.shield(waiting), _GRACE_S)
            elif endless and not waiting.done():
                await job.stop()
            if waiting.done() or not campaign.problem:
                ended = await asyncio.wait_for(waiting, None if not endless else wishes.patience)
        except TimeoutError:
            campaign.problem = campaign.problem or f"the job did not stop within {wishes.patience:g} s"
        finally:
            scene.stop()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.wait([striking], timeout=_GRACE_S)  # whom it has paused is woken while they are there
    complaints = await asyncio.to_thread(place.remains, scene.seen)
    if ended is not None and ended.status == "failed":
        complaints.insert(0, f"the job has failed after {campaign.faults} of {wishes.faults} faults: {ended.reason}")
    elif campaign.problem:
        complaints.insert(0, campaign.problem)
    return ended, campaign, tales, complaints
