"""What the controller's core wants done: orders are in the machines' outboxes, everything else is here."""

from __future__ import annotations

import msgspec


class Announcement(msgspec.Struct, frozen=True):
    """An event of the job, for operators: `understudy events` shows it. Nothing is decided by its text."""

    kind: str
    text: str
    at: float = 0.0
    data: dict[str, object] = {}


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request."""

    id: str
    ok: bool
    text: str
    at: float = 0.0
    data: dict[str, object] = {}


class StartMachines(msgspec.Struct, frozen=True, tag="start-machines"):
    """More machines are wanted, as standbys."""

    count: int
    at: float = 0.0


class ReleaseMachine(msgspec.Struct, frozen=True, tag="release-machine"):
    """A machine is not needed any more; its agent has been dismissed."""

    machine: str
    at: float = 0.0


Provisioning = StartMachines | ReleaseMachine
"""Effects for the part of the system that brings machines and takes them back."""

Effect = Announcement | Reply | Provisioning
