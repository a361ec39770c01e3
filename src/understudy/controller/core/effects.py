"""What the controller's core wants done: orders are in the machines' outboxes, everything else is here."""

from __future__ import annotations

from typing import Literal

import msgspec

from understudy.protocol.provisioning import Provisioning

# fmt: off
AnnouncementKind = Literal[
    "asked", "late", "machine", "wanted", "refused", "released", "notice", "quarantined", "lost", "died", "signal",
    "unexpected", "primary", "rehearsal", "recorded", "copied", "steward", "straggler", "caught-up", "change", "phase",
    "cancelled", "seated", "settled", "vacated", "masked", "replicas", "redundancy", "halt", "decided", "policy",
    "waiting", "finished", "stopped", "failed",
]
"""What an announcement is about."""
# fmt: on


class Announcement(msgspec.Struct, frozen=True):
    """An event of the job, for operators: `understudy events` shows it. Nothing is decided by its text."""

    kind: AnnouncementKind
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
