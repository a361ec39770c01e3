"""What a controller knows from the start, and what it tells machines that want to join."""

from __future__ import annotations

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
        return JobPlan(machines=self.machines, nproc=self.nproc, settings=self.settings, first=self.first)

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
