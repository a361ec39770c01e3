"""What a controller knows from the start, and what it tells machines that want to join."""

from __future__ import annotations

import msgspec

from understudy.controller.core.state import JobPlan, Scarcity
from understudy.protocol.frames import Facts
from understudy.protocol.messages import WorkerSpec
from understudy.steward import decide
from understudy.steward import stragglers as series


class ControlSpec(msgspec.Struct, frozen=True):
    """What a controller has to know from the start."""

    job: str
    secret: bytes
    machines: int
    nproc: int
    mesh: tuple[tuple[str, int], ...]
    ledger: str
    heartbeat: float = 2.0
    answer_limit: float = 10.0
    limit: float = 300.0
    rehearsal_limit: float = 900.0
    patience: float = 600.0
    no_standby: Scarcity = "wait"
    quarantine: int = 3
    warm: int = 1
    facts: Facts | None = None
    """What every machine must have in common with the job; None: nothing is asked."""
    worker: WorkerSpec | None = None
    """For machines that join: what their workers must know, but for the secret and what is a machine's own."""
    env: dict[str, str] = {}
    """For them, too."""
    repair: float = 0.0
    records: bool = False
    reserved: tuple[str, ...] = ()
    """Names that they may not have: machines of these are started with the job."""
    first: tuple[int, ...] = ()
    """Cells with which the job begins; empty: all."""
    at_once: int = 0
    steward: decide.StewardSettings = decide.StewardSettings()
    stragglers: series.StragglerSettings = series.StragglerSettings()

    @property
    def plan(self) -> JobPlan:
        return JobPlan(
            self.machines,
            self.nproc,
            self.answer_limit,
            self.limit,
            self.rehearsal_limit,
            self.patience,
            self.no_standby,
            self.quarantine,
            self.warm,
            self.records,
            "" if self.worker is None else self.worker.mask,
            self.first,
            self.at_once,
        )


class Offer(msgspec.Struct, frozen=True):
    """What a machine that wants to join is told about the job."""

    job: str
    status: str
    worker: WorkerSpec
    """Without secret, script and what is the machine's own."""
    env: dict[str, str]
    repair: float
    """Seconds after which a machine whose agent has died, or was given up, comes back; 0: never."""
    patience: float
    """Seconds without controller and training after which a machine may take the job for over."""
