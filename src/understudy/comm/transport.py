"""The interface of transports: one group's communication, prepared and switched from generation to generation.

As in torch's `reconfigure`, set-up and switch are apart: `prepare` runs beside operations and may take its time,
`switch` may not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

from understudy.protocol.roster import Roster

from .faults import Poison
from .links.link import Link
from .links.pairs import Receive, Send
from .ops import Op
from .topology import GroupKey, LinkId


class Services(Protocol):
    """The services of a fabric to its transports. The coroutines run on the fabric's event loop."""

    uid: str
    limit: float
    """Seconds that one operation may take."""
    setup_limit: float
    slot_bytes: int

    def link(self, roster: Roster, link: LinkId) -> Awaitable[Link]:
        """A link to another worker: dialled, or accepted if the other worker dials."""

    def offer(self, generation: int, kind: str, group: str, thing: Any) -> None:
        """Keep something ready for workers that dial with this kind: an arena, a taker of pair links, an answer."""

    def fetch_arena(self, roster: Roster, group: str, provider: str) -> Awaitable[int]:
        """The descriptor of the arena that the provider offers."""

    def ask(self, roster: Roster, kind: str, group: str, of: str) -> Awaitable[str]:
        """The text that the worker `of` offers under this kind."""

    def background(self, work: Any) -> None:
        """Run a coroutine on the fabric's event loop."""


async def open_all(links: list[Awaitable[Link]]) -> list[Link]:
    """Open all links or none: if one fails, the others are closed again."""
    tasks = [asyncio.ensure_future(link) for link in links]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(done, Link):
                done.close()
        raise


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

    def group(self, key: GroupKey, services: Services) -> GroupTransport: ...
