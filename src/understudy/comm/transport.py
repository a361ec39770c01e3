"""The interface of transports: one group's communication, prepared and switched from generation to generation.

As in torch's `reconfigure`, set-up and switch are apart: `prepare` runs beside operations and may take its time,
`switch` may not.
"""

from __future__ import annotations

from typing import Any, Protocol

from understudy.protocol.roster import Roster

from .faults import Poison
from .links.link import Link
from .links.pairs import Receive, Send
from .links.rendezvous import Rendezvous
from .ops import Op
from .topology import GroupKey


class GroupTransport(Protocol):
    """The communication of one group. All methods but `prepare` are called from training threads."""

    async def prepare(self, roster: Roster, poison: Poison) -> Any:
        """Open what this worker needs to take part in the group under this roster, beside running operations."""

    def switch(self, prepared: Any) -> Any:
        """Use what was prepared from now on; None: take part no more. Returns what is left over, for `discard`."""

    def discard(self, leftover: Any) -> None:
        """Close what the generation before had and the current one has not."""

    def cancel(self, prepared: Any) -> None:
        """Close what was prepared and will not be used."""

    def run(self, op: Op) -> None:
        """Run a collective. Raises Interrupted if the generation is poisoned."""

    def post(self, *jobs: Send | Receive) -> None:
        """Start point-to-point messages; each sets its `done`, poisoned or not."""

    def links(self) -> list[Link]:
        """The links in use, with tallies of their traffic; none if the transport does not know them."""

    def close(self) -> None: ...


class Transport(Protocol):
    """A way to move tensors between workers."""

    devices: tuple[str, ...]
    """Types of the devices between which tensors are moved, such as `("cpu",)`."""

    def group(self, key: GroupKey, services: Rendezvous) -> GroupTransport: ...
