"""Slow links for state: as slow, relative to the state, as links between real machines."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from understudy.comm.links.link import Link
from understudy.testing.faults import SO_MAX_PACING_RATE
from understudy.worker.transfer.handover import Giver


def pace(rate: int) -> None:
    """Limit every connection over which this worker gives its state to `rate` bytes per second."""
    plain = Giver.__init__

    def paced(giver: Giver, links: Sequence[Link], *args: Any, **named: Any) -> None:
        plain(giver, links, *args, **named)
        for link in links:
            link.sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)

    Giver.__init__ = paced  # type: ignore[method-assign, assignment]
