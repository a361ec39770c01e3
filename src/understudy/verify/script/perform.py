"""Runs of the script on this computer, undisturbed and disturbed, one after another."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from understudy.controller.client import Client
from understudy.launch.local import Ended, LocalJob
from understudy.launch.spec import JobSpec
from understudy.verify.chaos.scene import Scene

from .conduct import Conductor
from .observation import EXTENSION, read_observations
from .runs import Disturbance, Run, held_at, settled

_GRACE_S = 5.0
_STANDBYS = 3
"""At the start; others are asked for when it is their turn."""


class Watcher(msgspec.Struct, frozen=True):
    """Whom to tell what happens."""

    say: Callable[[str], None] = lambda text: None
    step: Callable[[int], None] = lambda step: None
    begun: Callable[[str], None] = lambda name: None
    ended: Callable[[Run], None] = lambda run: None


async def perform(
    spec: JobSpec,
    name: str,
    folder: Path,
    watcher: Watcher,
    *,
    disturbances: tuple[Disturbance, ...] = (),
    within: float = 300.0,
) -> Run:
    """The script from its beginning to its end, in a folder of its own; ended where it takes longer than `within`."""
    place = folder / name
    probe = place / "probe"
    probe.mkdir(parents=True)
    own: dict[str, Any] = {
        "run_dir": str(place),
        "extensions": {EXTENSION: str(probe)},
        "checkpoint": None,
        "checkpoint_every": 0,
    }
    own |= {
        "standbys": min(len(disturbances), _STANDBYS),
        "repair": 0.0,
        "no_standby": "wait" if disturbances else "stop",
    }
    if any(disturbance.orphans for disturbance in disturbances):
        own |= {"copy_every": 1}
    spec = msgspec.structs.replace(spec, **own)
    began = time.monotonic()
    watcher.begun(name)

    def view(job: dict[str, Any], machines: list[dict[str, Any]]) -> None:
        watcher.step(max(0, int(job["step"])))

    words: list[str] = []

    def tale(event: dict[str, Any]) -> None:
        if event["kind"] == "died" and " failed in " in event["text"]:
            words.append(event["text"])  # the script's own: what follows from it may be all that is said at the end

    conductor: Conductor | None = None
    applied = 0
    status, reason = "stuck", f"it has not ended within {within:g} s"
    async with LocalJob(spec, on_line=lambda line: None, on_tale=tale, on_view=view) as job:
        waiting = asyncio.ensure_future(job.wait())
        tasks: list[asyncio.Future[Any]] = [waiting]
        scene = Scene(Client(job.url, job.secret.hex()), os.getpid(), inside=False, patience=within, standbys=1)
        if disturbances:
            assert spec.steps is not None
            conductor = Conductor(scene, probe, spec.steps, watcher.say)
            conductor.pace(held_at(0))
            tasks.append(asyncio.ensure_future(asyncio.to_thread(conductor.conduct, disturbances)))
        try:
            await asyncio.wait([waiting], timeout=within)
            if waiting.done():
                ended: Ended = waiting.result()
                status, reason, applied = ended.status, ended.reason, int(ended.view["step"])
        finally:
            scene.stop()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.wait(tasks, timeout=_GRACE_S)
    begun = () if conductor is None else tuple(conductor.begun)
    if status == "failed" and words and words[0] not in reason:
        reason = words[0]
    if conductor is not None and conductor.problem and status != "failed":
        status, reason = "stuck", conductor.problem
    observations = settled(read_observations(probe), len(begun))
    run = Run(name, observations, status, reason, begun, time.monotonic() - began, max(0, applied))
    watcher.ended(run)
    return run
