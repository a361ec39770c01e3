"""What the controller is told, as it stands in its ledger, and what operators may ask for."""

from __future__ import annotations

from typing import Literal

import msgspec

from understudy.protocol.frames import Report
from understudy.protocol.provisioning import Provisioning

from .judgement import Source


class Replace(msgspec.Struct, frozen=True, tag="replace"):
    """Put standbys in the place of these machines, all at one boundary."""

    machines: tuple[str, ...]
    standbys: tuple[str, ...] = ()
    """Which ones; empty: whichever is ready."""
    by: float | None = None
    """Until when the machines must be free."""
    stop_the_world: bool = False
    """Let everybody wait while the newcomers rehearse, open all links anew and hand the state over at the boundary:
    how it would be done without this project's techniques, to compare with."""
    all_links: bool = False
    """Open every link anew beside training, not only those that change: to compare with."""
    in_turns: bool = False
    """Not all at one boundary where standbys or the job's limit do not allow it: a drain."""
    keep: bool = False
    """The machines become standbys again instead of being released."""
    why: str = ""
    """What whoever asks has to say about it."""


class TakeBack(msgspec.Struct, frozen=True, tag="take-back"):
    """A machine that waits to be drained stays after all."""

    machine: str


class AddStandby(msgspec.Struct, frozen=True, tag="add-standby"):
    count: int = 1


class RemoveStandby(msgspec.Struct, frozen=True, tag="remove-standby"):
    machine: str
    why: str = "an operator has removed it"


class Scale(msgspec.Struct, frozen=True, tag="scale"):
    """Train with so many replicas of the model from now on, as far as there are machines."""

    replicas: int
    without: tuple[str, ...] = ()
    """Machines that go first, where there are to be fewer."""
    keep: bool = False
    """Whether machines that go become standbys; else they are released."""


class StopJob(msgspec.Struct, frozen=True, tag="stop-job"):
    pass


class ReportFault(msgspec.Struct, frozen=True, tag="report-fault"):
    """Somebody who watches machines from outside says that one is ill."""

    machine: str
    why: str
    fatal: bool = False
    """Whether what its workers hold and compute is not to be trusted any more."""


class Readmit(msgspec.Struct, frozen=True, tag="readmit"):
    """A machine in quarantine may be used again."""

    machine: str


Request = Replace | TakeBack | AddStandby | RemoveStandby | Scale | StopJob | ReportFault | Readmit


class Registered(msgspec.Struct, frozen=True, tag="registered"):
    """An agent has come for the first time."""

    machine: str
    incarnation: str
    standby: bool = False
    labels: dict[str, str] = {}


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """An agent has come whose machine cannot be part of the job; it was sent away."""

    machine: str
    incarnation: str
    why: str


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A machine is gone with all its workers."""

    machine: str
    incarnation: str
    why: str
    source: Source = "heartbeat"


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    machine: str
    incarnation: str
    number: int
    report: Report


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    id: str
    request: Request


class Overdue(msgspec.Struct, frozen=True, tag="overdue"):
    """A request has not been fulfilled in time."""

    id: str


class Slipping(msgspec.Struct, frozen=True, tag="slipping"):
    """Going by what replacements take, a request can no longer be fulfilled in time."""

    id: str
    at: float
    """When it should have begun; where that changes, it is another event."""


class Expired(msgspec.Struct, frozen=True, tag="expired"):
    """Somebody has not done in time what a phase is about."""

    what: Literal["start", "answer", "rehearse", "cancel", "switch", "patience", "end"]
    number: int
    """Of the halt, the generation or the worker."""


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """Somebody who watches the job has something to tell; nothing follows from it."""

    kind: str
    text: str
    data: dict[str, str | float] = {}


Event = Registered | Rejected | Lost | Reported | Asked | Overdue | Slipping | Expired | Noted


class Tale(msgspec.Struct, frozen=True):
    """Something an operator may want to know."""

    kind: str
    text: str
    at: float = 0.0
    data: dict[str, object] = {}


class Reply(msgspec.Struct, frozen=True):
    """What has become of a request."""

    id: str
    ok: bool
    text: str
    at: float = 0.0
    data: dict[str, object] = {}


Output = Tale | Reply | Provisioning
