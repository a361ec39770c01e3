"""What a worker hears from the controller and what it says, both by way of its agent."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from understudy.protocol.roster import Roster, WorkerAddress

from .framing import Framing
from .samples import Sample
from .settings import Settings

Back = Literal["", "copy", "checkpoint"]


class Move(msgspec.Struct, frozen=True):
    """A role's state goes from one worker's memory to another's."""

    role: int
    giver: WorkerAddress
    taker: WorkerAddress
    part: int = 0
    parts: int = 1
    """Where several give at once: which of how many parts this one is."""
    copy_of: int = -1
    """The role whose copy is given, where it is not the giver's own state."""


# -- heard ---------------------------------------------------------------------------------------------------------


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """What came from other machines in the first steps of this role is on its machine, for newcomers to rehearse
    with; or nothing is, and nothing will be."""

    role: int
    digest: str
    bytes: int
    steps: int
    url: str = ""
    """Where its agent has it."""
    fd: int = -1
    """Of the file, in the worker."""


class Rehearse(msgspec.Struct, frozen=True, tag="rehearse"):
    """Enter the training function for this role, in the sandbox; again, where it has rehearsed another one."""

    role: int
    recorded: Recorded | None = None
    """By this role, or one that holds the same."""
    mates: Roster | None = None
    """Workers that rehearse at the same time: operations among them run for real."""


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Open what this roster needs, beside what runs now; the vote says when to switch to it."""

    roster: Roster
    moves: tuple[Move, ...] = ()


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Nobody trains: open this roster and play in it from `step` on, which has not been applied by anybody. Whoever
    has not applied the step before does so now; whoever was in `step` begins it again."""

    roster: Roster
    step: int
    moves: tuple[Move, ...] = ()
    back: Back = ""
    """Where a role's state is lost: everybody goes back to `step`, to the state that was kept there."""
    copied: int = -1
    """The latest step of which copies are there for all roles, as far as those who are left know."""


class Conclude(msgspec.Struct, frozen=True, tag="conclude"):
    """The job cannot go on: finish `step - 1` where somebody has, keep what there is in a checkpoint, and end."""

    step: int
    roles: tuple[int, ...] = ()
    """Whose state to write: its own, and what it has a copy of."""


class Arm(msgspec.Struct, frozen=True, tag="arm"):
    """To those who give: everybody has prepared, so stream and vote for it."""

    generation: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Give a prepared generation up, unless the vote has agreed on it already."""

    generation: int


class Halt(msgspec.Struct, frozen=True, tag="halt"):
    """Somebody is gone: let go of everything that blocks and say how far you have come."""

    number: int
    reason: str


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """All steps are applied: the last vote has passed, although not everybody saw it."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """You are not needed any more: end."""


class Park(msgspec.Struct, frozen=True, tag="park"):
    """The others go on without this replica, somebody of which is gone: leave the generation, and wait in this role
    until the replica is whole again. What you hold is not wanted by then."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End at the next boundary, together with everybody else."""


class ExtensionMessage(msgspec.Struct, frozen=True, tag="extension"):
    """A message for the extensions of a worker or an agent. The runtime passes it on and does not read it."""

    kind: str
    machine: str
    uid: str = ""
    """The worker; empty: the machine's agent."""
    options: dict[str, float] = {}


ToWorker = Rehearse | Prepare | Resume | Conclude | Arm | Cancel | Halt | Finish | Leave | Park | Stop

# -- said ----------------------------------------------------------------------------------------------------------


class Here(msgspec.Struct, frozen=True, tag="here"):
    """The worker listens."""

    worker: WorkerAddress
    pid: int = 0


class Tracked(msgspec.Struct, frozen=True, tag="tracked"):
    """It has come to its first boundary and holds state, of which these roles have identical copies."""

    role: int
    twins: tuple[int, ...]
    bytes: int = 0


class Rehearsed(msgspec.Struct, frozen=True, tag="rehearsed"):
    """It has come to the boundary where it waits for its entry."""

    role: int
    seconds: float = 0.0
    also: tuple[int, ...] = ()
    """Roles that it could take as well, at once."""
    diverged: str = ""
    """Where it did something else than what was recorded."""
    fixed: bool = False
    """Whether its script knows its role from before the training function: then this process can play no other."""


class Parked(msgspec.Struct, frozen=True, tag="parked"):
    """It has left its generation and waits at a boundary in its role."""

    role: int


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    generation: int
    seconds: float = 0.0


class Unprepared(msgspec.Struct, frozen=True, tag="unprepared"):
    """The generation could not be opened."""

    generation: int
    why: str


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    generation: int


class Switched(msgspec.Struct, frozen=True, tag="switched"):
    """It plays (or, as a leaver, has stopped playing) in this generation, whose first step is `step`. A joiner says so
    once it holds the state."""

    generation: int
    step: int
    seconds: float = 0.0
    """How long a joiner's state took, from its first byte on."""
    bytes: int = 0
    """Of state taken."""
    again: bool = False
    """Whether everything had to be sent a second time at the boundary."""


class Gave(msgspec.Struct, frozen=True, tag="gave"):
    """A leaver's state is in the joiner's memory, and verified."""

    generation: int


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The first step of a generation is done. `lost` is what training lost by the change, measured here; None where it
    came too early in a job to know what is usual."""

    generation: int
    step: int
    lost: float | None


class Stalled(msgspec.Struct, frozen=True, tag="stalled"):
    """It has waited for long in an operation with these roles; without roles: it goes on."""

    generation: int
    roles: tuple[int, ...] = ()
    number: int = 0
    """Of the operation in its group."""
    what: str = ""


class Halted(msgspec.Struct, frozen=True, tag="halted"):
    """How far this worker has come: `step` steps are applied to the state it holds, or will be whatever happens."""

    number: int
    """Of the halt that asked; 0 where it noticed by itself."""
    generation: int
    step: int
    voted: bool
    """Its share of the next step is complete and it could apply it, too."""
    holds: bool
    """Whether it holds state at all."""
    over: bool = False
    """Whether the last vote has passed: all steps are applied everywhere."""
    how: str = ""
    """What it noticed, in a word (`eof`, `timeout`, `mismatch`, …) and a sentence."""
    reason: str = ""
    who: str = ""
    able: bool = False
    """Whether it has come to a first boundary, so that a state could be put into what it tracks."""
    kept: tuple[tuple[int, int], ...] = ()
    """(role, step) of whole copies in its memory."""
    usual: float = 0.0
    """Seconds of an undisturbed step; 0 where it does not know."""


class Saved(msgspec.Struct, frozen=True, tag="saved"):
    """This role's part of a checkpoint is on disk; it counts when all roles' parts are."""

    role: int
    step: int


class Faulty(msgspec.Struct, frozen=True, tag="faulty"):
    """The script, or what watches it, says that something is wrong with this worker or its machine."""

    reason: str
    fatal: bool = False
    """Whether its results are not to be trusted: it is not asked to hand anything over."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The training function has returned, on all roles together."""

    step: int
    digest: str = ""
    stopped: bool = False


ScriptFailure = Literal["raises", "exits", "never-tracks", "no-train", "steps", "collectives"]
"""How a script fails: it raises an exception, its process exits, nothing is tracked, it does not call
`understudy.run`, roles make different steps, or roles call different operations."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The training function has raised; the job cannot go on."""

    step: int
    error: str
    """One line."""
    trace: str = ""
    cause: ScriptFailure = "raises"


FromWorker = (
    Here
    | Tracked
    | Rehearsed
    | Recorded
    | Parked
    | Prepared
    | Unprepared
    | Cancelled
    | Switched
    | Gave
    | Settled
    | Stalled
    | Halted
    | Saved
    | Faulty
    | Done
    | Failed
)


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """To the agent only: how training goes, and what the script has logged. Sent after the step has been applied."""

    role: int
    step: int
    seconds: float
    values: dict[str, float] = {}
    primary: bool = False
    sample: Sample | None = None
    """What was measured in it."""


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """To the agent only: everybody has copies of this step in memory; what this role's took."""

    role: int
    step: int
    bytes: int
    seconds: float
    """Until the last byte was in the other machine's memory."""
    waited: float
    """For how much of it training had to wait."""


Telemetry = Progress | Copied
"""What an agent does not pass on."""

TO_WORKER: Framing[ToWorker | ExtensionMessage] = Framing(ToWorker | ExtensionMessage, "controller's message")
TO_AGENT: Framing[FromWorker | Telemetry] = Framing(FromWorker | Telemetry, "worker's message")


class WorkerSpec(msgspec.Struct, frozen=True):
    """What a worker process has to know from the start."""

    uid: str
    machine: str
    slot: int
    job: str
    secret: bytes
    script: str
    args: tuple[str, ...]
    nproc: int
    mesh: tuple[tuple[str, int], ...]
    host: str = "127.0.0.1"
    """The address at which the worker listens."""
    settings: Settings = Settings()

    @property
    def extensions(self) -> dict[str, str]:
        """Modules that workers and agents import at their start, with an argument for each; see host/extensions.py."""
        return self.settings.verify.loaded

    @property
    def roles(self) -> int:
        return math.prod(size for _, size in self.mesh)
