"""The frames between an agent and the controller."""

from __future__ import annotations

import msgspec

from understudy.protocol.messages import Copied, ExtensionMessage, FromWorker, Recorded, ToWorker
from understudy.protocol.samples import Sample

# -- orders to an agent --------------------------------------------------------------------------------------------


class StartWorker(msgspec.Struct, frozen=True, tag="start-worker"):
    """Start a worker process."""

    uid: str
    slot: int
    """The worker's number on the machine."""


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """Pass a message on to a worker."""

    uid: str
    message: ToWorker


class EndWorker(msgspec.Struct, frozen=True, tag="end-worker"):
    """Kill a worker if it is alive."""

    uid: str


class KeepCopy(msgspec.Struct, frozen=True, tag="keep-copy"):
    """Fetch a recording from the machine that has it, and keep it for joiners."""

    recorded: Recorded


class Dismiss(msgspec.Struct, frozen=True, tag="dismiss"):
    """End all workers and the agent."""

    reason: str
    again: bool = False
    """Whether the agent may come back, with new workers."""


Order = StartWorker | Tell | EndWorker | KeepCopy | Dismiss

# -- reports of an agent -------------------------------------------------------------------------------------------


class Relayed(msgspec.Struct, frozen=True, tag="said"):
    """A message of a worker."""

    uid: str
    message: FromWorker


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A worker's process has ended."""

    uid: str
    code: int
    """The exit code; negative: the signal that killed the process."""
    words: str = ""
    """The last lines that the process wrote."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """A signal has stopped a worker's process for this long."""

    uid: str
    seconds: float


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """This machine ends after this many seconds, and its agent with it."""

    seconds: float
    why: str


class KeptCopy(msgspec.Struct, frozen=True, tag="kept-copy"):
    """A recording of another machine is on this one, too. Without an address: it could not be fetched."""

    recorded: Recorded


Report = Relayed | Exited | Stopped | Leaving | KeptCopy

# -- frames: both streams are numbered from 1, kept until acknowledged, and sent again after a broken connection ------


class Facts(msgspec.Struct, frozen=True):
    """What must be the same on all machines of a job."""

    understudy: str
    torch: str
    """Version; empty: not installed."""
    python: str
    """Major and minor version."""
    script: str
    """Digest of the script's content."""
    args: tuple[str, ...]
    mesh: tuple[tuple[str, int], ...]
    nproc: int


class Register(msgspec.Struct, frozen=True, tag="register"):
    """The agent's first frame. An incarnation is one agent process; its workers end with it."""

    machine: str
    incarnation: str
    standby: bool
    received: int
    """The last order that the agent has carried out."""
    facts: Facts | None = None
    labels: dict[str, str] = {}
    """Labels that its operator has given the machine, such as its rack."""
    roster: int = 0
    """Generation of the last roster that the agent has; 0: none."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The controller's first frame: the number of the last report in its ledger."""

    received: int


class Numbered(msgspec.Struct, frozen=True, tag="numbered", omit_defaults=True):
    """An order or a report with its number."""

    number: int
    content: Order | Report
    roster: bytes = b""
    """The roster of an order, as a difference from the last one if possible; see `roster_delta.py`."""


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """Everything up to this number has been received and kept."""

    number: int


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """A sign of life from the agent, with the progress of training. A lost beat does no harm."""

    step: int = -1
    values: dict[str, float] = {}
    seconds: float = 0.0
    primary: bool = False
    copied: Copied | None = None
    """The cost of the last copies in memory, on one of the machine's workers."""
    samples: tuple[Sample, ...] = ()
    """Measurements of the machine's workers since the last beat; some may be dropped."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The controller refuses this agent."""

    reason: str
    unfit: bool = False
    """Whether the machine has to be repaired or set up differently first."""


Frame = Register | Welcome | Numbered | Ack | Beat | Refused | ExtensionMessage
