"""What an agent knows from the start, how its launcher speaks to it, and what its end means."""

from __future__ import annotations

import hashlib
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from understudy.protocol.frames import Facts
from understudy.protocol.messages import WorkerSpec

PRELOAD = ("torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "understudy.worker.entry")
"""Modules that a fork server imports, once for all workers."""
AGAIN = 75
"""Exit code: the agent was given up and may be started again."""
UNFIT = 78
"""Exit code: the machine does not fit the job; a restart of the agent does not help."""
ABANDONED = 69
"""Exit code: nothing was heard of the job for so long that the job must be over."""
NOTICE, END = signal.SIGUSR1, signal.SIGUSR2
"""Signals from the launcher to an agent: this machine has to leave soon; end at once. A repeated notice is ignored."""


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent has to know from the start."""

    machine: str
    incarnation: str
    standby: bool
    url: str
    """The controller's address."""
    worker: WorkerSpec
    """For all workers; each gets its own uid and slot."""
    run_dir: str
    cwd: str
    env: dict[str, str]
    patience: float = 0.0
    """Seconds without a sign of the job after which the agent takes the job for over; 0: never."""
    labels: dict[str, str] = {}
    live: bool = False
    """Whether the launcher shows progress bars as they change: their states are then written with a carriage return at
    the end of the line."""


def facts_of(spec: WorkerSpec) -> Facts:
    """What workers that are started here, by this interpreter, would run. Imports none of it."""
    return Facts(
        understudy=_version("understudy"),
        torch=_version("torch"),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        script=hashlib.blake2b(Path(spec.script).read_bytes(), digest_size=6).hexdigest(),
        args=spec.args,
        mesh=spec.mesh,
        nproc=spec.nproc,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
