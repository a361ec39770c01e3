"""The messages between the controller and a worker; its agent passes them on."""

from __future__ import annotations

from typing import Literal

import msgspec

from understudy.protocol.roster import Roster, WorkerAddress

from .framing import Framing
from .mesh import roles_of
from .samples import Sample
from .settings import Settings

Back = Literal["", "copy", "checkpoint"]


class Move(msgspec.Struct, frozen=True):
    """The state of a role goes from one worker's memory to another's."""

    role: int
    giver: WorkerAddress
    taker: WorkerAddress
    part: int = 0
    parts: int = 1
    """If several workers give at once: the number of this part, and how many there are."""
    copy_of: int = -1
    """The role of the copy that is given; -1: the giver gives its own state."""


# -- to the worker -------------------------------------------------------------------------------------------------


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """A recording of this role's first steps is on the worker's machine, for joiners to rehearse with. Without a
    digest: there will be no recording."""

    role: int
    digest: str
    bytes: int
    steps: int
    url: str = ""
    """The address at which the agent serves it."""
    fd: int = -1
    """The descriptor of the file in the worker."""


class Rehearse(msgspec.Struct, frozen=True, tag="rehearse"):
    """Enter the training function for this role, in the sandbox; also after a rehearsal of another role."""

    role: int
    recorded: Recorded | None = None
    """A recording of this role, or of one with the same state."""
    mates: Roster | None = None
    """Workers that rehearse at the same time: operations among them run for real."""


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Open the links that this roster needs while training goes on. A vote decides when to switch to it."""

    roster: Roster
    moves: tuple[Move, ...] = ()


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Open this roster and train in it from `step` on, which no worker has applied. No worker trains meanwhile. A
    worker that has not applied the step before applies it now; one that was in `step` repeats it."""

    roster: Roster
    step: int
    moves: tuple[Move, ...] = ()
    back: Back = ""
    """If the state of a role is lost: the source from which all roles restore the state of `step`."""
    copied: int = -1
    """The latest step of which there are copies for all roles, as far as the survivors know."""


class Conclude(msgspec.Struct, frozen=True, tag="conclude"):
    """The job cannot continue: apply `step - 1` if it counts, write the final checkpoint, and end."""

    step: int
    roles: tuple[int, ...] = ()
    """The roles of which this worker writes the state."""


class Arm(msgspec.Struct, frozen=True, tag="arm"):
    """To givers: all workers have prepared the generation, so stream the state and vote for it."""

    generation: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Give up a prepared generation, unless the vote has agreed on it already."""

    generation: int


class Halt(msgspec.Struct, frozen=True, tag="halt"):
    """A worker is gone: end every operation that blocks, and report the step that was reached."""

    number: int
    reason: str


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """All steps are applied: the last vote has passed, although not all workers saw its outcome."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End: the job does not need this worker any more."""


class Park(msgspec.Struct, frozen=True, tag="park"):
    """This replica is masked: leave the generation, and wait in this role until the replica is whole again. The state
    that the worker holds is discarded."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End at the next boundary, together with all workers."""


class ExtensionMessage(msgspec.Struct, frozen=True, tag="extension"):
    """A message for the extensions of a worker or an agent. The runtime passes it on and does not read it."""

    kind: str
    machine: str
    uid: str = ""
    """The worker; empty: the machine's agent."""
    options: dict[str, float] = {}


ToWorker = Rehearse | Prepare | Resume | Conclude | Arm | Cancel | Halt | Finish | Leave | Park | Stop

# -- from the worker------------------------------------------------------------------------------------------------


class Here(msgspec.Struct, frozen=True, tag="here"):
    """The worker has started and listens at this address."""

    worker: WorkerAddress
    pid: int = 0


class Tracked(msgspec.Struct, frozen=True, tag="tracked"):
    """The worker has come to its first boundary and holds the state of its role. `twins` hold the same state."""

    role: int
    twins: tuple[int, ...]
    bytes: int = 0


class Difference(msgspec.Struct, frozen=True):
    """A tracked object in which roles differ that should hold the same state."""

    item: str
    """The name under which the script tracks it."""
    roles: tuple[tuple[int, ...], ...]
    """The roles, grouped by what they hold."""
    bytes: int
    """Size of what differs."""
    exchanged: bool
    """Whether every role tells it to the others with each vote."""


class Compared(msgspec.Struct, frozen=True, tag="compared"):
    """All roles have compared their states bit by bit at a boundary."""

    role: int
    step: int
    """The step that began at this boundary."""
    twins: tuple[int, ...]
    """Roles that can give this role's state, itself included; none: what was found before holds no more."""
    own: tuple[str, ...] = ()
    """Tracked objects in which this role differs from its twins; the twins know what this role holds."""
    differences: tuple[Difference, ...] = ()
    """Told by the first of the roles that differ."""


class EarlyReading(msgspec.Struct, frozen=True):
    """A flag of the job that a script has evaluated before the first step of a rehearsal: its value changes once the
    standby has a role."""

    flag: str
    value: bool
    file: str
    line: int


class Rehearsed(msgspec.Struct, frozen=True, tag="rehearsed"):
    """The rehearsal is over: the worker waits at a boundary."""

    role: int
    seconds: float = 0.0
    also: tuple[int, ...] = ()
    """Roles that the worker could take at once instead."""
    diverged: str = ""
    """How the rehearsal differed from the recording; empty: it did not."""
    fixed: bool = False
    """Whether the script has asked for its role before the training function: this process can have no other role."""
    early: tuple[EarlyReading, ...] = ()
    """What the script has evaluated too early."""


class Parked(msgspec.Struct, frozen=True, tag="parked"):
    """The worker has left its generation and waits at a boundary in its role."""

    role: int


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The links of a generation are open."""

    generation: int
    seconds: float = 0.0


class Unprepared(msgspec.Struct, frozen=True, tag="unprepared"):
    """The generation could not be opened."""

    generation: int
    why: str


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """A generation is given up."""

    generation: int


class Switched(msgspec.Struct, frozen=True, tag="switched"):
    """The worker has entered this generation, of which `step` is the first step; a leaver has given up its role. A
    joiner holds the state by then."""

    generation: int
    step: int
    seconds: float = 0.0
    """Seconds that the state of a joiner took, from its first byte on."""
    bytes: int = 0
    """Bytes of that state."""
    again: bool = False
    """Whether the whole state was sent a second time at the boundary."""


class Gave(msgspec.Struct, frozen=True, tag="gave"):
    """The taker holds the state that this worker gave, verified."""

    generation: int


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The first step of a generation is done. `lost`: seconds that the change has cost, as measured by this worker;
    None if the usual duration of a step is not known yet."""

    generation: int
    step: int
    lost: float | None


class Stalled(msgspec.Struct, frozen=True, tag="stalled"):
    """The worker has waited for long in an operation with these roles; without roles: it does not wait any more."""

    generation: int
    roles: tuple[int, ...] = ()
    number: int = 0
    """The number of the operation in its group."""
    what: str = ""


class Halted(msgspec.Struct, frozen=True, tag="halted"):
    """The worker has halted: `step` steps are applied to its state, or will be in any case."""

    number: int
    """The number of the halt; 0: the worker has noticed the failure itself."""
    generation: int
    step: int
    voted: bool
    """Whether the gradients of the next step are complete, so that the worker could apply it."""
    holds: bool
    """Whether the worker holds the state of its role."""
    over: bool = False
    """Whether the last vote has passed: all steps are applied everywhere."""
    how: str = ""
    """The failure that the worker has noticed, in a word: `eof`, `timeout`, `mismatch`, …"""
    reason: str = ""
    who: str = ""
    """The uid of the worker at fault; empty: not known."""
    able: bool = False
    """Whether the worker has come to a first boundary, so that it could take a state."""
    kept: tuple[tuple[int, int], ...] = ()
    """(role, step) of the whole copies in the worker's memory."""
    usual: float = 0.0
    """Seconds of an undisturbed step; 0: not known."""


class Saved(msgspec.Struct, frozen=True, tag="saved"):
    """This role's part of a checkpoint is on disk. The checkpoint counts once the parts of all roles are."""

    role: int
    step: int


class Faulty(msgspec.Struct, frozen=True, tag="faulty"):
    """The script or the runtime has found a fault of this worker or its machine."""

    reason: str
    fatal: bool = False
    """Whether the worker's state and results cannot be trusted: it gives no state."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The training function has returned, on all roles together."""

    step: int
    digest: str = ""
    stopped: bool = False


ScriptFailure = Literal[
    "raises", "exits", "never-tracks", "no-train", "no-steps", "outside-step", "steps", "collectives"
]
"""How a script fails: it raises an exception, its process exits, nothing is tracked, it does not call
`understudy.run`, its training function makes no step, an optimizer makes an update outside of a step, roles make
different steps, or roles call different operations."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The training function has raised an exception; the job cannot continue."""

    step: int
    error: str
    """One line."""
    trace: str = ""
    cause: ScriptFailure = "raises"


Readiness = Here | Tracked | Compared | Rehearsed | Recorded | Parked
ChangeReport = Prepared | Unprepared | Cancelled | Switched | Gave | Settled
FromWorker = Readiness | ChangeReport | Stalled | Halted | Saved | Faulty | Done | Failed


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """To the agent only, after each applied step: its duration and the values that the script has logged."""

    role: int
    step: int
    seconds: float
    values: dict[str, float] = {}
    primary: bool = False
    sample: Sample | None = None
    """Measurements of the step."""


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """To the agent only: all workers have copies of this step in memory; the cost of this role's copy."""

    role: int
    step: int
    bytes: int
    seconds: float
    """Seconds until the last byte was in the memory of the other machine."""
    waited: float
    """Seconds of these for which training waited."""


Telemetry = Progress | Copied
"""Messages that an agent does not pass on to the controller."""

TO_WORKER: Framing[ToWorker | ExtensionMessage] = Framing(ToWorker | ExtensionMessage, "controller's message")
TO_AGENT: Framing[FromWorker | Telemetry] = Framing(FromWorker | Telemetry, "worker's message")


class WorkerSpec(msgspec.Struct, frozen=True):
    """What a worker process knows from its start."""

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
        return roles_of(self.mesh)
