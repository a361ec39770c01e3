"""What goes between an agent and the controller."""

from __future__ import annotations

import msgspec

from understudy.protocol.messages import Copied, ExtensionMessage, FromWorker, Recorded, ToWorker
from understudy.protocol.samples import Sample

# -- orders to an agent --------------------------------------------------------------------------------------------


class StartWorker(msgspec.Struct, frozen=True, tag="start-worker"):
    uid: str
    slot: int
    """Its number on the machine."""


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """Pass a word on to a worker."""

    uid: str
    message: ToWorker


class EndWorker(msgspec.Struct, frozen=True, tag="end-worker"):
    """Kill a worker, if it still lives."""

    uid: str


class KeepCopy(msgspec.Struct, frozen=True, tag="keep-copy"):
    """Fetch a recording from the machine that has it, and keep it for newcomers."""

    recorded: Recorded


class Dismiss(msgspec.Struct, frozen=True, tag="dismiss"):
    """End all workers and the agent."""

    reason: str
    again: bool = False
    """Whether it may come back, with new workers."""


Order = StartWorker | Tell | EndWorker | KeepCopy | Dismiss

# -- reports of an agent -------------------------------------------------------------------------------------------


class Relayed(msgspec.Struct, frozen=True, tag="said"):
    """A worker has said something."""

    uid: str
    message: FromWorker


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A worker's process has ended."""

    uid: str
    code: int
    """Negative: the signal that killed it."""
    words: str = ""
    """The last lines it wrote."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """A worker's process is there, but a signal has stopped it for so long."""

    uid: str
    seconds: float


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """This machine has to go, and its agent with it, after so many seconds."""

    seconds: float
    why: str


class KeptCopy(msgspec.Struct, frozen=True, tag="kept-copy"):
    """A recording of another machine is on this one, too; or could not be had, where it has no address."""

    recorded: Recorded


Report = Relayed | Exited | Stopped | Leaving | KeptCopy

# -- frames: both streams are numbered from 1, kept until acknowledged, and sent again after a broken connection ------


class Facts(msgspec.Struct, frozen=True):
    """What must be the same on all machines of a job."""

    understudy: str
    torch: str
    """Version; empty where it is not installed."""
    python: str
    """Major and minor version."""
    script: str
    """Digest of its content."""
    args: tuple[str, ...]
    mesh: tuple[tuple[str, int], ...]
    nproc: int


class Register(msgspec.Struct, frozen=True, tag="register"):
    """First from the agent. An incarnation is one life of an agent process; its workers die with it."""

    machine: str
    incarnation: str
    standby: bool
    received: int
    """The last order it has carried out."""
    facts: Facts | None = None
    labels: dict[str, str] = {}
    """Where it stands, or whatever else its operator says of it."""
    seated: int = 0
    """Generation of the last roster that it was sent; 0: none."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """First from the controller: the last report it has in its ledger."""

    received: int


class Numbered(msgspec.Struct, frozen=True, tag="numbered", omit_defaults=True):
    number: int
    content: Order | Report
    seating: bytes = b""
    """The roster that belongs to an order, in the shortest form that the agent understands; see `rosters.py`."""


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    number: int


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Now and then from the agent: it lives, and how training goes. Lost ones do not matter."""

    step: int = -1
    values: dict[str, float] = {}
    seconds: float = 0.0
    primary: bool = False
    copied: Copied | None = None
    """What the last copies in memory took, on one of its workers."""
    samples: tuple[Sample, ...] = ()
    """What its workers have measured since the last one, as far as that was kept."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """This agent has no place in the job, or not any more."""

    reason: str
    unfit: bool = False
    """Whether something is wrong with its machine that must be put right there."""


Frame = Register | Welcome | Numbered | Ack | Beat | Refused | ExtensionMessage
