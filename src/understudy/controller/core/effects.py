"""What the controller's core wants done: orders are in the machines' outboxes, everything else is here."""

from __future__ import annotations

import msgspec

from understudy.protocol.provisioning import Provisioning


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


Effect = Announcement | Reply | Provisioning
