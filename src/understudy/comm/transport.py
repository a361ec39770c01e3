"""What a transport must offer: one group's communication, re-seated from generation to generation.

The shape follows where torch is heading (collect handles, then `reconfigure`): `prepare` may take its time beside
running operations, `switch` may not.
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
    """What a transport may ask of the fabric. The coroutines run on the fabric's event loop."""

    uid: str
    limit: float
    """Seconds that one operation may take."""
    setup_limit: float
    slot_bytes: int

    def link(self, roster: Roster, link: LinkId) -> Awaitable[Link]:
        """Dial, or wait for the dial of, the other end."""

    def offer(self, generation: int, kind: str, group: str, thing: Any) -> None:
        """Have something ready for those who dial with this kind: an arena, a taker of pair links, an answer."""

    def fetch_arena(self, roster: Roster, group: str, provider: str) -> Awaitable[int]:
        """The descriptor of the arena that the provider offers."""

    def ask(self, roster: Roster, kind: str, group: str, of: str) -> Awaitable[str]:
        """What the worker `of` offers under this kind, as text."""

    def background(self, work: Any) -> None:
        """Run a coroutine on the fabric's event loop."""


async def open_all(links: list[Awaitable[Link]]) -> list[Link]:
    """All of them or none: where one fails, those already open are closed again."""
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
    """One group's communication. All but `prepare` are called from training threads."""

    async def prepare(self, roster: Roster, poison: Poison) -> Any:
        """Everything this worker needs to play in that roster, beside what runs now."""

    def switch(self, prepared: Any) -> Any:
        """Play in what was prepared from now on (None: play no more). Returns what is left over, for `discard`."""

    def discard(self, leftover: Any) -> None:
        """Close what the former generation had and the present one has not."""

    def cancel(self, prepared: Any) -> None:
        """Close what was prepared and will not be used."""

    def run(self, op: Op) -> None:
        """Run a collective. Raises Interrupted where the generation is poisoned."""

    def post(self, *jobs: Send | Receive) -> None:
        """Start point-to-point messages; each sets its `done`, poisoned or not."""

    def links(self) -> list[Link]:
        """Those in use, with what has passed over them; none where that is not known."""

    def close(self) -> None: ...


class Transport(Protocol):
    name: str
    devices: tuple[str, ...]
    """Types of the devices whose memory it moves."""

    def group(self, key: GroupKey, services: Services) -> GroupTransport: ...
