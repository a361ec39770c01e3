"""What `WorkerProtocol` answers: effects, which are carried out at once, and the next thing to do at a boundary."""

from __future__ import annotations

import msgspec

from understudy.protocol.messages import Back, FromWorker, Recorded
from understudy.protocol.roster import Roster


class SendReport(msgspec.Struct, frozen=True):
    """Send a message to the controller."""

    message: FromWorker


class Open(msgspec.Struct, frozen=True):
    """Prepare a roster in the background; then call `opened` or `not_opened`."""

    roster: Roster


class Close(msgspec.Struct, frozen=True):
    """Abandon a generation that was being prepared."""

    generation: int


class PoisonFabric(msgspec.Struct, frozen=True):
    """Make every operation that blocks in the current generation return."""

    reason: str


class EnterTrain(msgspec.Struct, frozen=True):
    """Enter the training function for this role."""

    role: int
    rehearsal: bool
    """Whether the role is entered in the sandbox."""
    recorded: Recorded | None = None
    """The recording that answers the rehearsal."""
    mates: Roster | None = None
    """The workers that rehearse together with this one."""


class End(msgspec.Struct, frozen=True):
    """End this process: the job does not need it any more."""


Effect = SendReport | Open | Close | PoisonFabric | EnterTrain | End


class Begin(msgspec.Struct, frozen=True):
    """Compute this step."""

    step: int


class SwitchTo(msgspec.Struct, frozen=True):
    """Enter this generation, then call `entered`."""

    generation: int


class Wait(msgspec.Struct, frozen=True):
    """Wait for the next event."""


class GoBack(msgspec.Struct, frozen=True):
    """Restore the state of this step from its source; then call `went_back`."""

    generation: int
    step: int
    source: Back


class WriteCheckpoint(msgspec.Struct, frozen=True):
    """Write the state of these roles to a checkpoint and end."""

    step: int
    roles: tuple[int, ...]


class Withdraw(msgspec.Struct, frozen=True):
    """Leave the current generation, then call `withdrew`."""


Next = Begin | SwitchTo | Wait | GoBack | WriteCheckpoint | Withdraw
