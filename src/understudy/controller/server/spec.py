"""What a controller knows from the start, what it tells machines that want to join, and which it refuses."""

from __future__ import annotations

import shlex
from dataclasses import replace

import msgspec

from understudy.controller.core.state import JobPlan
from understudy.protocol.frames import Facts
from understudy.protocol.messages import WorkerSpec
from understudy.protocol.settings import RETURN_S, Settings, StewardSettings


class ControlSpec(msgspec.Struct, frozen=True):
    """What a controller has to know from the start."""

    job: str
    secret: bytes
    machines: int
    nproc: int
    mesh: tuple[tuple[str, int], ...]
    ledger: str
    settings: Settings = Settings()
    facts: Facts | None = None
    """What every machine must have in common with the job; None: nothing is checked."""
    worker: WorkerSpec | None = None
    """For machines that join: what their workers must know, but for the secret and what is a machine's own."""
    env: dict[str, str] = {}
    """For machines that join: environment variables of their workers."""
    reserved: tuple[str, ...] = ()
    """Names of the machines that start with the job, which no machine that joins may have."""
    first: tuple[int, ...] = ()
    """Cells with which the job begins; empty: all."""

    @property
    def plan(self) -> JobPlan:
        return JobPlan(
            machines=self.machines, nproc=self.nproc, settings=self.settings, first=self.first, mesh=self.mesh
        )

    @property
    def steward(self) -> StewardSettings:
        """A machine that comes back after its repair is not requested in between."""
        repair = self.settings.recovery.repair
        return replace(self.settings.steward, returning=repair + RETURN_S if repair else 0.0)


class Offer(msgspec.Struct, frozen=True):
    """What a machine that wants to join is told about the job."""

    job: str
    status: str
    worker: WorkerSpec
    """Without the secret, the script and what is the machine's own."""
    env: dict[str, str]


def objection(machine: str, has: Facts | None, job: Facts | None) -> str:
    """Why a machine cannot be part of the job, and the way out; empty: it can, or the job asks for nothing."""
    if job is None or has == job:
        return ""
    if has is None:
        return f"{machine} does not say what it runs; install understudy {job.understudy} there, as the job has it"
    found = []
    for what, its, ours in (
        ("understudy", has.understudy, job.understudy),
        ("torch", has.torch, job.torch),
        ("Python", has.python, job.python),
    ):
        if its != ours:
            owns = f"{what} {its}" if its else f"no {what}"
            found.append(f"has {owns} and the job runs {ours}; install the same version there")
    if has.script != job.script:
        found.append(f"has another script (digest {has.script}, the job's {job.script}); copy the job's script there")
    if has.args != job.args:
        words = [shlex.join(args) or "no arguments" for args in (has.args, job.args)]
        found.append(f"gives the script {words[0]} and the job gives it {words[1]}; give it the same")
    if has.mesh != job.mesh:
        found.append(f"is set up for the mesh {_mesh(has.mesh)} and the job has {_mesh(job.mesh)}; give it the same")
    if has.nproc != job.nproc:
        found.append(f"has {has.nproc} workers and the job {job.nproc} per machine; start it with as many")
    return f"{machine} " + "; it also ".join(found)


def _mesh(mesh: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh)
