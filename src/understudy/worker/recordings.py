"""Recording a job's first steps, and answering a rehearsal from what was recorded.

Of roles that hold the same, one records. Afterwards nothing of it is left in the way of training. The recording stays
on the machine, with its agent, and newcomers fetch it from there before they rehearse.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO

import torch

from understudy.comm.endpoint import Endpoint
from understudy.comm.fabric import Fabric
from understudy.comm.recording import Recorder, Recording, RecordingError, digest_of
from understudy.comm.sandbox import Echo, Replay, Sandbox, SandboxSeat
from understudy.host.temporary import nameless
from understudy.protocol.mesh import Mesh, alike, along
from understudy.protocol.messages import FromWorker, Recorded, Telemetry, WorkerSpec

log = logging.getLogger("understudy.worker")

_FETCH_S = 60.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Goes to the other machine itself, whatever the environment says of proxies: the job's secret is for nobody else."""


def program_key(spec: WorkerSpec) -> str:
    """Equal for all who run the same program: only they can use each other's recordings."""
    try:
        own = version("understudy")
    except PackageNotFoundError:
        own = ""
    told = (own, torch.__version__, Path(spec.script).read_bytes(), spec.args, spec.mesh, spec.nproc)
    return hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()


def label(mesh: Mesh, seat: SandboxSeat) -> str:
    """A group as all roles of a kind call it: by the dimensions it runs along."""
    names = along(mesh, seat.key.roles, seat.key.roles[seat.rank])
    return str(seat.key) if names is None else f"{'+'.join(names) or 'itself'}#{seat.key.ordinal}"


class StepRecordings:
    """Belongs to the training thread."""

    def __init__(self, spec: WorkerSpec, fabric: Fabric, say: Callable[[FromWorker | Telemetry], None]) -> None:
        self._spec, self._fabric, self._say = spec, fabric, say
        self._recorder: Recorder | None = None
        self._file: IO[bytes] | None = None
        """Of what was recorded here; open for as long as this process lives, since its agent reads it, too."""
        self._role = 0
        self._generation = 0
        self._steps: list[int] = []
        """Those that have begun since the first boundary."""
        self._fetched: dict[str, Recording] = {}
        self._replay: Replay | None = None

    # -- recording -----------------------------------------------------------------------------------------------------

    def entered(self, role: int) -> None:
        """Training has begun for this role. Who will hold the same is not known yet; one of each copy records."""
        self._role, self._generation = role, self._fabric.generation
        copies = [name for name, _ in self._spec.mesh if name.startswith("dp")]
        if role == min(alike(self._spec.mesh, role, copies)):
            self._begin()

    def _begin(self) -> None:
        spec = self._spec
        if not spec.settings.standbys.recording_bytes or spec.roles <= spec.nproc:
            return
        try:
            key = program_key(spec)
            self._file = nameless(spec.settings.standbys.recordings)  # its agent reads it, too
        except OSError as error:
            log.warning("%s cannot record for newcomers: %s; they rehearse with made-up values", spec.uid, error)
            return
        self._recorder = Recorder(self._file, key, self._role, spec.settings.standbys.recording_bytes, self._label)
        self._fabric.record(self._recorder)

    def _label(self, seat: SandboxSeat) -> str:
        return label(self._spec.mesh, seat)

    def first_boundary(self, same: tuple[int, ...], votes: Endpoint) -> None:
        """It is known who holds the same: the first of them records."""
        first = self._role == min(same, default=self._role)
        if first and self._recorder is None:
            self._begin()
        elif not first:
            self._give_up()
        if first and self._recorder is None:
            self._fail()
        votes.recorder = None

    def boundary(self, step: int) -> None:
        """A step begins."""
        recorder = self._recorder
        if recorder is None:
            return
        fabric = self._fabric
        if fabric.fault is not None or fabric.generation != self._generation or step in self._steps or recorder.spoilt:
            self._fail()
            return
        self._steps.append(step)
        recorder.phase = len(self._steps)
        steps = self._spec.settings.standbys.rehearsals  # each shadow step is answered by the step that it repeats
        if recorder.phase > steps:
            self._fabric.record(None)
            try:
                digest, size = recorder.finish(steps)
            except OSError as error:
                log.warning("%s could not finish its recording: %s", self._spec.uid, error)
                self._fail()
                return
            self._recorder = None
            assert self._file is not None
            self._say(Recorded(self._role, digest, size, steps, fd=self._file.fileno()))

    def _fail(self) -> None:
        """There is no recording of this role, and there will be none."""
        self._give_up()
        self._say(Recorded(self._role, "", 0, 0))

    def _give_up(self) -> None:
        """What was recorded is of no use, or of none that others have not."""
        if self._recorder is not None:
            self._fabric.record(None)
            self._recorder = None
        if self._file is not None:
            with suppress(OSError):  # what could not be written before cannot be written now
                self._file.close()
            self._file = None

    # -- rehearsing ----------------------------------------------------------------------------------------------------

    def sandbox(self, recorded: Recorded | None) -> Sandbox:
        """What answers a rehearsal: the recording, if there is one that can be had."""
        self._replay = None
        if recorded is None:
            return Echo()
        try:
            recording = self._fetched.get(recorded.digest) or self._fetch(recorded)
        except (OSError, http.client.HTTPException, ValueError) as error:
            log.warning("%s rehearses with made-up values: %s", self._spec.uid, error)
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is an answer, too
            return Echo()
        self._fetched[recorded.digest] = recording
        self._replay = Replay(recording, self._label, Echo())
        return self._replay

    def _fetch(self, recorded: Recorded) -> Recording:
        headers = {"Authorization": f"Bearer {self._spec.secret.hex()}"}
        with (
            nameless(self._spec.settings.standbys.recordings) as file,
            _OPENER.open(urllib.request.Request(recorded.url, headers=headers), timeout=_FETCH_S) as answer,
        ):
            while data := answer.read(1 << 20):
                file.write(data)
            file.flush()
            if digest_of(file) != recorded.digest:
                raise RecordingError("the recording that came is not the one that was asked for")
            return Recording(file, program_key(self._spec))

    def shadow_step(self, number: int) -> None:
        """A step of the rehearsal begins, counted from 1."""
        if self._replay is not None:
            self._replay.begin(number)

    def rehearsed(self) -> None:
        """The shadow steps are made: who waits, or plays, needs no memory for what answered them."""
        for recording in self._fetched.values():
            recording.rest()

    @property
    def diverged(self) -> str:
        """How the rehearsal differed from what was recorded."""
        return "" if self._replay is None else self._replay.diverged

    def close(self) -> None:
        self._give_up()
