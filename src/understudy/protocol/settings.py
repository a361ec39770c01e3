"""The settings of a job: one tree, in which every option is declared once.

The command line, TOML files and the help derive from the declarations; `docs/api.md` lists the flags. `JobSpec` is the
root. The controller, the agents and the workers get `JobSpec.settings`; a part of them gets its sub-tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from .mesh import Mesh, first_replicas, parse_mesh, roles_of
from .options import option

NoStandby = Literal["wait", "stop", "shrink"]
KeepGradients = Literal["own", "copy", "none"]
StewardMode = Literal["off", "tell", "act"]
HOUR = 3600.0
FAULTS = "understudy.testing.faults"
"""The extension that `understudy chaos` asks for faults."""
RETURN_S = 15.0
"""Time for an agent that was started again to register."""

JOB, MACHINES, ELSEWHERE = "the job", "machines", "machines on other computers"
"""Titles of the options that only the launcher needs."""


@dataclass(frozen=True)
class TrainingSettings:
    """How training runs."""

    seed: int = option(0, help="seed of all random numbers")
    steps: int | None = option(None, minimum=1, help="number of steps; overrides the script's own number")
    step_limit: float = option(0.0, unit="s", minimum=0, default_text="none", help="time limit of one step")
    check_gradients: bool = option(False, help="repeat a step once if its gradients contain NaN or inf")


@dataclass(frozen=True)
class CommSettings:
    """How workers communicate."""

    transport: str = option("native", help="native, or torch:gloo")
    limit: float = option(300.0, unit="s", positive=True, help="time limit of one collective operation")


@dataclass(frozen=True)
class CheckpointSettings:
    """Where the state of the job is kept."""

    folder: str = option(
        "", key="checkpoint", metavar="DIR", path=True, help="start from the latest checkpoint in DIR, if there is one"
    )
    every: int = option(
        0,
        key="checkpoint_every",
        minimum=0,
        default_text="never",
        help="write a checkpoint to DIR every N steps, in the background",
    )
    copy_every: int = option(
        0, minimum=0, default_text="no copies", help="copy the state to the memory of another machine every N steps"
    )


@dataclass(frozen=True)
class RecoverySettings:
    """What counts as a failure, and what follows from one."""

    heartbeat: float = option(2.0, unit="s", positive=True, help="a machine that is silent for this long is lost")
    answer_limit: float = option(
        10.0, unit="s", positive=True, help="a worker that is stopped or does not answer for this long is dead"
    )
    no_standby: NoStandby = option(
        "wait",
        write="wait, stop (with a checkpoint) or shrink (mask it)",
        help="after a failure with no standby left: wait for a machine, stop with a checkpoint, or mask",
    )
    patience: float = option(600.0, unit="s", positive=True, help="how long to wait for a machine before stopping")
    repair: float = option(
        2.0, unit="s", minimum=0, help="restart the agent of a dead machine after this time; 0: never"
    )
    quarantine: int = option(3, minimum=1, help="failures after which a machine is not used any more")


@dataclass(frozen=True)
class MaskingSettings:
    """How steps go on without some replicas."""

    mask: str = option(
        "",
        metavar="PLACEMENT",
        help="train without lost replicas; the others have the data anywhere, or placed as spare:r=3",
    )
    deterministic: bool = option(False, help="masked steps give the same bits as whole ones")
    keep_gradients: KeepGradients = option(
        "own",
        write="own (where they are), copy, or none",
        help="what survivors keep of an interrupted step: gradients in place, also a copy per micro-shard, or nothing",
    )


@dataclass(frozen=True)
class StandbySettings:
    """How standbys prepare."""

    warm: int = option(1, minimum=0, help="a standby rehearses the roles of N machines before one is needed")
    rehearsals: int = option(3, flag="", help="steps that a joiner rehearses in the sandbox")
    rehearsal_limit: float = option(900.0, unit="s", positive=True, help="time limit of a joiner's rehearsal")
    recordings: str = option(
        "",
        metavar="DIR",
        path=True,
        default_text="temporary files",
        help="folder on each machine for the recordings that standbys rehearse with",
    )
    recording_limit: float = option(1024.0, unit="MB", minimum=0, help="size of one role's recording; 0: no recordings")

    @property
    def recording_bytes(self) -> int:
        return int(self.recording_limit * 1e6)


@dataclass(frozen=True)
class ReplacementSettings:
    """How planned replacements run."""

    at_once: int = option(
        0, minimum=0, metavar="K", default_text="any number", help="drain at most K machines at one step boundary"
    )
    grace: float = option(
        30.0, unit="s", minimum=0, help="a machine that gets SIGTERM waits this long for its replacement"
    )
    overlap: bool = option(True, flag="", help="whether a leaver sends most of its state while its last step computes")
    streams: int = 2
    """TCP connections that carry one role's state."""


@dataclass(frozen=True)
class StewardSettings:
    """How far the steward may go about slow machines and the number of standbys."""

    mode: StewardMode = option(
        "tell",
        key="steward",
        write="off, tell (what it would do) or act",
        help="slow machines: ignore them, say what would be done, or replace them",
    )
    pool: int | None = option(
        None, minimum=0, help="keep N standbys: request one when one is used, release those that are too many"
    )
    cool_down: float = option(
        30.0, unit="s", minimum=0, maximum=HOUR, help="time between two requests, and before a release"
    )
    budget: int = option(0, minimum=0, default_text="any number", help="request at most N machines an hour")
    looks: int = option(
        10, key="steward_looks", minimum=1, help="act if a machine is slow in N checks in a row, one a second"
    )
    replacements: int = option(4, key="steward_replacements", minimum=0, help="replace at most N slow machines an hour")
    rest: float = 600.0
    """Seconds for which a machine that came, or was to be replaced, is left alone."""
    returning: float = 0.0
    """Seconds in which a machine that was lost comes back by itself; 0: it does not."""
    arrival: float = HOUR
    """Seconds after which a machine that was requested is not expected any more."""


@dataclass(frozen=True)
class StragglerSettings:
    """When a worker counts as slow."""

    threshold: float = option(
        0.10,
        key="straggler_threshold",
        minimum=0,
        maximum=10,
        write="a share such as 0.1 for 10 %, or 0 to switch it off",
        help="how much slower than its peers a straggler is, as a share; 0: off",
    )
    window: int = option(20, key="straggler_window", minimum=5, help="report a straggler after N steps")
    persistence: float = 0.8
    """The share of these steps that must be slow."""


@dataclass(frozen=True)
class VerifySettings:
    """For the checks of a job and its script."""

    chaos: bool = option(False, help="allow understudy chaos to cause faults inside the processes")
    extensions: dict[str, str] = option({}, flag="", help="modules that workers and agents import, and their arguments")

    @property
    def loaded(self) -> dict[str, str]:
        """All extensions, with the one that lets faults happen if they are allowed."""
        return {**self.extensions, FAULTS: ""} if self.chaos else self.extensions


@dataclass(frozen=True)
class Settings:
    """What the controller, the agents and the workers of a job have to know."""

    training: TrainingSettings = TrainingSettings()
    comm: CommSettings = CommSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    recovery: RecoverySettings = RecoverySettings()
    masking: MaskingSettings = MaskingSettings()
    standbys: StandbySettings = StandbySettings()
    replacement: ReplacementSettings = ReplacementSettings()
    steward: StewardSettings = StewardSettings()
    stragglers: StragglerSettings = StragglerSettings()
    verify: VerifySettings = VerifySettings()


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job as its user describes it: the root of the tree."""

    script: str = option("", group=JOB, flag="", path=True, help="the training script")
    args: tuple[str, ...] = option((), group=JOB, flag="", help="the script's own arguments")
    name: str = option("", group=JOB, default_text="the script's name", help="name of the job")
    machines: int = option(1, group=MACHINES, minimum=1, help="machines that train")
    standbys: int = option(0, group=MACHINES, minimum=0, help="machines that wait")
    begin_with: int = option(
        0,
        group=ELSEWHERE,
        minimum=0,
        default_text="all",
        help="begin with N of the machines (whole replicas); see: scale --help",
    )
    local: int | None = option(
        None, group=ELSEWHERE, default_text="all", help="start only N of the machines here; the others join"
    )
    listen: str = option(
        "127.0.0.1",
        group=ELSEWHERE,
        metavar="HOST[:PORT]",
        default_text="127.0.0.1, any port",
        help="where the controller listens",
    )
    host: str = option(
        "",
        group=ELSEWHERE,
        metavar="ADDRESS",
        default_text="the controller's address",
        help="where workers that are started here listen",
    )
    nproc: int = option(1, group=MACHINES, minimum=1, help="workers per machine")
    mesh: str = option(
        "",
        group=MACHINES,
        metavar="DIMS",
        default_text="dp over all roles",
        help="dimensions, outermost first: pp=2,dp=2,tp=2",
    )
    threads: int = option(1, group=MACHINES, minimum=1, help="torch threads per worker")
    provider_command: str = option(
        "",
        group=MACHINES,
        metavar="CMD",
        help="command that brings machines; run as CMD request N and CMD release NAME",
    )
    labels: dict[str, dict[str, str]] = option({}, group=MACHINES, flag="", help="labels of each machine")
    run_dir: str = option(
        "",
        group=JOB,
        metavar="DIR",
        path=True,
        default_text="runs/NAME-TIME",
        help="folder for the ledger, logs and metrics",
    )
    env: dict[str, str] = option({}, group=JOB, flag="", help="environment variables of the workers")
    settings: Settings = Settings()

    @property
    def title(self) -> str:
        return self.name or re.sub(r"[^A-Za-z0-9_.-]", "-", PurePath(self.script).stem)

    @property
    def dimensions(self) -> Mesh:
        return parse_mesh(self.mesh) if self.mesh else (("dp", self.machines * self.nproc),)

    @property
    def roles(self) -> int:
        return roles_of(self.dimensions)

    @property
    def founders(self) -> int:
        """Machines with which the job begins."""
        return self.begin_with or self.machines

    @property
    def first(self) -> tuple[int, ...]:
        """The cells of the machines with which the job begins; empty: all."""
        return first_replicas(self.dimensions, self.nproc)[self.begin_with] if self.begin_with else ()

    @property
    def started_here(self) -> int:
        """How many of the machines with which the job begins are started on this computer."""
        return self.founders if self.local is None else self.local
