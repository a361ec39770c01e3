"""Events: what the controller is told, as its ledger keeps it, requests of operators among them."""

from __future__ import annotations

from typing import Literal

import msgspec

from understudy.protocol.frames import Report

from .effects import AnnouncementKind
from .judgement import Source


class Replace(msgspec.Struct, frozen=True, tag="replace"):
    """Put standbys in the place of these machines, all at one boundary."""

    machines: tuple[str, ...]
    standbys: tuple[str, ...] = ()
    """Names of the standbys, one for each machine; empty: any that is ready."""
    by: float | None = None
    """Deadline, in seconds since the epoch: the machines must be free then."""
    stop_the_world: bool = False
    """Stop training while the joiners rehearse, open all links anew and hand all state over at the boundary: a
    replacement without this project's techniques, to compare with."""
    all_links: bool = False
    """Open every link anew beside training, not only the links that change: to compare with."""
    in_turns: bool = False
    """A drain: not all machines need to go at one boundary, if standbys or the job's limit do not allow it."""
    keep: bool = False
    """The machines become standbys again instead of being released."""
    why: str = ""
    """Reason, shown to operators."""


class TakeBack(msgspec.Struct, frozen=True, tag="take-back"):
    """Withdraw the drain of a machine whose turn has not come."""

    machine: str


class AddStandby(msgspec.Struct, frozen=True, tag="add-standby"):
    """Have more machines stand by."""

    count: int = 1


class RemoveStandby(msgspec.Struct, frozen=True, tag="remove-standby"):
    """Dismiss a standby."""

    machine: str
    why: str = "an operator has removed it"


class Scale(msgspec.Struct, frozen=True, tag="scale"):
    """Train with this number of model replicas from now on, as far as there are machines."""

    replicas: int
    without: tuple[str, ...] = ()
    """Machines that go first, if the number shrinks."""
    keep: bool = False
    """Machines that go become standbys instead of being released."""


class StopJob(msgspec.Struct, frozen=True, tag="stop-job"):
    """End the job at its next step boundary."""


class ReportFault(msgspec.Struct, frozen=True, tag="report-fault"):
    """A health checker outside the job reports a fault of a machine."""

    machine: str
    why: str
    fatal: bool = False
    """Whether the state and the results of its workers are not to be trusted."""


class Readmit(msgspec.Struct, frozen=True, tag="readmit"):
    """Use a machine again that is in quarantine."""

    machine: str


Request = Replace | TakeBack | AddStandby | RemoveStandby | Scale | StopJob | ReportFault | Readmit


class Registered(msgspec.Struct, frozen=True, tag="registered"):
    """An agent has registered for the first time in this incarnation."""

    machine: str
    incarnation: str
    standby: bool = False
    labels: dict[str, str] = {}


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """An agent was refused, because its machine cannot be part of the job."""

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
    """An agent's numbered report."""

    machine: str
    incarnation: str
    number: int
    report: Report


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """A request of an operator, or of the steward."""

    id: str
    request: Request


class Overdue(msgspec.Struct, frozen=True, tag="overdue"):
    """The deadline of a request has passed."""

    id: str


class Slipping(msgspec.Struct, frozen=True, tag="slipping"):
    """Judged by the duration of earlier replacements, a request can no longer be done before its deadline."""

    id: str
    at: float
    """The moment at which it should have begun; part of the event's identity."""


class Expired(msgspec.Struct, frozen=True, tag="expired"):
    """A time limit has passed."""

    what: Literal["start", "answer", "rehearse", "cancel", "switch", "patience", "end"]
    number: int
    """Number of the halt, the generation or the worker that the limit belongs to."""


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """An observation to announce; nothing is decided by it."""

    kind: AnnouncementKind
    text: str
    data: dict[str, str | float] = {}


Event = Registered | Rejected | Lost | Reported | Asked | Overdue | Slipping | Expired | Noted
