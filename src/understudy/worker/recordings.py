"""Recordings of a job's first steps, and rehearsals that are answered from them.

One role of each set of twins records. Which roles are twins is known at the first boundary; until then all roles
record, and only the first along the dp dimensions, which is probably the one, keeps more than sizes and objects. After
the recorded steps training runs as if nothing had been recorded. The recording stays with the agent of its machine;
joiners fetch it from there before they rehearse.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import urllib.error
import urllib.request
from contextlib import suppress
from functools import partial
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
from understudy.protocol.messages import Recorded, WorkerSpec

from .driver import Send

log = logging.getLogger("understudy.worker")

_FETCH_S = 60.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Connects to the other machine directly, without a proxy: the request carries the job's secret."""


def program_key(spec: WorkerSpec) -> str:
    """Equal for workers that run the same program and so can use each other's recordings."""
    try:
        own = version("understudy")
    except PackageNotFoundError:
        own = ""
    told = (own, torch.__version__, Path(spec.script).read_bytes(), spec.args, spec.mesh, spec.nproc)
    return hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()


def label(mesh: Mesh, seat: SandboxSeat) -> str:
    """The name of a group that is the same for all roles of a role class: the dimensions along which the group runs."""
    names = along(mesh, seat.key.roles, seat.key.roles[seat.rank])
    return str(seat.key) if names is None else f"{'+'.join(names) or 'itself'}#{seat.key.ordinal}"


class StepRecordings:
    """The recording that this worker makes, and those that answer its rehearsals. Belongs to the training thread."""

    def __init__(self, spec: WorkerSpec, fabric: Fabric, say: Send) -> None:
        self._spec, self._fabric, self._say = spec, fabric, say
        self._label = partial(label, spec.mesh)
        self._recorder: Recorder | None = None
        self._file: IO[bytes] | None = None
        """The recording made here. It stays open while this process lives, since the agent reads it."""
        self._role = 0
        self._generation = 0
        self._steps: list[int] = []
        """Steps that have begun since the first boundary."""
        self._fetched: dict[str, Recording] = {}
        self._replay: Replay | None = None

    # -- recording -----------------------------------------------------------------------------------------------------

    def entered(self, role: int) -> None:
        """Training has begun for this role."""
        self._role, self._generation = role, self._fabric.generation
        copies = [name for name, _ in self._spec.mesh if name.startswith("dp")]
        likely = role == min(alike(self._spec.mesh, role, copies))
        self._begin(self._spec.settings.standbys.recording_bytes if likely else 0)

    def _begin(self, limit: int) -> None:
        spec = self._spec
        if not spec.settings.standbys.recording_bytes or spec.roles <= spec.nproc:
            return
        try:
            key = program_key(spec)
            self._file = nameless(spec.settings.standbys.recordings)  # the agent reads it
        except OSError as error:
            log.warning("%s cannot record: %s; joiners rehearse with made-up values", spec.uid, error)
            return
        self._recorder = Recorder(self._file, key, self._role, limit, self._label)
        self._fabric.record(self._recorder)

    def first_boundary(self, same: tuple[int, ...], votes: Endpoint) -> None:
        """Twins are known: the first of them records."""
        if self._role != min(same, default=self._role):
            self.close()
        elif self._recorder is None:
            self._fail()
        else:
            self._recorder.limit = self._spec.settings.standbys.recording_bytes
        votes.recorder = None

    def boundary(self, step: int) -> None:
        """A step begins."""
        recorder = self._recorder
        if recorder is None:
            return
        fabric = self._fabric
        if fabric.fault is not None or fabric.generation != self._generation or step in self._steps or recorder.spoilt:
            self.interrupted()
            return
        self._steps.append(step)
        recorder.phase = len(self._steps)
        steps = self._spec.settings.standbys.rehearsals  # each shadow step is answered by the step that it repeats
        if recorder.phase > steps:
            self._finish(recorder, steps)

    def interrupted(self) -> None:
        """A step is interrupted before all steps are recorded: only the recording of the build can be used."""
        if self._recorder is None:
            return
        if self._steps and not self._recorder.spoilt:
            self._finish(self._recorder, 0)
        else:
            self._fail()

    def _finish(self, recorder: Recorder, steps: int) -> None:
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
        """Report that there will be no recording of this role."""
        self.close()
        self._say(Recorded(self._role, "", 0, 0))

    def close(self) -> None:
        """End and discard the recording."""
        if self._recorder is not None:
            self._fabric.record(None)
            self._recorder = None
        if self._file is not None:
            with suppress(OSError):  # a write may have failed before
                self._file.close()
            self._file = None

    # -- rehearsing ----------------------------------------------------------------------------------------------------

    def sandbox(self, recorded: Recorded | None) -> Sandbox:
        """The sandbox of a rehearsal: the recording if it can be fetched, otherwise made-up values."""
        self._replay = None
        if recorded is None:
            return Echo()
        try:
            recording = self._fetched.get(recorded.digest) or self._fetch(recorded)
        except (OSError, http.client.HTTPException, ValueError) as error:
            log.warning("%s rehearses with made-up values: %s", self._spec.uid, error)
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # this error is an open response
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
                raise RecordingError("the recording that arrived is not the one that was asked for")
            return Recording(file, program_key(self._spec))

    def shadow_step(self, number: int) -> None:
        """A step of the rehearsal begins, counted from 1."""
        if self._replay is not None:
            self._replay.begin(number)

    def rehearsed(self) -> None:
        """The shadow steps are done: free the memory of the recordings."""
        for recording in self._fetched.values():
            recording.rest()

    @property
    def diverged(self) -> str:
        """How the rehearsal differed from the recording; empty: it did not."""
        return "" if self._replay is None else self._replay.diverged
